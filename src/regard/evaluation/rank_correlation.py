"""Rank correlations (Kendall, Spearman) and the Jensen-Shannon distance."""

from __future__ import annotations

import numpy
from numpy.typing import ArrayLike, NDArray


def kendall(one: ArrayLike, other: ArrayLike) -> float:
    """Compute Kendall's tau-b, the rank correlation with a correction for ties.

    tau = (concordant - discordant) / sqrt((pairs - ties of `one`) (pairs - ties of `other`))

    Each term is a number of pairs of indices (i, j) with i < j. In concordant pairs, the values of `one` and
    `other` have the same order; in discordant pairs, they have opposite orders. Ties are pairs of equal
    values. The result is NaN if all values of one argument are equal.

    >>> kendall([1, 2, 3, 4], [1, 2, 4, 3]), kendall([1, 1], [1, 2])
    (0.6666666666666666, nan)
    """
    order, other_order = (numpy.sign(array[:, None] - array[None]) for array in _arrays(one, other))
    untied, other_untied = (order**2).sum(), (other_order**2).sum()
    if not untied or not other_untied:
        return float("nan")
    return float((order * other_order).sum() / numpy.sqrt(untied * other_untied))


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Compute Spearman's rho, the correlation of the ranks. Equal values get the mean of their ranks.

    The result is NaN if all values of one argument are equal.

    >>> round(spearman([1, 2, 3, 4], [1, 2, 4, 3]), 6)
    0.8
    """
    ranks = [_ranks(each) for each in _arrays(one, other)]
    first, second = (each - each.mean() for each in ranks)
    size = numpy.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / size) if size else float("nan")


def jensen_shannon(one: ArrayLike, other: ArrayLike) -> float:
    """Compute the Jensen-Shannon distance of two distributions, from 0 (equal) to 1 (disjoint).

    distance = sqrt((KL(p, m) + KL(q, m)) / 2) in bits, with m = (p + q) / 2

    p and q are the two arguments, divided by their sums. The result is NaN if one of the sums is 0 or less.

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
    """Return the rank of each value, from 1; equal values get the mean of their ranks."""
    below = (values[None] < values[:, None]).sum(1)
    return below + ((values[None] == values[:, None]).sum(1) + 1) / 2
