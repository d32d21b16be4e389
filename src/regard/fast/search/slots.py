"""The state of a search on preallocated tensors: SearchSlots, and its steps for greedy search and sampling.

GreedySlots gives the results of regard.decoding.greedy, SampleSlots those of regard.decoding.sampling.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, buffer_of, pack, parts_of
from regard.decoding.beam import largest
from regard.decoding.rules import Rules, forbidden_ids
from regard.decoding.sampling import Sample, Seed, random_numbers
from regard.fast.search.decoder import SlotDecoder, resized_rows
from regard.kernels import by_kernel

if TYPE_CHECKING:
    from regard.kernels.search.beam import Candidates

__all__ = [
    "Array",
    "GreedySlots",
    "Outputs",
    "SampleSlots",
    "SearchSlots",
]

Array = np.ndarray[Any, Any]

MOST_CANDIDATES = 32
"""The largest number of tokens per beam for which the Triton kernels are used."""

MOST_BYTES = 2**22
"""Up to this size of their buffer, the results of all slots are copied to the host, not only those needed."""

DTYPES: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
}
"""The NumPy dtypes of the tensors of a search."""


class Outputs(NamedTuple):
    """The N hypotheses of b slots.

    tokens, token_scores: (b, N, T), token ids and log-probabilities, padded with PAD and 0.
    ranking: (b, N), the score that hypotheses are sorted by; see SearchResult.
    readers: the beams that generated each token; 0 for padding. On the CPU or on the device.
    weights: (b, N, T, X, H, S), the attention weights on the device. None if they were not requested.
    """

    tokens: Array
    token_scores: Array
    ranking: Array
    readers: Tensor
    weights: Tensor | None = None


class SearchSlots(ABC):
    """The state of a search in B slots with K beams each, as preallocated tensors that step() changes.

    The tokens of the beams are stored once, as a tree: for each step, the token of each beam and its parent,
    the beam of the step before that it continues. The outputs are read by following the parents back.

    last, parents: (B, K), the newest token of each beam, and its parent.
    count: (B,), the number of tokens that each slot has generated.
    offset: (B,), the number of tokens that the decoder has read before, such as a prompt.
    limits: (B,), the maximum number of tokens of each output.
    done: (B,), whether the output of a slot is complete. A slot that is done does not change any more.
    prefix: (B, P), the tokens that each output must begin with, padded with PAD.
    tokens, links, token_scores: (B, L, K), the tokens of each step, their parents and log-probabilities.
    forbidden: the ids of the tokens that no output may contain; None before the first step.
    barred: (V,), uint8, 1 for these tokens.
    kernels: whether steps use the kernels of kernels/search/beam.py; None before the first step.
    fetched: the names of the tensors that results() reads; their dtype is float32 or int64.
    """

    fetched: tuple[str, ...] = ("tokens", "links", "token_scores", "count")

    def __init__(self, decoder: SlotDecoder, rules: Rules, prefix: int, device: torch.device):
        slots, beams, length = decoder.slots, decoder.beams, decoder.length
        self.decoder, self.rules = decoder, rules
        self.last = torch.full((slots, beams), BOS, device=device)
        self.parents = torch.zeros_like(self.last)
        self.count, self.offset = (torch.zeros(slots, dtype=torch.long, device=device) for _ in range(2))
        self.limits = torch.zeros_like(self.count)
        self.done = torch.ones(slots, dtype=torch.bool, device=device)
        self.prefix = torch.full((slots, prefix), PAD, device=device)
        self.tokens = torch.full((slots, length, beams), PAD, device=device)
        self.links = torch.zeros_like(self.tokens)
        self.token_scores = torch.zeros(slots, length, beams, device=device)
        self.rows = torch.arange(slots, device=device)
        self.forbidden: Tensor | None = None
        self.barred: Tensor | None = None
        self.kernels: bool | None = None

    @property
    def slots(self) -> int:
        """The number of slots, B."""
        return len(self.last)

    def step(self, upto: int) -> None:
        """Extend every output that is not complete by one token.

        upto: all positions of the decoder are smaller than this number.
        """
        inference = self.decoder.in_inference_mode and self.last.device.type == "cpu"
        # nullcontext(), because inference_mode(False) would enable gradients.
        with torch.inference_mode() if inference else nullcontext():
            logits_BKV = self.decoder.step(self.last, self.parents, self.count + self.offset, upto)
            if self.forbidden is None:  # captured steps read these tensors, so that they must be kept
                vocabulary = logits_BKV.shape[-1]
                self.forbidden = forbidden_ids(self.rules.forbidden, vocabulary, logits_BKV.device)
                barred = torch.zeros(vocabulary, dtype=torch.uint8, device=logits_BKV.device)
                self.barred = barred.index_fill_(0, self.forbidden, 1)
            self.select(logits_BKV.contiguous())

    @abstractmethod
    def select(self, logits_BKV: Tensor) -> None:
        """Choose the next tokens, given the logits of the decoder, and store them."""

    @abstractmethod
    def results(self, slots: Tensor, longest: int, attention: bool = False) -> Outputs:
        """Return the N hypotheses of some slots that are done.

        slots: (b,), the slots.
        longest: no slot has generated more tokens than this.
        attention: whether to return the attention weights of the outputs too.
        """

    def start(self, slots: Tensor, first: Tensor, limits: Tensor, prefix: Tensor, offset: int) -> None:
        """Start the search for new sentences, which the decoder has loaded.

        slots: (b,), the slots of these sentences.
        first: (b,), the first input of the decoder: BOS, or the last token of a prompt.
        limits: (b,), the maximum number of tokens of each output.
        prefix: (b, P), the tokens that each output must begin with.
        offset: the number of tokens that the decoder has read already.
        """
        self.last.index_copy_(0, slots, first[:, None].expand(-1, self.last.shape[1]).contiguous())
        self.parents.index_fill_(0, slots, 0)
        self.count.index_fill_(0, slots, 0)
        self.offset.index_fill_(0, slots, offset)
        self.limits.index_copy_(0, slots, limits)
        self.done.index_fill_(0, slots, False)
        if self.prefix.shape[1]:
            self.prefix.index_fill_(0, slots, PAD)
            self.prefix[slots, : prefix.shape[1]] = prefix

    def resized(self, slots: Tensor | None, length: int) -> Self:
        """Return a copy with some of the slots, and with room for another number of positions."""
        other = copy.copy(self)
        other.decoder = self.decoder.resized(slots, length)
        for name in ("tokens", "links", "token_scores"):
            setattr(other, name, resized_rows(getattr(self, name), slots, length, 1))
        if slots is not None:
            for name in self.per_slot():
                setattr(other, name, getattr(self, name).index_select(0, slots))
            other.rows = self.rows[: len(slots)]
        return other

    def per_slot(self) -> tuple[str, ...]:
        """Return the names of the tensors (B, ...) whose size does not depend on the number of positions."""
        return ("last", "parents", "count", "offset", "limits", "done", "prefix")

    def candidates(self, logits: Tensor, count: int) -> Candidates | None:
        """Return the highest logits of each block of the vocabulary, for the kernels of search/beam.py.

        logits: (B, K, V).
        count: the number of tokens for each beam and block.

        Return None if the step runs without these kernels: on a CPU, with many beams, or with prefixes.
        """
        if self.kernels is None:
            self.kernels = not self.prefix.shape[1] and by_kernel(logits) and count <= MOST_CANDIDATES
        if not self.kernels:
            return None
        # Imported here, because it imports Triton.
        from regard.kernels.search.beam import find_candidates

        assert self.barred is not None
        return find_candidates(logits.flatten(0, 1), count, self.barred, self.count, self.rules.minimum, EOS)

    def permitted(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of the next tokens, (B, K, V), -inf for those that the rules forbid.

        logits: (B, K, V).

        For a slot whose prefix has not ended, all tokens except that of the prefix have -inf.
        """
        assert self.forbidden is not None
        own = self.decoder.in_inference_mode and logits.device.type == "cpu"  # no decoder keeps the logits
        scores_BKV, forced_BK1 = logits.float(), self._forced()
        # In place, because memory bandwidth limits it.
        scores_BKV = torch.log_softmax(scores_BKV, -1, out=scores_BKV if own else None)
        alone_BKV = None
        if forced_BK1 is not None:
            score_BK1 = scores_BKV.gather(2, forced_BK1)
            alone_BKV = torch.full_like(scores_BKV, -torch.inf).scatter_(2, forced_BK1, score_BK1)
        scores_BKV.index_fill_(-1, self.forbidden, -torch.inf)
        if self.rules.minimum > 1:
            scores_BKV[:, :, EOS].masked_fill_((self.count < self.rules.minimum - 1)[:, None], -torch.inf)
        if alone_BKV is None or forced_BK1 is None:
            return scores_BKV
        return torch.where(forced_BK1 == PAD, scores_BKV, alone_BKV)

    def _forced(self) -> Tensor | None:
        """Return the next token of the prefix for each beam, (B, K, 1); PAD if the prefix has ended.

        Return None if no slot has a prefix.
        """
        if not self.prefix.shape[1]:
            return None
        inside_B1 = self.count.clamp(max=self.prefix.shape[1] - 1)[:, None]
        token_B1 = self.prefix.gather(1, inside_B1)
        forced_B1 = torch.where(self.count[:, None] < self.prefix.shape[1], token_B1, PAD)
        return forced_B1.expand_as(self.last)[..., None]

    def write_step(self, tokens: Tensor, parents: Tensor, token_scores: Tensor) -> None:
        """Store the tokens (B, K) of this step, their parents and log-probabilities."""
        at = self.rows, self.count
        self.tokens[at], self.links[at], self.token_scores[at] = tokens, parents, token_scores
        self.last.copy_(tokens)
        self.parents.copy_(parents)

    def share_buffer(self) -> None:
        """Put the tensors of fetch() in one buffer, so that one copy moves all of them to the host."""
        parts = pack([getattr(self, name) for name in self.fetched])
        for name, part in zip(self.fetched, parts, strict=True):
            setattr(self, name, part)

    def fetch(self, slots: Tensor, longest: int) -> list[Array]:
        """Return rows of the tensors `fetched` as arrays; `longest` steps of the first three.

        slots: (b,), the slots.

        All tensors are copied from the device at once.
        """
        tensors = [getattr(self, name) for name in self.fetched]
        buffer = buffer_of(tensors)
        if buffer is not None and buffer.numel() <= MOST_BYTES:
            host = torch.empty(buffer.shape, dtype=torch.uint8, pin_memory=buffer.is_cuda).copy_(buffer)
            first = slots.data_ptr() == self.rows.data_ptr()
            index: Any = slice(len(slots)) if first else slots.cpu().numpy()
            tree, rest = (parts_of(host, tensors)[some] for some in (slice(3), slice(3, None)))
            arrays = [np.ascontiguousarray(each.numpy()[index, :longest]) for each in tree]
            return [*arrays, *(each.numpy()[index].copy() for each in rest)]
        tensors[:3] = [each[:, :longest] for each in tensors[:3]]
        picked = [each.index_select(0, slots) for each in tensors]
        if slots.device.type == "cpu":
            return [each.numpy() for each in picked]
        bits = [each.flatten().view(torch.int32) for each in picked]
        joined, result, end = torch.cat(bits).cpu().numpy(), list[Array](), 0
        for each, own in zip(picked, bits, strict=True):
            begin, end = end, end + len(own)
            result.append(joined[begin:end].view(DTYPES[each.dtype]).reshape(each.shape))
        return result


class GreedySlots(SearchSlots):
    """The state of greedy search in B slots, with one beam each."""

    def select(self, logits_BKV: Tensor) -> None:
        candidates = self.candidates(logits_BKV, 1)
        if candidates is not None:
            # Imported here, because it imports Triton.
            from regard.kernels.search.beam import greedy_step

            greedy_step(candidates, self, EOS)
            return
        scores_BV = self.permitted(logits_BKV)[:, 0]
        token_B = self.choose(scores_BV)
        at = self.rows, self.count
        self.tokens[:, :, 0][at] = token_B
        self.token_scores[:, :, 0][at] = scores_BV[self.rows, token_B]
        self.last.copy_(token_B[:, None])  # the only parent is beam 0: `links` and `parents` do not change
        self.count.add_(~self.done)
        self.done.logical_or_((token_B == EOS) | (self.count >= self.limits))

    def choose(self, scores_BV: Tensor) -> Tensor:
        """Return the next token of each slot, (B,), given the log-probabilities of permitted tokens."""
        return largest(scores_BV)

    def results(self, slots: Tensor, longest: int, attention: bool = False) -> Outputs:
        tokens_bL1, _, scores_bL1, count_b = self.fetch(slots, longest)
        length = int(count_b.max(initial=0))
        inside_b1L = np.arange(length) < count_b[:, None, None]
        tokens, scores = (
            np.where(inside_b1L, each[:, :length].transpose(0, 2, 1), 0).astype(each.dtype)
            for each in (tokens_bL1, scores_bL1)
        )  # PAD is 0
        # PyTorch adds in the same order as in greedy_search(); NumPy may not.
        ranking = torch.from_numpy(scores).sum(-1).numpy()
        outputs = tokens, scores, ranking, self._readers(slots, length)
        weights = self.decoder.attention(slots, outputs[-1]) if attention else None
        return Outputs(*outputs, weights)

    def _readers(self, slots: Tensor, length: int) -> Tensor:
        """Return the beams that generated each token, (b, 1, length): there is only beam 0."""
        return torch.zeros(len(slots), 1, length, dtype=torch.int32, device=slots.device)


class SampleSlots(GreedySlots):
    """The state of sampling in B slots. Each slot generates one sample.

    random: (B, L), the random number of each step, for as many steps as the decoder has positions.
    streams: for each slot, the generator of its random numbers.
    """

    def __init__(self, decoder: SlotDecoder, how: Sample, prefix: int, device: torch.device):
        super().__init__(decoder, how.rules, prefix, device)
        self.how, self.kernels = how, False
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

    def choose(self, scores_BV: Tensor) -> Tensor:
        return self.how.draw(scores_BV, self.random.gather(1, self.count[:, None])[:, 0])

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
