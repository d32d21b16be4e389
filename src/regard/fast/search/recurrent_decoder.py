"""RecurrentDecoder: the decoder of any model with a recurrent state, on preallocated tensors."""

from __future__ import annotations

import weakref
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.fast.search.decoder import SlotDecoder
from regard.masks.constructors import padding
from regard.memory import Memory
from regard.models.base import Encoded, Model, State

__all__ = ["RecurrentDecoder"]


class RecurrentDecoder(SlotDecoder):
    """The decoder of a model whose steps do not use the position (see Model.steps_use_position).

    Examples are recurrent decoders. Each step calls Model.step(). The buffers are the hidden state of the
    beams and the encoder output of the slots.

    hidden: the recurrent state, tensors of shape (B K, ...).
    encoded: the encoder output of the B slots.
    """

    stops_at_position = True  # a recurrent decoder has no cache of earlier positions

    def __init__(self, model: Model, slots: int, beams: int, length: int, source_length: int):
        self.model = weakref.ref(model)
        super().__init__(model, slots, beams, length, source_length)
        self.hidden: tuple[Tensor, ...] = ()
        self.encoded: Encoded | None = None
        self.padded = False
        self.first_row: Tensor | None = None

    @classmethod
    def reasons(cls, model: Model) -> list[str]:
        return ["its steps use the position"] if model.steps_use_position else []

    def load(self, slots: Tensor, encoded: Encoded, state: State) -> None:
        if self.encoded is None:
            self._allocate(encoded, state)
        assert self.encoded is not None
        keys = zip(self.encoded.memories, encoded.memories, strict=True)
        for buffer, memory in keys:
            for own, other in ((buffer.key, memory.key), (buffer.value, memory.value)):
                own.index_copy_(0, slots, pad(other, (0, 0, 0, own.shape[-2] - other.shape[-2])))
        self.encoded.lengths.index_copy_(0, slots, encoded.lengths)
        for own, other in zip(self.encoded.first, encoded.first, strict=True):
            own.index_copy_(0, slots, other)
        for own, other in zip(self.hidden, state.hidden, strict=True):
            own.unflatten(0, (self.slots, self.beams))[slots] = other[:, None]

    def step(self, tokens: Tensor, parents: Tensor, position: Tensor, upto: int) -> Tensor:
        model = self.model()
        assert model is not None and self.encoded is not None and self.first_row is not None
        hidden = self.hidden
        if self.beams > 1:
            rows_R = (parents + self.first_row).flatten()
            hidden = tuple(each.index_select(0, rows_R) for each in hidden)
        after, logits_R1V = model.step(State(hidden=hidden), tokens.reshape(-1, 1), self.encoded)
        for own, other in zip(self.hidden, after.hidden, strict=True):
            own.copy_(other)
        return logits_R1V.view(*tokens.shape, -1)

    def resize(self, slots: Tensor | None, before: int) -> None:
        if slots is not None and self.encoded is not None and self.first_row is not None:
            self.first_row = self.first_row[: len(slots)]
            rows_R = (slots[:, None] * self.beams + torch.arange(self.beams, device=slots.device)).flatten()
            self.hidden = tuple(each.index_select(0, rows_R) for each in self.hidden)
            self.encoded = self._with_mask(self.encoded.select(slots))

    def _allocate(self, encoded: Encoded, state: State) -> None:
        """Allocate the buffers, with the shapes and dtypes of the first sentences."""
        self.padded = any(memory.mask.lengths is not None for memory in encoded.memories)
        rows = torch.arange(self.slots, device=encoded.lengths.device)
        self.first_row = rows[:, None] * self.beams
        self.hidden = tuple(each.new_zeros(self.slots * self.beams, *each.shape[1:]) for each in state.hidden)
        lengths = encoded.lengths.new_ones(self.slots)
        first = tuple(each.new_zeros(self.slots, *each.shape[1:]) for each in encoded.first)
        self.encoded = self._with_mask(
            Encoded(lengths, tuple(map(self._empty_memory, encoded.memories)), first)
        )

    def _empty_memory(self, memory: Memory) -> Memory:
        def empty(tensor: Tensor) -> Tensor:
            return tensor.new_zeros(self.slots, *tensor.shape[1:-2], self.source_length, tensor.shape[-1])

        return replace(memory, key=empty(memory.key), value=empty(memory.value))

    def _with_mask(self, encoded: Encoded) -> Encoded:
        """Return the encoder output with masks that read the tensor encoded.lengths."""
        if not self.padded:
            return encoded
        mask = padding(encoded.lengths)
        return replace(encoded, memories=tuple(replace(each, mask=mask) for each in encoded.memories))
