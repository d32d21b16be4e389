"""One step of beam search on a CPU, after the decoder: selects the next beams with NumPy.

The arrays have a few numbers for each sentence. For arrays of this size, an operation of PyTorch takes 2 to 4
times as long as one of NumPy. The arrays share memory with the tensors of BeamSlots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.data.batch import EOS

if TYPE_CHECKING:
    from regard.decoding.slots.beam_slots import BeamSlots

__all__ = ["HostBeams"]

Array = np.ndarray[Any, Any]


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
        self.rows = np.arange(len(self.done))
        self.column = self.rows[:, None]

    def step(self, values: Tensor, tokens: Tensor, vocabulary: int) -> bool:
        """Select the next beams; update the tensors of BeamSlots as BeamSlots.step() does.

        values, tokens: (B, K, C), log-probabilities and ids of the next tokens of each beam.
        vocabulary: the number of tokens.

        Returns False, without changes, if a log-probability is NaN.
        """
        size, count = self.size, values.shape[2]
        value_BN, token_BN = (each.reshape(len(self.rows), -1).numpy() for each in (values, tokens))
        sums_BN = (self.sums[:, :, None] + value_BN.reshape(values.shape)).reshape(value_BN.shape)
        if np.isnan(sums_BN).any():
            return False
        place_BC = _highest(sums_BN, token_BN, count, vocabulary, 2 * size)
        flat_BC = place_BC + self.column * value_BN.shape[1]
        beam_BC = place_BC // count
        token_BC, score_BC, sums_BC = (each.take(flat_BC) for each in (token_BN, value_BN, sums_BN))
        ends_BC = token_BC == EOS
        chosen = (token_BC, beam_BC, score_BC, sums_BC)
        if ends_BC.any():
            first = (each[:, :size] for each in (ends_BC, sums_BC, beam_BC, score_BC))
            self._add_finished(*first)
            next_BK = ends_BC.argsort(1, kind="stable")[:, :size]  # the first K continuations without EOS
            flat_BK = next_BK + self.column * ends_BC.shape[1]
            token_BK, beam_BK, score_BK, sums_BK = (each.take(flat_BK) for each in chosen)
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
        return True

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
    """Return the places of the `count` highest sums of each row, in descending order, (B, count).

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
