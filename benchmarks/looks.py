"""Cost of looks at every row, compared with the same attention without a look and with the full matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import regard
from benchmarks.cases import Case, Gate, Passes, Peer, Wrong, judged
from benchmarks.dot import Heads, chosen, ours

__all__ = ["LOOK", "look_case"]

LOOK = regard.Look(entropy=True, alignment=True, mass=True)

MATRIX_COPIES = 8.0
"""Approximate memory of the full matrix and its statistics, in half-precision tensors of B x H x T x S."""


def look_case(
    shape: Heads,
    device: str = "cuda",
    dtype: str = "bfloat16",
    look: regard.Look = LOOK,
    limited_by: str = "matmul",
) -> Case:
    """Return the case of a forward pass with these looks; limited_by: "" if the limit is not known."""
    ways: dict[str, Callable[..., Callable[..., object]]] = {
        "whole matrix": partial(_whole_matrix, look),
        "regard, not looking": partial(ours, "auto"),
        "regard": partial(ours, "auto", look=look),
    }
    notes: dict[str, Callable[[], str]] = {
        "whole matrix": str,
        "regard, not looking": partial(chosen, shape, dtype, device),
        "regard": partial(_chosen_to_look, look, shape, dtype, device),
    }
    peers = tuple(
        Peer(
            name,
            partial(_forward, way, shape, dtype, device),
            dtype,
            ours=name == "regard",
            holds=MATRIX_COPIES * shape.materialised if name == "whole matrix" else 0.0,
            note=notes[name],
        )
        for name, way in ways.items()
    )
    about = f"Scaled dot attention with {', '.join(look.requested)}, {shape}, {dtype}, forward"
    limit = shape.limit if limited_by else None
    return Case(about, peers, lambda peer: gate(look, shape, peer.dtype, device), limit, limited_by)


def gate(look: regard.Look, shape: Heads, dtype: str, device: str) -> Gate:
    """Check the entropy and mass of one head, and that 99 % of its alignments are exact (ties may differ)."""
    one = replace(shape, batch=1, heads=1, length=min(shape.length, 1024))
    inputs = [each.detach() for each in one.inputs(getattr(torch, dtype), device)]
    seen = regard.attention(*inputs, mask=one.mask(device), look=look)
    plain, exact = (
        _whole_matrix(look, one, device)(*(each.to(kind) for each in inputs))
        for kind in (inputs[0].dtype, torch.float64)
    )
    assert seen.alignment is not None and seen.entropy is not None and seen.mass is not None
    if not (seen.alignment == exact["alignment"]).double().mean() > 0.99:
        raise Wrong("alignments differ")
    mine = {"entropy": seen.entropy, "mass": seen.mass}
    return judged(mine, *({name: each[name] for name in mine} for each in (plain, exact)), torch.float32)


def _forward(make: Callable[..., Callable[..., object]], shape: Heads, dtype: str, device: str) -> Passes:
    inputs = [each.detach() for each in shape.inputs(getattr(torch, dtype), device)]
    function = make(shape, device)
    return {"forward": lambda: function(*inputs)}


def _whole_matrix(look: regard.Look, shape: Heads, device: str) -> Callable[..., dict[str, Tensor]]:
    """Attention in plain PyTorch with the full weight matrix, in float32 or float64."""
    table = shape.table(device)

    def run(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        if table is not None:
            scores = scores.masked_fill(~table, -torch.inf)
        weights = torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))
        found = {
            "output": weights.to(value.dtype) @ value,
            "entropy": -torch.special.xlogy(weights, weights).sum(-1),
            "alignment": weights.argmax(-1),
            "mass": weights.sum(-2),
        }
        return {**found, "top": weights.topk(look.top).values} if look.top else found

    return run


def _chosen_to_look(look: regard.Look, shape: Heads, dtype: str, device: str) -> str:
    query, key, value = shape.inputs(getattr(torch, dtype), device)
    found = regard.explain(query, key, value, mask=shape.mask(device), look=look)
    return f"{found.backend}, then {found.looking}"
