"""SlotDecoder: the decoder of a model on preallocated tensors, for B slots with K beams each."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from regard.models.base import Encoded, Model, State
from regard.roles import Role

__all__ = ["SlotDecoder", "resized_rows", "write_rows"]

MOST_LOOK_BYTES = {"cpu": 2**28, "cuda": 2**28}
"""The largest size in bytes of SlotDecoder.looks. If it would be larger, a search does not record. On a GPU
with more than 16 GiB, it is LOOK_SHARE of its memory."""

LOOK_SHARE = 1 / 64


class SlotDecoder(ABC):
    """The decoder of a model on preallocated tensors (buffers), for B slots with K beams each.

    A slot decodes one sentence. load() starts a sentence in a slot; the other slots continue. So a finished
    sentence can be replaced by the next one (continuous batching), and the slots can be at different
    positions. step() works in place, calls no host synchronisation and allocates no buffer, so it can be
    captured in a CUDA graph.

    slots: B.
    beams: K.
    length: the number of positions that the buffers have room for.
    source_length: the number of source tokens that the buffers have room for.
    stops_at_position: whether a step reads only positions up to that of each slot, whatever `upto` is.
    in_inference_mode: whether steps on a CPU run in torch.inference_mode(), where operations take less time.
        Then, a step may not keep a tensor that it creates.
    int8: whether the steps can use int8 weights, see Model.int8_steps.
    looks: (B, L, K, X, H, S): the attention weights of all steps at X sites, if record() was called. float32,
        or float16 if the model has half precision.
    heads: H, the number of heads of the attention; None if it has no heads.
    """

    stops_at_position: bool = False
    in_inference_mode: bool = False
    int8: bool = False
    looks: Tensor | None = None
    heads: int | None = None

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        """Allocate the buffers for a model; for the arguments, see the class."""
        self.slots, self.beams, self.length, self.source_length = slots, beams, length, source_length

    @abstractmethod
    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        """Start new sentences.

        slots: (b,), the slots of these sentences.
        encoded: their encoder output.
        state: the decoder state before the first token of the output, with one row for each sentence.
        """

    @abstractmethod
    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        """Let every beam read its next token; return the logits, (B, K, V).

        tokens: (B, K), the token ids.
        parents: (B, K), for each beam, the beam of the previous step that it continues.
        position: (B,), the position of the tokens in each slot.
        upto: all positions are smaller than this number.
        """

    def resized(self, slots: Tensor | None, length: int) -> Self:
        """Return a decoder with some of the slots, and with room for another number of positions.

        slots: (b,), the indices of the slots to keep. None keeps all slots.
        """
        other = copy.copy(self)
        other.slots, other.length = self.slots if slots is None else len(slots), length
        if self.looks is not None:
            other.looks = resized_rows(self.looks, slots, length, 1)
        other.resize(slots, self.length)
        return other

    @abstractmethod
    def resize(self, slots: Tensor | None, before: int) -> None:
        """Resize the other buffers of a copy for resized(). before: the number of positions before."""

    @classmethod
    @abstractmethod
    def reasons(cls, model: Model) -> list[str]:
        """Return why this class does not compute the same as the model; an empty list if it does."""

    @classmethod
    def recordable(cls, model: Model) -> dict[str, Role]:
        """Return the attention layers (sites) whose weights record() stores, and their roles."""
        return {}

    def record(self, sites: int, like: Tensor) -> None:
        """Let every step store its attention weights in `looks`, unless they need too much memory.

        sites: X, the number of sites.
        like: a weight of the model.
        """
        shape = (self.slots, self.length, self.beams, sites, self.heads or 1, self.source_length)
        dtype = torch.float16 if like.itemsize == 2 else torch.float32
        most = float(MOST_LOOK_BYTES["cuda" if like.is_cuda else "cpu"])
        if like.is_cuda:
            most = max(most, LOOK_SHARE * torch.cuda.get_device_properties(like.device).total_memory)
        if dtype.itemsize * math.prod(shape) <= most:
            self.looks = torch.zeros(shape, dtype=dtype, device=like.device)

    def attention(self, slots: Tensor, readers: Tensor) -> Tensor:
        """Return a copy of the attention weights of some outputs, (b, N, T, X, H, S), on the device.

        slots: (b,), the slots.
        readers: (b, N, T), the beam that generated each token of the outputs.
        """
        assert self.looks is not None
        _, length, beams, *sizes = self.looks.shape
        readers = readers.to(self.looks.device)
        steps_bT = slots[:, None] * length + torch.arange(readers.shape[2], device=slots.device)
        index = (steps_bT[:, None] * beams + readers).flatten()
        return self.looks.flatten(0, 2).index_select(0, index).view(*readers.shape, *sizes)

    def refresh(self) -> None:  # noqa: B027  # most decoders read the weights themselves
        """Read the weights of the model again, if the decoder has a rearranged copy of some of them."""


def write_rows(buffer: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write values (b, n, ...) to rows of a buffer (B, N, ...), with zeros for the positions after n.

    rows: (b,), the indices of the rows.
    """
    padded = values.new_zeros(len(values), *buffer.shape[1:], dtype=buffer.dtype)
    padded[:, : values.shape[1]] = values
    buffer.index_copy_(0, rows, padded)


def resized_rows(buffer: Tensor, rows: Tensor | None, length: int, dim: int, fill: float = 0.0) -> Tensor:
    """Return a copy of some rows of a buffer, in which dimension `dim` has another size.

    rows: (b,), the indices of the rows in dimension 0. None keeps all rows.
    length: the new size of dimension `dim`. Added elements have the value `fill`.
    """
    kept = buffer if rows is None else buffer.index_select(0, rows)
    if kept.shape[dim] == length:
        return kept
    sizes = list(kept.shape)
    common, sizes[dim] = min(sizes[dim], length), length
    result = torch.full(sizes, fill, dtype=kept.dtype, device=kept.device)
    result.narrow(dim, 0, common).copy_(kept.narrow(dim, 0, common))
    return result
