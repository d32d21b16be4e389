"""watch(): record and change the attention of PyTorch's own layers, such as nn.MultiheadAttention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import sites
from regard.attention import attention
from regard.errors import ArgumentError, message
from regard.look import Look
from regard.masks.mask import Mask, dense
from regard.roles import CROSS_ATTENTION, DECODER_SELF, ENCODER_SELF, Role

__all__ = ["watch"]

Module = TypeVar("Module", bound=nn.Module)
Result = tuple[Tensor, Tensor | None]
Forward = Callable[..., Result]


@contextmanager
def watch(module: Module) -> Iterator[Module]:
    """Let record() and intervene() see the layers of PyTorch in a model, inside a `with` statement.

    module: a model with nn.MultiheadAttention layers, for example an nn.TransformerEncoder, or such a layer.

    The name of a site is the path of the layer in `module`. The outputs are those of PyTorch, up to rounding,
    except that a query which sees no key gets 0 instead of NaN, and that outputs at padding are not set to 0.
    PyTorch's fast path, which calls no layer, is disabled for these layers inside the `with` statement.
    Yields `module`.

    >>> import regard, torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> with regard.watch(layer), regard.record() as seen:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> seen["self_attn"][0].weights.shape
    torch.Size([1, 2, 5, 5])
    """
    if not isinstance(module, nn.Module):
        problem = f"the argument is of type {type(module).__name__}"
        raise ArgumentError(message("watch()", problem, expected="an nn.Module"))
    layers = {name: each for name, each in module.named_modules() if isinstance(each, nn.MultiheadAttention)}
    _check_layers(module, layers)
    encoders = [each for each in module.modules() if isinstance(each, nn.TransformerEncoder)]
    nested = [(each, each.use_nested_tensor) for each in encoders]
    handles = []
    try:
        for name, layer in layers.items():
            # With a hook, nn.TransformerEncoderLayer calls the layer instead of its fast path.
            handles.append(layer.register_forward_hook(_no_change))
            vars(layer)["forward"] = _forward(layer, name or "attention", layer.forward)
        for encoder in encoders:
            encoder.use_nested_tensor = False
        yield module
    finally:
        for handle in handles:
            handle.remove()
        for layer in layers.values():
            vars(layer).pop("forward", None)
        for encoder, used in nested:
            encoder.use_nested_tensor = used


def _check_layers(module: object, layers: dict[str, nn.MultiheadAttention]) -> None:
    """Raise ArgumentError if there is no layer to watch, or one that watch() does not support."""
    if not layers:
        hint = "for a model of transformers, call regard.huggingface.attach(model) instead"
        problem = f"{type(module).__name__} has no layer of type nn.MultiheadAttention"
        raise ArgumentError(message("watch()", problem, hint=hint))
    for name, layer in layers.items():
        if layer.bias_k is not None or layer.add_zero_attn:
            problem = f"the layer {name!r} has add_bias_kv or add_zero_attn set"
            raise ArgumentError(message("watch()", problem, expected="layers without added keys"))
        if "forward" in vars(layer):
            raise ArgumentError(message("watch()", f"the layer {name!r} is already watched"))


def _no_change(module: nn.Module, inputs: Any, output: Any) -> None:
    """A forward hook that changes nothing."""


def _forward(layer: nn.MultiheadAttention, site: str, original: Forward) -> Forward:
    """Return a function with the arguments of nn.MultiheadAttention.forward() that calls attention().

    original: the method to call if nothing is recorded or changed.
    """

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Result:
        if not sites.watched():
            masks = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
            return original(query, key, value, *masks)
        role = _role(site, query is key)
        flip = query.dim() == 3 and not layer.batch_first
        inputs = [each.transpose(0, 1) if flip else each for each in (query, key, value)]
        inputs = [each if each.dim() == 3 else each[None] for each in inputs]
        query_BHTD, key_BHSD, value_BHSD = _projected(layer, *inputs)
        mask, bias = _mask_and_bias(key_padding_mask, attn_mask, layer.num_heads)
        attended = attention(
            query_BHTD,
            key_BHSD,
            value_BHSD,
            mask=mask,
            bias=bias,
            dropout=layer.dropout if layer.training else 0.0,
            look=Look(weights=True) if need_weights else None,
            site=site,
            role=role,
        )
        output = layer.out_proj(attended.output.transpose(1, 2).flatten(2))
        weights = attended.weights
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if query.dim() == 3 else weights[0]
        output = output.transpose(0, 1) if flip else output
        return output if query.dim() == 3 else output[0], weights

    return forward


def _role(site: str, of_itself: bool) -> Role:
    if not of_itself:
        return CROSS_ATTENTION
    return DECODER_SELF if "decoder" in site.split(".") else ENCODER_SELF


def _projected(layer: nn.MultiheadAttention, *inputs: Tensor) -> list[Tensor]:
    """Return query, key and value, each (B, H, length, D), projected by the weights of the layer."""
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return [
        functional.linear(each, weight, bias).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for each, weight, bias in zip(inputs, weights, biases, strict=True)
    ]


def _mask_and_bias(
    padding: Tensor | None, attn_mask: Tensor | None, heads: int
) -> tuple[Mask | None, Tensor | None]:
    """Return mask and bias for attention(). In PyTorch's bool masks, True hides a key.

    padding: (B, S), or (S,) for inputs without a batch.
    attn_mask: (T, S) or (B * H, T, S). Float masks are added to the scores.
    """
    mask: Mask | None = None
    bias: Tensor | None = None
    if padding is not None:
        padding = padding[:, None, None, :] if padding.dim() == 2 else padding[None, None, None, :]
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.unflatten(0, (-1, heads))
    for each in (padding, attn_mask):
        if each is None:
            continue
        if each.dtype == torch.bool:
            shown = dense(~each)
            mask = shown if mask is None else mask & shown
        else:
            bias = each if bias is None else bias + each
    return mask, bias
