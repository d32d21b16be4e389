"""HostBeams: select the next beams of beam search on a CPU with NumPy, after the step of the decoder.

The arrays contain a few numbers for each sentence. For arrays of this size, an operation of PyTorch takes 2
to 4 times as long as one of NumPy. The arrays share memory with the tensors of BeamSlots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.data.batch import EOS
from regard.decoding.slots.host_forbidden import HostForbidden

if TYPE_CHECKING:
    from regard.decoding.slots.beam_slots import BeamSlots

__all__ = ["HostBeams"]

Array = np.ndarray[Any, Any]

BLOCK = 64
"""Number of tokens of a block. step_by_blocks() first computes the maximum of each block."""


class HostBeams:
    """Views of the tensors of BeamSlots on a CPU, for B slots with K beams."""

    def __init__(self, slots: BeamSlots):
        names = ("last", "parents", "count", "limits", "done", "sums", "tokens", "links", "token_scores")
        pool = ("pool_ranking", "pool_steps", "pool_beams", "pool_scores")
        arrays: dict[str, Array] = {name: getattr(slots, name).numpy() for name in (*names, *pool)}
        self.last, self.parents, self.count, self.limits = (arrays[name] for name in names[:4])
        self.done, self.sums = arrays["done"], arrays["sums"]
        steps = arrays["tokens"].shape[1]
        self.tree = [arrays[name].reshape(-1, slots.how.size) for name in ("tokens", "links", "token_scores")]
        self.ranking, *self.pool = (arrays[name] for name in pool)
        self.divisors: Array = slots.cpu_divisors.numpy()
        self.size, self.best = slots.how.size, slots.how.best
        self.beam_sums, self.sums_BK1 = self.sums.reshape(-1), self.sums[:, :, None]
        self.rows = np.arange(len(self.done))
        self.first_step = self.rows * steps  # the index of the first step of each slot in `tree`
        self.column, self.index_C = self.rows[:, None], np.arange(2 * self.size)
        assert slots.forbidden is not None
        self.forbidden = HostForbidden(slots.forbidden.ids.numpy(), slots.rules.minimum)

    @property
    def fewest_tokens(self) -> int:
        """The smallest vocabulary for step_by_blocks(): 2K blocks, because the first step has one beam."""
        return 2 * BLOCK * self.size

    def step_by_blocks(self, scores: Tensor) -> bool:
        """Select the next beams; update the tensors of BeamSlots as BeamSlots.step() does.

        scores: (B, K, V), the log-probabilities of the next tokens, contiguous. Those of forbidden tokens are
            set to -inf.

        Let `lowest` be the 2K-th highest of the maxima of all blocks of a sentence. At least 2K continuations
        have a sum of at least `lowest`. So the 2K best ones are in blocks whose maximum is at least `lowest`,
        or after the last whole block.

        Returns False if a log-probability is NaN; scores and the tensors of BeamSlots are then not changed.
        """
        slots, beams, vocabulary = scores.shape
        blocks, count, scores_BKV = vocabulary // BLOCK, 2 * self.size, scores.numpy()
        # This code calls methods of arrays and ufuncs, because functions such as np.nonzero() take longer.
        # In each row, either all elements are NaN or none is.
        if np.isnan(np.maximum.reduce(scores_BKV[..., 0], None)):
            return False
        self.forbidden.forbid(scores_BKV, self.count)
        whole = scores if vocabulary == blocks * BLOCK else scores[..., : blocks * BLOCK]
        blocks_BKNT = whole.view(slots, beams, blocks, BLOCK)
        maxima_BKN = blocks_BKNT.amax(-1).numpy()
        maxima_BKN += self.sums_BK1
        ordered_BN = maxima_BKN.reshape(slots, -1).copy()
        ordered_BN.partition(-count, 1)
        lowest_B = ordered_BN[:, -count]
        place_n = (maxima_BKN >= lowest_B[:, None, None]).reshape(-1).nonzero()[0]
        row_n, block_n = np.divmod(place_n, blocks)
        sums_nT = blocks_BKNT.numpy().reshape(-1, blocks, BLOCK)[row_n, block_n]
        sums_nT += self.beam_sums[row_n, None]
        found_m = (sums_nT >= lowest_B[row_n // beams, None]).reshape(-1).nonzero()[0]
        at_m, inside_m = np.divmod(found_m, BLOCK)
        sums_m, place_m = sums_nT.take(found_m), row_n[at_m] * vocabulary + block_n[at_m] * BLOCK + inside_m
        if blocks * BLOCK < vocabulary:
            sums_m, place_m = self._with_rest(scores_BKV, blocks * BLOCK, lowest_B, sums_m, place_m)
        # Candidates are in the order of sentence, beam and token; a stable sort keeps it for equal sums.
        if slots == 1:
            order_BC = (-sums_m).argsort(kind="stable")[None, :count]
        else:
            sentence_m = place_m // (beams * vocabulary)
            order_m = np.lexsort((-sums_m, sentence_m))
            order_BC = order_m[sentence_m.searchsorted(self.column) + self.index_C]
        place_BC = place_m[order_BC]
        row_BC, token_BC = np.divmod(place_BC, vocabulary)
        self._advance(token_BC, row_BC % beams, scores_BKV.take(place_BC), sums_m[order_BC])
        return True

    def _with_rest(
        self, scores_BKV: Array, begin: int, lowest_B: Array, sums_m: Array, place_m: Array
    ) -> tuple[Array, Array]:
        """Add the candidates after the last whole block, from token `begin` on; see step_by_blocks().

        sums_m, place_m: the candidates in the blocks: their log-probabilities, and their indices in the
            flattened scores_BKV.
        """
        slots, beams, vocabulary = scores_BKV.shape
        sums_BKR = scores_BKV[..., begin:] + self.sums_BK1
        row_r, token_r = np.nonzero((sums_BKR >= lowest_B[:, None, None]).reshape(slots * beams, -1))
        if not len(row_r):
            return sums_m, place_m
        place_m = np.concatenate((place_m, row_r * vocabulary + begin + token_r))
        sums_m = np.concatenate((sums_m, sums_BKR.reshape(slots * beams, -1)[row_r, token_r]))
        order_m = place_m.argsort()
        return sums_m[order_m], place_m[order_m]

    def step(self, values: Tensor, tokens: Tensor, vocabulary: int) -> bool:
        """Select the next beams as step_by_blocks() does, given only some continuations of each beam.

        values, tokens: (B, K, C), log-probabilities and ids of the most probable next tokens of each beam.
        vocabulary: the number of tokens.

        Returns False, without changes, if a log-probability is NaN.
        """
        count = values.shape[2]
        value_BN, token_BN = (each.reshape(len(self.rows), -1).numpy() for each in (values, tokens))
        sums_BN = (self.sums[:, :, None] + value_BN.reshape(values.shape)).reshape(value_BN.shape)
        if np.isnan(sums_BN).any():
            return False
        place_BC = _highest(sums_BN, token_BN, count, vocabulary, 2 * self.size)
        token_BC, score_BC, sums_BC = (each[self.column, place_BC] for each in (token_BN, value_BN, sums_BN))
        self._advance(token_BC, place_BC // count, score_BC, sums_BC)
        return True

    def _advance(self, token_BC: Array, beam_BC: Array, score_BC: Array, sums_BC: Array) -> None:
        """Update the tensors of BeamSlots, given the 2K most probable continuations of each sentence.

        token_BC, beam_BC, score_BC, sums_BC: (B, 2K), their last tokens, the beams they continue, the
            log-probabilities of the last tokens, and of the whole continuations, in descending order.
        """
        size, ends_BC = self.size, token_BC == EOS
        chosen = [token_BC, beam_BC, score_BC, sums_BC]
        if np.logical_or.reduce(ends_BC, None):
            self._add_finished(*(each[:, :size] for each in (ends_BC, sums_BC, beam_BC, score_BC)))
            next_BK = ends_BC.argsort(1, kind="stable")[:, :size]  # the first K continuations without EOS
            token_BK, beam_BK, score_BK, sums_BK = [each[self.column, next_BK] for each in chosen]
        else:
            token_BK, beam_BK, score_BK, sums_BK = [each[:, :size] for each in chosen]
        place_B = self.first_step + self.count
        for buffer, new in zip(self.tree, (token_BK, beam_BK, score_BK), strict=True):
            buffer[place_B] = new
        self.last[:], self.parents[:] = token_BK, beam_BK
        running = ~self.done
        np.copyto(self.sums, sums_BK, where=running[:, None])
        self.count += running
        largest = np.maximum(self.divisors[self.count + 1], self.divisors[self.limits])
        final = self.ranking[:, -1] >= np.maximum.reduce(self.sums, 1) / largest
        self.done |= final | (self.count >= self.limits)

    def _add_finished(self, ends: Array, sums: Array, beams: Array, scores: Array) -> None:
        """Add continuations that end with EOS to the pool; see BeamSlots._add_finished()."""
        ranking_BK = sums / self.divisors[self.count + 1][:, None]
        ranking_BK[~ends | self.done[:, None]] = -np.inf
        ranking_BN = np.concatenate((self.ranking, ranking_BK), 1)
        place = (-ranking_BN).argsort(1, kind="stable")[:, : self.best]
        place += self.column * ranking_BN.shape[1]
        self.ranking[:] = ranking_BN.take(place)
        steps_BK = np.broadcast_to(self.count[:, None], beams.shape)
        for pool, new in zip(self.pool, (steps_BK, beams, scores), strict=True):
            pool[:] = np.concatenate((pool, new), 1).take(place)


def _highest(sums_BN: Array, token_BN: Array, per_beam: int, vocabulary: int, count: int) -> Array:
    """Return the indices of the `count` highest sums of each row, in descending order, (B, count).

    If sums are equal, the lower beam comes first, then the lower token.

    per_beam: the number of continuations of each beam.
    """
    place = (-sums_BN).argsort(1, kind="stable")
    columns = np.arange(len(place))[:, None]
    first = sums_BN[columns, place[:, : count + 1]]
    if (first[:, 1:] == first[:, :-1]).any():
        order_BN = token_BN + vocabulary * (np.arange(sums_BN.shape[1]) // per_beam)
        place = np.lexsort((order_BN, -sums_BN), axis=1)
    return place[:, :count]
