"""SampleSlots: one step of sampling on preallocated tensors. Same results as regard.decoding.sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import EOS, PAD
from regard.decoding.sampling import Sample, Seed, random_numbers
from regard.decoding.slots.candidates import forbid
from regard.decoding.slots.decoder import SlotDecoder, resized_rows
from regard.decoding.slots.greedy_slots import GreedySlots

__all__ = ["SampleSlots"]


class SampleSlots(GreedySlots):
    """The state of sampling in B slots. Each slot generates one sample.

    random: (B, L), the random number of each step, for as many steps as the decoder has positions.
    streams: for each slot, the generator of its random numbers.
    """

    def __init__(self, decoder: SlotDecoder, how: Sample, prefix: int, device: torch.device):
        super().__init__(decoder, how.rules, prefix, device)
        self.how = how
        self.random = torch.zeros(self.slots, decoder.length, device=device)
        self.streams: list[np.random.Generator | None] = [None] * self.slots

    def seed(self, slots: Sequence[int], seeds: Sequence[Seed]) -> None:
        """Generate the random numbers of new sentences, from the beginning.

        slots: the slots of these sentences.
        seeds: their random seeds.
        """
        for slot, seed in zip(slots, seeds, strict=True):
            self.streams[slot] = np.random.default_rng(seed)
        self._add_numbers(slots, 0)

    def step(self, upto: int) -> None:
        scores_B1V = self.logits(upto).float().log_softmax(-1)
        permitted_B1V = scores_B1V.clone()
        assert self.forbidden is not None
        forbid(permitted_B1V, self.forbidden, self.count, self.rules.minimum)
        chance_B = self.random.gather(1, self.count[:, None])[:, 0]
        token_B1 = self.how.draw(permitted_B1V[:, 0], chance_B)[:, None]
        if self.prefix.shape[1]:
            forced_B1 = self._forced()
            token_B1 = torch.where(forced_B1 == PAD, token_B1, forced_B1)
        self.write_step(token_B1, self.parents, scores_B1V[:, 0].gather(1, token_B1))
        self.count.add_(~self.done)
        self.done.logical_or_((token_B1[:, 0] == EOS) | (self.count >= self.limits))

    def per_slot(self) -> tuple[str, ...]:
        return (*super().per_slot(), "random")

    def resized(self, slots: Tensor | None, length: int) -> Self:
        other, before = super().resized(slots, length), self.random.shape[1]
        kept = range(self.slots) if slots is None else slots.tolist()
        other.streams = [self.streams[slot] for slot in kept]
        if length > before:
            other.random = resized_rows(other.random, None, length, 1)
            other._add_numbers([at for at, stream in enumerate(other.streams) if stream is not None], before)
        return other

    def _add_numbers(self, slots: Sequence[int], first: int) -> None:
        """Generate the random numbers of some slots from step `first` on."""
        streams = [stream for slot in slots if (stream := self.streams[slot]) is not None]
        numbers = random_numbers(streams, self.random.shape[1] - first)
        rows = torch.tensor(slots, dtype=torch.long).to(self.random.device)
        self.random[rows, first:] = numbers.to(self.random.device)
