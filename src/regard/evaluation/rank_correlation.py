"""How alike two rankings, or two ways to spread attention, are: Kendall, Spearman, Jensen and Shannon."""

from __future__ import annotations

import numpy
from numpy.typing import ArrayLike, NDArray

__all__ = ["jensen_shannon", "kendall", "spearman"]


def kendall(one: ArrayLike, other: ArrayLike) -> float:
    """Kendall's tau-b: the pairs that both put in one order, less those that they do not, ties allowed for.

    tau = (concordant - discordant) / sqrt((pairs - ties of one) (pairs - ties of other)); NaN where one of
    them tells no two things apart.

    >>> kendall([1, 2, 3, 4], [1, 2, 4, 3]), kendall([1, 1], [1, 2])
    (0.6666666666666666, nan)
    """
    ahead, behind = (numpy.sign(each[:, None] - each[None]) for each in _arrays(one, other))
    of_one, of_other = (ahead**2).sum(), (behind**2).sum()
    if not of_one or not of_other:
        return float("nan")
    return float((ahead * behind).sum() / numpy.sqrt(of_one * of_other))


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's rho: the correlation of ranks, equal values sharing theirs; NaN where one has a single rank.

    >>> round(spearman([1, 2, 3, 4], [1, 2, 4, 3]), 6)
    0.8
    """
    ranks = [_ranks(each) for each in _arrays(one, other)]
    first, second = (each - each.mean() for each in ranks)
    size = numpy.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / size) if size else float("nan")


def jensen_shannon(one: ArrayLike, other: ArrayLike) -> float:
    """The Jensen-Shannon distance of two distributions: 0 for the same, 1 for those that share nothing.

    sqrt((KL(p, m) + KL(q, m)) / 2) in bits, m = (p + q) / 2. What is given is made to sum to 1 first; NaN
    where there is nothing to share out.

    >>> jensen_shannon([0.5, 0.5], [1, 1]), jensen_shannon([1, 0], [0, 3])
    (0.0, 1.0)
    """
    p, q = _arrays(one, other)
    if p.sum() <= 0 or q.sum() <= 0:
        return float("nan")
    p, q = p / p.sum(), q / q.sum()
    mean = (p + q) / 2
    divergence = sum((each[each > 0] * numpy.log2(each[each > 0] / mean[each > 0])).sum() for each in (p, q))
    return float(numpy.sqrt(max(divergence / 2, 0.0)))


def _arrays(one: ArrayLike, other: ArrayLike) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64]]:
    return numpy.asarray(one, dtype=numpy.float64), numpy.asarray(other, dtype=numpy.float64)


def _ranks(values: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """The rank of each value from 1 on; equal ones have the mean of theirs."""
    below = (values[None] < values[:, None]).sum(1)
    return below + ((values[None] == values[:, None]).sum(1) + 1) / 2
