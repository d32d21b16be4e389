"""copied(): a layer with the weights of a torch.nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.errors import ArgumentError, message

__all__ = ["copied"]


def copied(kind: type[Any], layer: nn.MultiheadAttention, batch_first: bool | None) -> Any:
    """Create a MultiHead with a copy of the weights of `layer`; see MultiHead.from_torch().

    kind: MultiHead, or a subclass.
    """
    if not isinstance(layer, nn.MultiheadAttention):
        kind = type(layer).__name__
        raise ArgumentError(
            message("MultiHead.from_torch()", f"layer is a {kind}", expected="nn.MultiheadAttention")
        )
    if layer.bias_k is not None or layer.add_zero_attn:
        raise ArgumentError(
            message(
                "MultiHead.from_torch()",
                "layer has add_bias_kv or add_zero_attn set, which MultiHead does not support",
                expected="add_bias_kv=False and add_zero_attn=False",
            )
        )
    own = kind(
        layer.embed_dim,
        layer.num_heads,
        key_width=layer.kdim,
        value_width=layer.vdim,
        dropout=layer.dropout,
        bias=layer.in_proj_bias is not None,
        batch_first=layer.batch_first if batch_first is None else batch_first,
    ).to(layer.out_proj.weight)
    weights = (
        layer.in_proj_weight.chunk(3)
        if layer.in_proj_weight is not None
        else (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    )
    with torch.no_grad():
        for linear, weight in zip((own.query, own.key, own.value), weights, strict=True):
            linear.weight.copy_(weight)
        own.output.weight.copy_(layer.out_proj.weight)
        if layer.in_proj_bias is not None:
            for linear, bias in zip(
                (own.query, own.key, own.value), layer.in_proj_bias.chunk(3), strict=True
            ):
                linear.bias.copy_(bias)
            own.output.bias.copy_(layer.out_proj.bias)
    return own.train(layer.training)
