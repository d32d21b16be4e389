"""The twins of a Transformer and of its layers in training on CUDA: fewer kernels for the same equations.

- One kernel adds the output of a sublayer to x, after dropout, and computes the next layer normalisation.
- One matrix product computes queries, keys and values, and one kernel copies the weights of all layers to
  half precision (joint_linear.py). The bias of an output is added by the kernel that follows.
- One kernel computes bias, activation and dropout of a feed-forward layer.
- One kernel computes embeddings, positions and dropout (embedding.py).
- One kernel draws the random seeds of dropout in all layers.

Dropout draws other random numbers than nn.Dropout, with the same probability. The kernels are in
kernels/training/. The twin runs all layers, because the last sum of a layer is computed together with the
first layer normalisation of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.dimensions import autocast_on
from regard.fast.embedding import embed_tokens
from regard.fast.hooks import contains_hooks, is_hooked
from regard.fast.joint_linear import HalfCopies, half_copies, joint_linear, linear_without_bias
from regard.fast.twin import Twin, plain_class
from regard.kernels import by_kernel
from regard.layers.feedforward import ACTIVATIONS, FeedForward
from regard.layers.multihead import MultiHead, TransformerLayers
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.models.transformer import Transformer, TransformerLayer
from regard.scores import ScaledDot

__all__ = ["FastTransformer", "FastTransformerLayers", "ResidualStream", "feed_forward"]


class FastTransformer(Transformer, Twin):
    """The twin of Transformer: one kernel computes the input of the first layer."""

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """The device and the dtype."""
        return _reasons(module)

    def embed(self, table: nn.Embedding, tokens: Tensor, start: int = 0) -> Tensor:
        x = embed_tokens(table, tokens, self.width**0.5, self.position, start, self.dropout)
        return Transformer.embed(self, table, tokens, start) if x is None else x


class FastTransformerLayers(TransformerLayers, Twin):
    """The twin of TransformerLayers."""

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """The device and the dtype. Mode, hooks and transforms are checked at each call."""
        return _reasons(module)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        norm: nn.Module,
        start: int = 0,
        past: Sequence[Memory] = (),
        sources: Sequence[Memory] = (),
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        if not _by_kernels(self, x):
            return TransformerLayers.forward(self, x, mask, norm, start, past, sources)
        layers: list[Any] = list(self)
        copies = half_copies(x, (product for layer in layers for product in _products(layer)))
        stream, caches = ResidualStream(x), list[Memory]()
        with seeds_of_dropout():
            for i, layer in enumerate(layers):
                before, source = past[i] if past else None, sources[i] if sources else None
                stream, cache = _run_layer(layer, stream, mask, start, before, source, copies)
                caches.append(cache)
        return stream.normalized(norm)[1], tuple(caches)

    def remember(self, x: Tensor, mask: Mask) -> tuple[Memory, ...]:
        if not _by_kernels(self, x):
            return TransformerLayers.remember(self, x, mask)
        layers: list[Any] = [layer.cross for layer in self]
        copies = half_copies(x, ((layer.key, layer.value) for layer in layers))
        return tuple(_remember(layer, x, mask, copies) for layer in layers)


def _reasons(module: nn.Module) -> list[str]:
    weight = next(module.parameters())
    return [] if by_kernel(weight) else [f"its kernels do not run {weight.dtype} on {weight.device.type}"]


def seeds_of_dropout() -> AbstractContextManager[object]:
    """Draw the seeds of dropout in all layers with one kernel, inside the `with` block."""
    from regard.kernels.dropout import seeds_together

    return seeds_together()


def _by_kernels(layers: TransformerLayers, x: Tensor) -> bool:
    """Whether kernels compute this call: in training with gradients, without hooks."""
    if not (layers.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return False
    return by_kernel(x) and not contains_hooks(layers) and all(map(_is_known, layers.modules()))


def _is_known(module: nn.Module) -> bool:
    """Whether kernels can replace a module: its class and its dropout are not those of a user."""
    if isinstance(module, TransformerLayer | FeedForward):
        return type(module) in (TransformerLayer, FeedForward) and plain_class(module.dropout) is nn.Dropout
    return not isinstance(module, MultiHead) or (type(module) is MultiHead and module.batch_first)


def _products(layer: TransformerLayer) -> Iterator[tuple[nn.Module, ...]]:
    """Yield the linear layers of each matrix product of _run_layer()."""
    yield layer.itself.query, layer.itself.key, layer.itself.value
    yield (layer.itself.output,)
    if layer.cross is not None:
        yield (layer.cross.query,)
        yield (layer.cross.output,)
    if layer.feedforward is not None:
        inner, gate = layer.feedforward.inner, layer.feedforward.gate
        yield (inner,) if gate is None else (inner, gate)
        yield (layer.feedforward.outer,)


def _run_layer(
    layer: TransformerLayer,
    stream: ResidualStream,
    mask: Mask,
    start: int,
    past: Memory | None,
    source: Memory | None,
    copies: HalfCopies,
) -> tuple[ResidualStream, Memory]:
    """Compute layer.forward() on a residual stream. The output of its last sublayer is not yet added."""
    select = layer.select if layer.training else layer.select.deterministic()

    def before(number: int) -> tuple[ResidualStream, Tensor]:
        return stream.normalized(layer.norms[number]) if layer.pre else (stream, stream.total())

    def after(number: int, change: Tensor, bias: Tensor | None) -> ResidualStream:
        added = stream.add(change, bias, layer.dropout.p if layer.dropout.training else 0.0)
        return added if layer.pre else ResidualStream(added.normalized(layer.norms[number], wide=True)[1])

    stream, y = before(0)
    heads = layer.itself
    query, keys, values = joint_linear(y, (heads.query, heads.key, heads.value), copies)
    memory = heads.remember_heads(keys, values, past=past)
    joined = heads.attend_heads(query, memory, mask=mask, start=start, select=select).output
    stream = after(0, *linear_without_bias(joined, heads.output, copies))
    if layer.cross is not None and source is not None:
        stream, y = before(1)
        y_BTM = y.reshape(len(source.key), -1, y.shape[-1])
        (query,) = joint_linear(y_BTM, (layer.cross.query,), copies)
        joined = layer.cross.attend_heads(
            query, source, mask=None, start=start, beams=len(y) // max(len(y_BTM), 1) or 1, select=select
        ).output
        change, bias = linear_without_bias(joined, layer.cross.output, copies)
        stream = after(1, change.reshape(y.shape), bias)
    if layer.feedforward is not None:
        stream, y = before(-1)
        stream = after(-1, *feed_forward(layer.feedforward, y, copies))
    return stream, memory


def _remember(layer: MultiHead, x: Tensor, mask: Mask, copies: HalfCopies) -> Memory:
    """Return layer.remember(x, mask=mask). mask: padding(lengths)."""
    keys, values = joint_linear(x, (layer.key, layer.value), copies)
    if not x.is_cuda or type(layer.score) is not ScaledDot:
        return layer.remember_heads(keys, values, mask=mask)
    # In training, keys are used once, mostly by a backend that does not read hidden keys. So they are not
    # replaced by 0 here.
    return replace(layer.remember_heads(keys, values), mask=mask.to(x.device), cleaned=False)


def feed_forward(layer: FeedForward, x: Tensor, copies: HalfCopies) -> tuple[Tensor, Tensor | None]:
    """Return the result of a FeedForward layer before its last bias is added, and this bias, or None."""
    if layer.gate is not None:
        hidden, gate = joint_linear(x, (layer.inner, layer.gate), copies)
        hidden = layer.dropout(ACTIVATIONS[layer.activation](hidden) * gate)
    elif not by_kernel(x):
        hidden = layer.dropout(ACTIVATIONS[layer.activation](layer.inner(x)))
    else:
        from regard.kernels.training.dropout import ActivationDropout

        rate = layer.dropout.p if layer.dropout.training else 0.0
        hidden = ActivationDropout.apply(*linear_without_bias(x, layer.inner, copies), layer.activation, rate)
    return linear_without_bias(hidden, layer.outer, copies)


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
        if is_hooked(norm):
            return False
        from regard.kernels.training.residual_norm import WIDEST

        same = self.change is None or self.change.shape == x.shape
        return same and tuple(norm.normalized_shape) == x.shape[-1:] and x.shape[-1] <= WIDEST
