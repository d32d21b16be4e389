"""SearchSlots: the state of a search on preallocated tensors; base class of BeamSlots and GreedySlots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD
from regard.decoding.rules import Rules, forbidden_ids
from regard.decoding.slots.candidates import Forbidden, next_tokens, uses_kernel
from regard.decoding.slots.decoder import SlotDecoder, resized_rows

if TYPE_CHECKING:
    from regard.kernels.search.beam import Candidates

__all__ = [
    "Array",
    "EarlyOutputs",
    "Outputs",
    "SearchSlots",
    "Sources",
    "follow",
    "trimmed",
    "with_attention",
]

Array = np.ndarray[Any, Any]

Sources = tuple[Tensor, Tensor]
"""The index of the sentence of each slot, (b,), and the number of source tokens of each sentence."""


class Outputs(NamedTuple):
    """The N hypotheses of b slots.

    tokens, token_scores: (b, N, T), token ids and log-probabilities, padded with PAD and 0.
    ranking: (b, N), the score that hypotheses are sorted by; see SearchResult.
    readers: the beams that generated each token; 0 for padding. On the CPU or on the device. Like `weights`,
        it may have more than T positions.
    weights: (b, N, T, X, H, S), the attention weights on the device. None if they were not requested.
    aligned: a function that returns the alignments of copy_and_align(), (b, N, T), int32, on the device or as
        an array, and waits for them if necessary. None if there are no weights, or if no Triton kernels are
        used.
    waited: whether the host has waited for the weights after aligned() has returned.

    The arrays may be views of a buffer that is reused; see EarlyOutputs.
    """

    tokens: Array
    token_scores: Array
    ranking: Array
    readers: Tensor
    weights: Tensor | None = None
    aligned: Callable[[], Tensor | Array] | None = None
    waited: bool = False


class EarlyOutputs(NamedTuple):
    """The outputs of b slots of which only some are done.

    wait: a function that waits for the device, and returns for each slot whether it is done.
    select: a function that returns the outputs of some slots that are done, by their places among the b
        slots; None selects all. Call it after wait(), and before the next call of early_results(), which
        overwrites the arrays.
    """

    wait: Callable[[], list[int]]
    select: Callable[[list[int] | None], Outputs]


def with_attention(
    outputs: tuple[Array, Array, Array, Tensor],
    weights: Tensor,
    aligned: Tensor | Array | None,
    waited: bool = False,
) -> Outputs:
    """Return outputs with attention weights and alignments that were already computed; see Outputs."""
    return Outputs(*outputs, weights, None if aligned is None else lambda: aligned, waited)


TRIMMED = 1.5
"""Attention weights that have room for more than this many times the tokens of the outputs are trimmed."""

DTYPES: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
}
"""The NumPy dtypes of the tensors of a search."""


class SearchSlots(ABC):
    """The state of a search in B slots with K beams each, as preallocated tensors that step() changes.

    The tokens of the beams are stored once, as a tree: for each step, the token of each beam and its parent,
    the beam of the step before that it continues. follow() follows the parents back.

    last, parents: (B, K), the newest token of each beam, and its parent.
    count: (B,), the number of tokens that each slot has generated.
    offset: (B,), the number of tokens that the decoder has read before, such as a prompt.
    limits: (B,), the maximum number of tokens of each output.
    done: (B,), whether the output of a slot is complete. A slot that is done does not change any more.
    prefix: (B, P), the tokens that each output must begin with, padded with PAD.
    tokens, links, token_scores: (B, L, K), the tokens of each step, their parents and log-probabilities.
    forbidden: the tokens that no output may contain; None before the first step.
    kernels: whether steps use the kernels of search/candidates.py and beam.py; None before the first step.
    """

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
        self.forbidden: Forbidden | None = None
        self.kernels: bool | None = None

    @property
    def slots(self) -> int:
        """The number of slots, B."""
        return len(self.last)

    @abstractmethod
    def step(self, upto: int) -> None:
        """Extend every output that is not complete by one token.

        upto: all positions of the decoder are smaller than this number.
        """

    @abstractmethod
    def results(self, slots: Tensor, longest: int, sources: Sources | None = None) -> Outputs:
        """Return the N hypotheses of some slots that are done.

        slots: (b,), the slots.
        longest: no slot has generated more tokens than this.
        sources: the sentences of the slots. If given, the attention weights of the outputs are returned too.
        """

    def early_results(
        self, slots: Tensor, longest: int, sources: Sources | None = None
    ) -> EarlyOutputs | None:
        """Return the hypotheses of the slots that are done, before it is known which of them are.

        For the arguments, see results(). On a GPU, all work except copies of large attention weights is
        launched before the host waits for the steps, so that it waits only once: see EarlyOutputs.wait.

        Return None if this is not supported.
        """
        return None

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
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
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

    def logits(self, upto: int) -> Tensor:
        """Run a step of the decoder; return the logits of the next tokens, (B, K, V)."""
        position_B = self.count + self.offset
        inference = self.decoder.in_inference_mode and position_B.device.type == "cpu"
        # nullcontext(), because inference_mode(False) would enable gradients.
        with torch.inference_mode() if inference else nullcontext():
            logits_BKV = self.decoder.step(self.last, self.parents, position_B, upto).contiguous()
        if self.forbidden is None:  # captured steps read these tensors, so that they must be kept
            vocabulary = logits_BKV.shape[-1]
            ids = forbidden_ids(self.rules.forbidden, vocabulary, logits_BKV.device)
            self.forbidden = Forbidden.tokens(ids, vocabulary)
        return logits_BKV

    def candidates(self, logits: Tensor, count: int) -> Candidates | None:
        """Return the highest logits of each block of the vocabulary, for the kernels of search/beam.py.

        logits: (B, K, V).
        count: the number of tokens for each beam and block.

        Return None if the step runs without these kernels: on a CPU, with many beams, or with prefixes.
        """
        if self.kernels is None:
            self.kernels = not self.prefix.shape[1] and uses_kernel(logits, count)
        if not self.kernels:
            return None
        # Imported here, because it imports Triton.
        from regard.kernels.search.beam import find_candidates

        assert self.forbidden is not None
        options = self.forbidden.flags, self.count, self.rules.minimum, EOS
        return find_candidates(logits.flatten(0, 1), count, *options)

    def next_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and ids of the next tokens, (B, K, C).

        logits: (B, K, V).

        The results include the `count` most probable tokens that the rules permit. For a slot whose prefix
        has not ended, only the token of the prefix has a log-probability above -inf.
        """
        assert self.forbidden is not None
        forced_BK = self._forced() if self.prefix.shape[1] else None
        value_BKC, token_BKC, score_BK = next_tokens(
            logits, count, self.forbidden, self.count, self.rules.minimum, forced_BK
        )
        if forced_BK is not None and score_BK is not None:
            free = forced_BK[..., None] == PAD
            others = torch.full_like(value_BKC[..., 1:], -torch.inf)
            value_BKC = torch.where(free, value_BKC, torch.cat((score_BK[..., None], others), -1))
            token_BKC = torch.where(free, token_BKC, forced_BK[..., None])
        return value_BKC, token_BKC

    def _forced(self) -> Tensor:
        """Return the next token of the prefix for each beam, (B, K); PAD if the prefix has ended."""
        inside_B1 = self.count.clamp(max=self.prefix.shape[1] - 1)[:, None]
        token_B1 = self.prefix.gather(1, inside_B1)
        return torch.where(self.count[:, None] < self.prefix.shape[1], token_B1, PAD).expand_as(self.last)

    def write_step(self, tokens: Tensor, parents: Tensor, token_scores: Tensor) -> None:
        """Store the tokens (B, K) of this step, their parents and log-probabilities."""
        self.tokens[self.rows, self.count] = tokens
        self.links[self.rows, self.count] = parents
        self.token_scores[self.rows, self.count] = token_scores
        self.last.copy_(tokens)
        self.parents.copy_(parents)

    def fetch(self, slots: Tensor, longest: int, *names: str, also: Sequence[Tensor] = ()) -> list[Array]:
        """Return rows of `tokens`, `links` and `token_scores`, then of other tensors, as arrays.

        slots: (b,), the slots.
        longest: the number of steps of the first three tensors.
        names: the names of the other tensors, whose dtype is float32 or int64.
        also: further tensors, whose dtype is int32, which are returned last.

        All tensors are copied from the device at once.
        """
        if slots.device.type == "cpu":
            index: Array = slots.numpy()
            arrays = [each.numpy()[index, :longest] for each in (self.tokens, self.links, self.token_scores)]
            return [*arrays, *(getattr(self, name).numpy()[index] for name in names), *map(np.asarray, also)]
        tree = (each[:, :longest] for each in (self.tokens, self.links, self.token_scores))
        picked = [each.index_select(0, slots) for each in (*tree, *(getattr(self, name) for name in names))]
        picked += also
        bits = [each.flatten().view(torch.int32) for each in picked]
        joined, result, end = torch.cat(bits).cpu().numpy(), list[Array](), 0
        for each, own in zip(picked, bits, strict=True):
            begin, end = end, end + len(own)
            result.append(joined[begin:end].view(DTYPES[each.dtype]).reshape(each.shape))
        return result


def trimmed(weights: Tensor, length: int) -> Tensor:
    """Return attention weights (b, N, T, ...) without the positions after `length`, if they are many.

    If they are few, the copy would take more time than they are worth.
    """
    return weights if weights.shape[2] <= length * TRIMMED else weights[:, :, :length].contiguous()


def follow(tree: Sequence[Array], steps: Array, beams: Array, room: int = 0) -> tuple[Array, Array, Array]:
    """Return tokens, log-probabilities and readers of some outputs, (b, N, L), padded with PAD, 0 and 0.

    tree: tokens, links and token_scores, (b, T, K), as in SearchSlots.
    steps: (b, N), the number of tokens of each output; L is the largest, plus `room`.
    beams: (b, N), the beam of each output after its last token.

    For readers, see Outputs.
    """
    tokens, links, token_scores = tree
    length, beam, (sentences, longest, size) = int(steps.max(initial=0)), beams, links.shape
    first_b1 = np.arange(sentences)[:, None] * longest
    path, readers = (np.zeros((length, *steps.shape), np.int64) for _ in range(2))
    for at in range(length - 1, -1, -1):
        path[at] = place = (first_b1 + at) * size + beam
        readers[at] = reader = links.take(place)
        beam = np.where(at < steps, reader, beam)
    inside = np.arange(length)[:, None, None] < steps
    path = np.where(inside, path, 0)
    results = []
    for values in (tokens.take(path), token_scores.take(path), readers):
        result = np.zeros((*steps.shape, length + room), values.dtype)  # PAD is 0
        np.copyto(result[..., :length], values.transpose(1, 2, 0), where=inside.transpose(1, 2, 0))
        results.append(result)
    return results[0], results[1], results[2]
