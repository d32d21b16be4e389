"""Buffers of all steps of a neural Turing machine, and views of them for each step; see tape_steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.layers.tape_heads import MOST_BETA, MOST_GAMMA, HeadLayout, HeadParts

__all__ = ["Activations", "Saved", "activations", "each_step", "flat", "sharpness_limits", "step_views"]


class Saved(NamedTuple):
    """The buffers of the forward pass, each (Z, T, B, ...), so that vmap can split its first dimension.

    gates: the activations of the LSTM, G columns (0 for a tanh layer).
    cells: c_t. hidden: h_t. reads: r_t.
    parts: the head parameters after their activations, P columns.
    lengths: |M(i)| before the step, N columns.
    scores, content: beta K[k, M(i)] and w_c. gated: w_g. logs: log(w~ + SMALLEST). weights: w.
    memory: M before each step, and after the last one: (Z, T + 1, B, N, M).
    """

    gates: Tensor
    cells: Tensor
    hidden: Tensor
    reads: Tensor
    parts: Tensor
    lengths: Tensor
    scores: Tensor
    content: Tensor
    gated: Tensor
    logs: Tensor
    weights: Tensor
    memory: Tensor


CONTROLLER_BUFFERS = 5
"""The first buffers, which are used with weights of each model, keep the dimensions Z and B."""


def step_views(buffers: Sequence[Tensor]) -> list[Saved]:
    """Return the views of each step: (Z, B, ...) for the controller, (E, ...) for the tape, E = Z * B.

    buffers: T first. One unbind() is faster than a slice at each step.
    """
    merged = [
        each if place < CONTROLLER_BUFFERS else each.flatten(1, 2) for place, each in enumerate(buffers)
    ]
    return [Saved(*row) for row in zip(*(each.unbind(0) for each in merged), strict=False)]


def each_step(layout: HeadLayout, values_TZBP: Tensor) -> list[HeadParts]:
    """Return the head parameters of each step, (E, ...), as views."""
    parts, steps = layout.parts(values_TZBP.flatten(1, 2)), len(values_TZBP)
    columns = [[None] * steps if each is None else each.unbind(0) for each in parts]
    return [HeadParts(*row) for row in zip(*columns, strict=True)]


def flat(tensor: Tensor) -> Tensor:
    """Merge the dimensions Z and B of (Z, B, ...) without a copy where the strides allow it."""
    return tensor.flatten(0, 1)


class Activations(NamedTuple):
    """Views of head parameters with equal activations, for each step: (Z, B, ...).

    sharp: beta and gamma. opened: e and g. shift: s, with the shifts as the last dimension.
    """

    add: tuple[Tensor, ...]
    opened: tuple[Tensor, ...]
    sharp: tuple[Tensor, ...]
    shift: tuple[Tensor, ...]


def activations(layout: HeadLayout, values_TZBP: Tensor) -> Activations:
    places = layout.slices
    opened = slice(places["erase"].start, places["gate"].stop)
    sharp = slice(places["beta"].start, places["gamma"].stop)
    shift = values_TZBP[..., places["shift"]].unflatten(-1, (-1, layout.shifts))
    plain = (values_TZBP[..., each] for each in (places["add"], opened, sharp))
    return Activations(*(each.unbind(0) for each in (*plain, shift)))


def sharpness_limits(layout: HeadLayout, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is added to softplus for beta and gamma, and their upper limits."""
    heads = layout.heads
    kinds = ((0.0, MOST_BETA),) * layout.content + ((1.0, MOST_GAMMA),) * layout.location
    offset, most = (torch.cat([like.new_full((heads,), kind[place]) for kind in kinds]) for place in (0, 1))
    return offset, most
