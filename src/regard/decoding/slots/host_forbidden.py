"""HostForbidden: forbid tokens in the log-probabilities of a step on a CPU, with few operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.data.batch import EOS

__all__ = ["HostForbidden"]

Array = np.ndarray[Any, Any]

MOST_SLICES = 4
"""The largest number of slices. If the forbidden tokens need more, one array of ids is used instead."""


class HostForbidden:
    """The tokens that no output may contain, and the minimum number of tokens of an output.

    ids: the ids of the forbidden tokens, in ascending order.
    minimum: EOS is forbidden while an output would have fewer tokens than this, with EOS.

    >>> scores = np.zeros((1, 1, 6))
    >>> HostForbidden(np.array([0, 2]), minimum=2).forbid(scores, generated=np.array([0]))
    >>> scores[0, 0]
    array([-inf,   0., -inf, -inf,   0.,   0.])
    """

    def __init__(self, ids: Array, minimum: int):
        self.minimum = minimum
        self.always, self.with_end = _indices(ids), _indices(np.union1d(ids, EOS))

    def forbid(self, scores_BKV: Array, generated: Array) -> None:
        """Set the log-probabilities of forbidden tokens to -inf, in place.

        generated: (B,), the number of tokens of each output.
        """
        all_short = self.minimum > 1 and np.maximum.reduce(generated) + 1 < self.minimum
        for tokens in self.with_end if all_short else self.always:
            scores_BKV[..., tokens] = -np.inf
        if self.minimum > 1 and not all_short:
            scores_BKV[generated + 1 < self.minimum, :, EOS] = -np.inf


def _indices(ids: Array) -> list[Any]:
    """Return ascending token ids as slices, to which NumPy writes faster; many of them as one array."""
    ends = np.flatnonzero(np.diff(ids) > 1) + 1
    if len(ends) >= MOST_SLICES:
        return [ids]
    return [slice(int(each[0]), int(each[-1]) + 1) for each in np.split(ids, ends) if len(each)]
