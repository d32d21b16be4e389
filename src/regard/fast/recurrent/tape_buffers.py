"""Buffers for the intermediate results of all steps of a neural Turing machine, with views of single steps.

tape_steps.py uses these buffers. Dimensions: Z models (one for each seed), T steps, B sequences, H heads, N
slots of size M. E = Z * B is the number of tapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.layers.tape_heads import MOST_BETA, MOST_GAMMA, HeadLayout, HeadParts

__all__ = [
    "Activations",
    "Saved",
    "activations",
    "each_step",
    "flat",
    "sharpness_limits",
    "step_views",
    "summed",
]


class Saved(NamedTuple):
    """The results of the forward pass that the backward pass needs. For the symbols, see Tape.

    Inside the forward and backward passes, the shape of a field is (T, Z, B, ...). Between them, it is
    (Z, T, B, ...). G is the size of all gates of the controller together. P is the number of head parameters.

    gates: the activations of the gates of the LSTM controller, G columns. No columns if the controller is a
        tanh layer.
    cells: c_t, the cell state of the LSTM.
    hidden: h_t, the output of the controller.
    reads: r_t, the output of the read heads.
    parts: the head parameters after their activations, P columns.
    lengths: |M(i)| before the step, N columns.
    scores: beta K[k, M(i)].
    content: w_c.
    gated: w_g.
    logs: log(w~ + SMALLEST).
    weights: w.
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
"""Number of fields of Saved that belong to the controller: `gates` to `parts`.

Views of these fields keep Z and B as two dimensions, because each of the Z models has its own weight
matrices.
"""


def step_views(buffers: Sequence[Tensor]) -> list[Saved]:
    """Return, for each of T steps, views of the buffers.

    The first CONTROLLER_BUFFERS buffers belong to the controller; their views have the shape (Z, B, ...). The
    other buffers belong to the tape; their views have the shape (E, ...) with E = Z * B. All views are
    created before the loop over the steps: one unbind() of a buffer is faster than a slice at each step.

    buffers: the fields of Saved, with T as the first dimension.
    """
    merged = [
        each if place < CONTROLLER_BUFFERS else each.flatten(1, 2) for place, each in enumerate(buffers)
    ]
    return [Saved(*row) for row in zip(*(each.unbind(0) for each in merged), strict=False)]


def each_step(layout: HeadLayout, values_TZBP: Tensor) -> list[HeadParts]:
    """Return, for each of T steps, views of the head parameters, (E, ...) with E = Z * B.

    values_TZBP: the head parameters of all steps, P columns.
    """
    parts, steps = layout.parts(values_TZBP.flatten(1, 2)), len(values_TZBP)
    columns = [[None] * steps if each is None else each.unbind(0) for each in parts]
    return [HeadParts(*row) for row in zip(*columns, strict=True)]


def flat(tensor: Tensor) -> Tensor:
    """Merge the first two dimensions of a tensor (Z, B, ...). It is copied only if the strides need it."""
    return tensor.flatten(0, 1)


class Activations(NamedTuple):
    """Views of the head parameters, grouped by activation function.

    Each field is a list with one view for each step. A view has the shape (Z, B, ...). For the symbols, see
    Tape.

    add: a (tanh).
    opened: e and g (sigmoid).
    sharp: beta and gamma (softplus).
    shift: s (softmax), with the shifts as the last dimension.
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
    """Return two tensors that limit beta and gamma to the ranges [0, MOST_BETA] and [1, MOST_GAMMA].

    Both tensors have one element for each column of beta and gamma. The first tensor has the lower limits, 0
    for beta and 1 for gamma; it is added to the softplus, which is positive. The second tensor has the upper
    limits.

    like: a tensor with the dtype and the device of the result.
    """
    heads = layout.heads
    kinds = ((0.0, MOST_BETA),) * layout.content + ((1.0, MOST_GAMMA),) * layout.location
    offset, most = (torch.cat([like.new_full((heads,), kind[place]) for kind in kinds]) for place in (0, 1))
    return offset, most


def summed(left_TZBK: Tensor, right_TZBG: Tensor) -> Tensor:
    """Return the matrix products of left (transposed) and right, summed over time and batch, (Z, K, G)."""
    left, right = (each.transpose(0, 1).flatten(1, 2) for each in (left_TZBK, right_TZBG))
    return torch.bmm(left.transpose(1, 2), right)
