"""folded_query(): score functions of inner products, folded into the projection of the queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.export.target import only
from regard.layers.multihead import MultiHead
from regard.scores import General, ScaledDot

SCORES = only(
    "scaled_dot",
    "dot",
    "general",
    reason="the target only has scaled inner products of queries and keys",
    nearest="score=scaled_dot",
)
"""The values of the option `score` for targets that divide q . k by sqrt(D)."""


def folded_query(layer: MultiHead) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the projection of the queries, for a layer that divides q . k by sqrt(D).

    The matrix W of `general`, and the factor sqrt(D) that `dot` lacks, are multiplied into the projection.
    """
    if isinstance(layer.score, ScaledDot):
        return layer.query.weight, layer.query.bias
    weight, bias = layer.query.weight.detach().double(), layer.query.bias.detach().double()
    size = len(weight) // layer.heads
    if isinstance(layer.score, General):
        matrix_HDK = layer.score.weight.detach().double().expand(layer.heads, size, size)
        weight = torch.einsum("hdm,hdk->hkm", weight.view(layer.heads, size, -1), matrix_HDK).flatten(0, 1)
        bias = torch.einsum("hd,hdk->hk", bias.view(layer.heads, size), matrix_HDK).flatten()
    return (math.sqrt(size) * weight).float(), (math.sqrt(size) * bias).float()
