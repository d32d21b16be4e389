"""The twins of Transformers in training on CUDA: fewer kernels for the same equations.

A twin runs the layers of its model with these changes:

- One kernel adds the output of a sublayer to x, after dropout, and computes the next layer normalisation.
- One matrix product computes queries, keys and values (joint_linear.py). The bias of an output is added by
  the kernel that follows.
- One kernel computes bias, activation and dropout of a feed-forward layer; another one the embeddings.

Dropout draws other random numbers than nn.Dropout, with the same probability. The kernels are in
kernels/training/. Each twin overrides the method that runs all layers, because a sum is computed together
with the layer normalisation of the next layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.backends.sdpa import device_capability
from regard.dimensions import autocast_on
from regard.fast.hooks import are_plain_linear, contains_hooks
from regard.fast.joint_linear import joint_linear, linear_without_bias, product_in_float32, trains_in_half
from regard.fast.twin import Twin
from regard.kernels.choice import by_kernel
from regard.kernels.seeds import next_seed
from regard.layers.attention_options import select_argument
from regard.layers.feedforward import ACTIVATIONS, FeedForward
from regard.layers.multihead import MultiHead
from regard.layers.token_embedding import embed_tokens as plain_embed_tokens
from regard.masks.constructors import causal, padding
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.models.base import Encoded, State
from regard.models.transformer import Transformer, TransformerLayer
from regard.models.transformer_classifier import TransformerClassifier
from regard.models.transformer_language import TransformerLanguageModel
from regard.positions import Position
from regard.positions.embedded import Embedded
from regard.scores import ScaledDot

__all__ = [
    "FusedTransformer",
    "FusedTransformerClassifier",
    "FusedTransformerLanguageModel",
    "ResidualStream",
    "embed_tokens",
    "feed_forward",
    "run_layers",
]

HOPPER = 9
"""Major compute capability for which kernels/training/activated_product.py was measured, and that uses it."""

MANY_ROWS = 512
"""Minimum number of rows for kernels/training/activated_product.py: fewer rows do not fill the GPU."""


class _Fused(Twin):
    """Base of the twins."""

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """Why kernels do not run this model; hooks, dtype and mode are checked at each call."""
        weight = next(module.parameters())
        if weight.device.type != "cuda" and not by_kernel(weight):
            return [f"the model is on {weight.device.type}, and the kernels run on cuda"]
        return [] if by_kernel(weight) else [f"there are no kernels for {weight.dtype} on {weight.device}"]

    def by_kernels(self) -> bool:
        """Whether kernels compute this call: in training with gradients, without hooks."""
        if not (self.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return False
        return by_kernel(next(self.parameters())) and not contains_hooks(self) and _is_known(self)


def _is_known(model: Any) -> bool:
    """Whether the modules that kernels replace have their own classes, not those of users."""
    dropouts = [model.dropout]
    for each in model.modules():
        if isinstance(each, MultiHead) and (type(each) is not MultiHead or not each.batch_first):
            return False
        if isinstance(each, FeedForward) and type(each) is not FeedForward:
            return False
        if isinstance(each, nn.Embedding) and type(each) is not nn.Embedding:
            return False
        if isinstance(each, TransformerLayer | FeedForward):
            dropouts.append(each.dropout)
    layers = [each for name in ("encoder", "decoder") for each in getattr(model, name, ())]
    return all(type(each) is TransformerLayer for each in layers) and all(
        type(each) is nn.Dropout for each in dropouts
    )


class FusedTransformer(_Fused, Transformer):
    """The twin of Transformer."""

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        if not self.by_kernels():
            return super().encode(source, lengths)
        scale, visible = self.width**0.5, padding(lengths)
        x_BSM = embed_tokens(self.source, source, scale, self.position, 0, self.dropout)
        x_BSM, _ = run_layers(self.encoder, self.encoded, x_BSM, visible)
        crossing = [layer.cross for layer in self.decoder if isinstance(layer.cross, MultiHead)]
        return Encoded(lengths, tuple(remember(cross, x_BSM, visible) for cross in crossing))

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        if not self.by_kernels():
            return super().features(state, tokens, encoded)
        scale, start = self.width**0.5, state.position
        x_RTM = embed_tokens(self.target, tokens, scale, self.position, start, self.dropout)
        layers, norm, mask = self.decoder, self.decoded, self.visible()
        features_RTM, past = run_layers(layers, norm, x_RTM, mask, start, state.past, encoded.memories)
        return State(start + tokens.shape[1], past=past), features_RTM


class FusedTransformerLanguageModel(_Fused, TransformerLanguageModel):
    """The twin of TransformerLanguageModel."""

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        if not self.by_kernels():
            return super().features(state, tokens, encoded)
        scale, start = self.width**0.5, state.position
        x_RTM = embed_tokens(self.embedding, tokens, scale, self.position, start, self.dropout)
        features_RTM, past = run_layers(self.decoder, self.decoded, x_RTM, causal(), start, state.past)
        return State(start + tokens.shape[1], past=past), features_RTM


class FusedTransformerClassifier(_Fused, TransformerClassifier):
    """The twin of TransformerClassifier."""

    def states(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if not self.by_kernels():
            return super().states(tokens, lengths)
        x_BSM = embed_tokens(self.embedding, tokens, self.width**0.5, self.position, 0, self.dropout)
        return run_layers(self.encoder, self.encoded, x_BSM, padding(lengths), wide=True)[0]


def run_layers(
    layers: Any,
    norm: nn.Module,
    x: Tensor,
    mask: Mask,
    start: int = 0,
    past: Sequence[Memory] = (),
    sources: Sequence[Memory] = (),
    *,
    wide: bool = False,
) -> tuple[Tensor, tuple[Memory, ...]]:
    """Run layers of type TransformerLayer; return norm(x) after them, and their self-attention caches.

    past: the self-attention cache of each layer; empty at the first step.
    sources: the memory of the cross-attention of each layer; empty without cross-attention.
    wide: see ResidualStream.normalized().
    """
    stream, caches = ResidualStream(x), list[Memory]()
    for i, layer in enumerate(layers):
        before, source = past[i] if past else None, sources[i] if sources else None
        stream, cache = _run_layer(layer, stream, mask, start, before, source)
        caches.append(cache)
    return stream.normalized(norm, wide)[1], tuple(caches)


def _run_layer(
    layer: TransformerLayer,
    stream: ResidualStream,
    mask: Mask,
    start: int,
    past: Memory | None,
    source: Memory | None,
) -> tuple[ResidualStream, Memory]:
    """Compute layer.forward() on a residual stream. The output of its last sublayer is not yet added."""
    select: Any = select_argument(layer.select, layer.training)

    def before(number: int) -> tuple[ResidualStream, Tensor]:
        return stream.normalized(layer.norms[number]) if layer.pre else (stream, stream.total())

    def after(number: int, change: Tensor, bias: Tensor | None) -> ResidualStream:
        added = stream.add(change, bias, layer.dropout.p if layer.dropout.training else 0.0)
        return added if layer.pre else ResidualStream(added.normalized(layer.norms[number], wide=True)[1])

    stream, y = before(0)
    heads = layer.itself
    query, keys, values = joint_linear(y, (heads.query, heads.key, heads.value))
    memory = heads.remember_heads(keys, values, past=past)
    joined = heads.attend_heads(query, memory, mask=mask, start=start, **select).output
    stream = after(0, *linear_without_bias(joined, heads.output))
    if layer.cross is not None and source is not None:
        stream, y = before(1)
        y_BTM = y.reshape(len(source.key), -1, y.shape[-1])
        (query,) = joint_linear(y_BTM, (layer.cross.query,))
        joined = layer.cross.attend_heads(
            query, source, mask=None, start=start, beams=len(y) // max(len(y_BTM), 1) or 1, **select
        ).output
        change, bias = linear_without_bias(joined, layer.cross.output)
        stream = after(1, change.reshape(y.shape), bias)
    if layer.feedforward is not None:
        stream, y = before(-1)
        stream = after(-1, *feed_forward(layer.feedforward, y))
    return stream, memory


def remember(layer: MultiHead, x: Tensor, mask: Mask) -> Memory:
    """Return layer.remember(x, mask=mask). mask: padding(lengths)."""
    keys, values = joint_linear(x, (layer.key, layer.value))
    if not x.is_cuda or type(layer.score) is not ScaledDot:
        return layer.remember_heads(keys, values, mask=mask)
    # In training, keys are used once, mostly by a backend that does not read hidden keys. So they are not
    # replaced by 0 here.
    memory = layer.remember_heads(keys, values)
    return replace(memory, mask=mask.to(x.device), cleaned=False)


def feed_forward(layer: FeedForward, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the result of a FeedForward layer before its last bias is added, and this bias, or None."""
    from regard.kernels.training.activation_dropout import ActivationDropout

    rate = layer.dropout.p if layer.dropout.training else 0.0
    if layer.gate is not None or not by_kernel(x):
        hidden, *gate = joint_linear(x, [layer.inner] if layer.gate is None else [layer.inner, layer.gate])
        hidden = ACTIVATIONS[layer.activation](hidden)
        hidden = layer.dropout(hidden * gate[0] if gate else hidden)
    elif _by_product(layer, x):
        weights = layer.inner.weight, layer.inner.bias, layer.outer.weight
        dtype = torch.get_autocast_dtype(x.device.type)
        return _ReluProducts.apply(x, *weights, rate, dtype), layer.outer.bias
    else:
        hidden = ActivationDropout.apply(*linear_without_bias(x, layer.inner), layer.activation, rate)
    return linear_without_bias(hidden, layer.outer)


def _by_product(layer: FeedForward, x: Tensor) -> bool:
    """Whether one kernel computes the first layer, ReLU and dropout: in half precision."""
    layers = layer.inner, layer.outer
    if layer.activation != "relu" or x.numel() // x.shape[-1] < MANY_ROWS or layer.inner.bias is None:
        return False
    half = are_plain_linear(layers) and trains_in_half(x, [each._parameters for each in layers])
    return half and device_capability(x.device)[0] == HOPPER


def embed_tokens(
    table: nn.Embedding, tokens: Tensor, multiplier: float, position: Position | None, start: int,
    dropout: nn.Dropout,
) -> Tensor:  # fmt: skip
    """Compute embed_tokens() of layers/token_embedding.py, by one kernel unless positions are learned."""
    if not _embeds_by_kernel(table, position):
        return plain_embed_tokens(table, tokens, multiplier, position, start, dropout)
    from regard.kernels.training.embedding_dropout import EmbeddingDropout

    places = None
    if isinstance(position, Embedded):
        places = position.rows(start, start + tokens.shape[1], table.weight)
    padding = -1 if table.padding_idx is None else table.padding_idx
    rate = dropout.p if dropout.training else 0.0
    return EmbeddingDropout.apply(table.weight, tokens, places, multiplier, rate, padding)


def _embeds_by_kernel(table: nn.Embedding, position: Position | None) -> bool:
    """Whether the kernel supports this table and these positions."""
    if table.max_norm is not None or table.sparse or table.scale_grad_by_freq:
        return False
    if position is None:
        return True
    fixed = isinstance(position, Embedded) and not any(True for _ in position.parameters())
    return fixed and getattr(position, "width", None) == table.embedding_dim


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """A tensor x, and the output of a sublayer that will be added to it after dropout.

    The sum is not computed at once: on CUDA, one kernel computes it together with the layer normalisation
    that follows (kernels/training/residual_norm.py).

    x: (..., M).
    change: (..., M), the output of a sublayer, or None.
    bias: (M,), a bias of the sublayer that is not yet added to `change`, or None. The kernel adds it and
        computes its gradient.
    dropout: dropout probability of `change`, 0 in eval mode.

    >>> x = torch.ones(1, 2)
    >>> ResidualStream(x).add(3 * x).total()
    tensor([[4., 4.]])
    """

    x: Tensor
    change: Tensor | None = None
    bias: Tensor | None = None
    dropout: float = 0.0

    def add(self, change: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> ResidualStream:
        """Return the stream with another change to add."""
        return ResidualStream(self.total(), change, bias, dropout)

    def total(self) -> Tensor:
        """Return x + dropout(change + bias)."""
        if self.change is None:
            return self.x
        change = self.change if self.bias is None else self.change + self.bias.to(self.change.dtype)
        return self.x + functional.dropout(change, self.dropout, self.dropout > 0)

    def normalized(self, norm: nn.Module, wide: bool = False) -> tuple[ResidualStream, Tensor]:
        """Return a stream without change, and norm(total).

        norm: usually nn.LayerNorm(M).
        wide: if False, the kernel may return norm(total) in the autocast dtype, for the input of a linear
            layer. If True, it has the dtype of x.

        >>> norm, stream = nn.LayerNorm(4), ResidualStream(torch.randn(2, 4), torch.randn(2, 4))
        >>> torch.equal(stream.normalized(norm)[1], norm(stream.total()))
        True
        """
        if not self._by_kernel(norm):
            total = self.total()
            return ResidualStream(total), norm(total)
        from regard.kernels.training.residual_norm import ResidualNorm

        assert isinstance(norm, nn.LayerNorm)
        device = self.x.device.type
        dtype = torch.get_autocast_dtype(device) if autocast_on(device) and not wide else self.x.dtype
        inputs = (self.x, self.change, self.bias, norm.weight, norm.bias)
        total, normed = ResidualNorm.apply(*inputs, norm.eps, self.dropout, dtype)
        return ResidualStream(self.x if self.change is None else total), normed

    def _by_kernel(self, norm: nn.Module) -> bool:
        """Whether one kernel can compute sum and layer normalisation: in training, on CUDA."""
        x = self.x
        if not by_kernel(x) or not norm.training or type(norm) is not nn.LayerNorm or norm.bias is None:
            return False
        from regard.kernels.training.residual_norm import WIDEST

        same = self.change is None or self.change.shape == x.shape
        return same and tuple(norm.normalized_shape) == x.shape[-1:] and x.shape[-1] <= WIDEST


class _ReluProducts(torch.autograd.Function):
    """dropout(relu(x W_1^T + b_1)) W_2^T in half precision, with kernels/training/activated_product.py.

    x: (..., M). inner, bias, outer: W_1 (N, M), b_1 (N,) and W_2 (O, N), in float32.
    dropout: dropout probability. dtype: the dtype of the products.

    As in linear_in_half(), the gradients of weights and bias are not rounded to half precision.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, inner: Tensor, bias: Tensor, outer: Tensor, dropout: float, dtype: torch.dtype
    ) -> Tensor:
        from regard.kernels.training.activated_product import activated_product

        rows = x.to(dtype).reshape(-1, x.shape[-1]).contiguous()
        inner, outer = inner.to(dtype), outer.to(dtype)
        seed = next_seed(x.device) if dropout else None
        with torch.autocast(x.device.type, enabled=False):
            hidden = activated_product(rows, inner, bias, seed, dropout)
            result = torch.mm(hidden, outer.T)
        ctx.save_for_backward(rows, inner, outer, hidden)
        ctx.dropout, ctx.dtype, ctx.shape = dropout, x.dtype, x.shape
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.training.activated_product import activated_product_gradient

        rows, inner, outer, hidden = ctx.saved_tensors
        d = dresult.reshape(-1, len(outer)).contiguous()
        with torch.autocast(rows.device.type, enabled=False):
            dsum, dbias = activated_product_gradient(d, outer, hidden, ctx.dropout)
            douter = product_in_float32(d.T, hidden)
            dx = torch.mm(dsum, inner).view(ctx.shape).to(ctx.dtype)
            dinner = product_in_float32(dsum.T, rows)
        return dx, dinner, dbias, douter, None, None
