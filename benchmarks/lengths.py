"""Time and memory by sequence length, forward and backward, with the same number of tokens at every length.

Sequences longer than that number run alone. A peer stops at the length where it would need more memory than
the device has, or take seconds.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.additive import COMPILED_COPIES, EAGER_COPIES, Shape, gate, passes
from benchmarks.cases import Case, Passes, Peer
from benchmarks.dot import MATERIALISED_COPIES, Heads, eager_of, ours
from benchmarks.dot import gate as dot_gate
from benchmarks.dot import passes as dot_passes

__all__ = ["LENGTHS", "additive_lengths", "dot_lengths"]

LENGTHS = tuple(2**power for power in range(7, 17))
TOKENS = 1 << 14
COMPILED = (512, 2048, 8192)
"""Lengths at which torch.compile is measured; it compiles for seconds at each."""


def additive_lengths(
    lengths: tuple[int, ...] = LENGTHS, width: int = 128, device: str = "cuda", tokens: int = TOKENS
) -> Case:
    """Return the case of additive attention in bfloat16."""
    copies = {"eager": EAGER_COPIES, "torch.compile": COMPILED_COPIES, "regard": 0.0}
    peers = []
    for name in copies:
        for length in lengths if name != "torch.compile" else [n for n in COMPILED if n in lengths]:
            shape = Shape(max(1, tokens // length), length, length, width)
            make = partial(_both, partial(passes, name, shape, torch.bfloat16, device))
            turn = 1 if name == "torch.compile" else 0
            holds = copies[name] * shape.elements * 2
            peers.append(Peer(name, make, "bfloat16", length, name == "regard", turn, holds, shape.elements))
    judged = Shape(2, min(512, lengths[-1]), min(512, lengths[-1]), width)
    return Case(
        f"Additive attention, forward and backward, D=E={width}, bfloat16, T=S, "
        f"{tokens:,} tokens in sequences of this length, or one sequence",
        tuple(peers),
        lambda peer: gate(judged, getattr(torch, peer.dtype), device),
    )


def dot_lengths(
    lengths: tuple[int, ...] = LENGTHS,
    heads: int = 16,
    width: int = 64,
    device: str = "cuda",
    tokens: int = TOKENS,
) -> Case:
    """Return the case of causal scaled dot-product attention in bfloat16."""
    peers = []
    for name, way in (("eager", eager_of), ("regard", partial(ours, "auto"))):
        for length in lengths:
            shape = Heads(max(1, tokens // length), heads, length, width, "causal")
            make = partial(_both, partial(dot_passes, way, shape, "bfloat16", device))
            holds = MATERIALISED_COPIES * shape.materialised if name == "eager" else 0.0
            peers.append(Peer(name, make, "bfloat16", length, name == "regard", 0, holds, shape.pairs))
    judged = Heads(1, 1, min(512, lengths[-1]), width, "causal")
    return Case(
        f"Causal scaled dot attention, forward and backward, H={heads} D=E={width}, bfloat16, "
        f"{tokens:,} tokens in sequences of this length, or one sequence",
        tuple(peers),
        lambda peer: dot_gate(judged, getattr(torch, peer.dtype), device),
    )


def _both(make: partial[Passes]) -> Passes:
    return {"both": make()["both"]}
