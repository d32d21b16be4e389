"""HostBeams: select the next beams of beam search on a CPU with NumPy, after the step of the decoder.

The arrays contain a few numbers for each sentence. For arrays of this size, an operation of PyTorch takes 2
to 4 times as long as one of NumPy. The arrays share memory with the tensors of BeamSlots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import EOS

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
        self.tree = [arrays[name] for name in ("tokens", "links", "token_scores")]
        self.ranking, *self.pool = (arrays[name] for name in pool)
        self.divisors: Array = slots.cpu_divisors.numpy()
        self.size, self.best = slots.how.size, slots.how.best
        self.beam_sums: Tensor = slots.sums
        self.rows = np.arange(len(self.done))
        self.column = self.rows[:, None]

    @property
    def fewest_tokens(self) -> int:
        """The smallest vocabulary for step_by_blocks()."""
        return 4 * BLOCK * self.size

    def step_by_blocks(self, scores: Tensor) -> bool:
        """Select the next beams; update the tensors of BeamSlots as BeamSlots.step() does.

        scores: (B, K, V), the log-probabilities of the next tokens, -inf for forbidden ones.

        The 2K + 1 best continuations of a sentence are in the 2K + 1 blocks of tokens with the highest
        maxima, or after the last whole block. The last of them is only compared with the one before.

        Returns False, without changes, if continuations are equally probable, or a log-probability is NaN.
        """
        slots, vocabulary = len(scores), scores.shape[2]
        blocks, count = vocabulary // BLOCK, 2 * self.size
        blocked = scores[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK))
        maxima_BKN = blocked.amax(-1).add_(self.beam_sums[:, :, None])
        best = maxima_BKN.flatten(1).topk(count + 1).indices.numpy()
        beam_BC, block_BC = best // blocks, best % blocks
        value_BCT = blocked.numpy()[self.column, beam_BC, block_BC]
        sums_BCT = value_BCT + self.sums[self.column, beam_BC][..., None]
        value_BN, sums_BN = (each.reshape(slots, -1) for each in (value_BCT, sums_BCT))
        inside, rest = value_BN.shape[1], vocabulary - blocks * BLOCK
        if rest:  # the tokens after the last whole block, of all beams
            value_BKR = scores[..., -rest:].numpy()
            sums_BKR = value_BKR + self.sums[:, :, None]
            value_BN = np.concatenate((value_BN, value_BKR.reshape(slots, -1)), 1)
            sums_BN = np.concatenate((sums_BN, sums_BKR.reshape(slots, -1)), 1)
        highest, places = (each.numpy() for each in torch.from_numpy(sums_BN).topk(count + 1))
        if np.isnan(highest).any() or (highest[:, 1:] == highest[:, :-1]).any():
            return False
        place_BC, sums_BC = places[:, :count], highest[:, :count]
        at_BC = np.minimum(place_BC, inside - 1) // BLOCK
        token_BC = block_BC[self.column, at_BC] * BLOCK + place_BC % BLOCK
        parent_BC = beam_BC[self.column, at_BC]
        if rest:
            after = place_BC - inside
            token_BC = np.where(after < 0, token_BC, blocks * BLOCK + after % rest)
            parent_BC = np.where(after < 0, parent_BC, after // rest)
        self._advance(token_BC, parent_BC, value_BN[self.column, place_BC], sums_BC)
        return True

    def step(self, values: Tensor, tokens: Tensor, vocabulary: int) -> bool:
        """Select the next beams as step_by_blocks() does, but also if continuations are equally probable.

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
        chosen = (token_BC, beam_BC, score_BC, sums_BC)
        if ends_BC.any():
            self._add_finished(*(each[:, :size] for each in (ends_BC, sums_BC, beam_BC, score_BC)))
            next_BK = ends_BC.argsort(1, kind="stable")[:, :size]  # the first K continuations without EOS
            token_BK, beam_BK, score_BK, sums_BK = (each[self.column, next_BK] for each in chosen)
        else:
            token_BK, beam_BK, score_BK, sums_BK = (each[:, :size] for each in chosen)
        for buffer, new in zip(self.tree, (token_BK, beam_BK, score_BK), strict=True):
            buffer[self.rows, self.count] = new
        self.last[:], self.parents[:] = token_BK, beam_BK
        running = ~self.done
        np.copyto(self.sums, sums_BK, where=running[:, None])
        self.count += running
        largest = np.maximum(self.divisors[self.count + 1], self.divisors[self.limits])
        final = self.ranking[:, -1] >= self.sums.max(1) / largest
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
