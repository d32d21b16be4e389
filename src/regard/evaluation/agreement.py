"""Agreement of two rankings (Kendall, Spearman), of two distributions (Jensen-Shannon), and of two models.

agreement() measures whether two models, for example with different random seeds, attend to the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy
from numpy.typing import ArrayLike, NDArray

from regard.errors import ArgumentError, message
from regard.roles import CROSS


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


@dataclass(frozen=True)
class Agreement:
    """Agreement of the attention of two models on the same sentence pairs.

    distance: the Jensen-Shannon distance between the weights of the two models, from 0 (equal) to 1
        (disjoint), averaged over target words.
    same: the fraction of target words for which both models attend most to the same source word.
    words: the number of target words that were compared.

    >>> print(Agreement(distance=0.25, same=0.9, words=500))
    both models attend most to the same source word for 90.0 % of 500 target words; distance 0.25
    """

    distance: float
    same: float
    words: int

    def __str__(self) -> str:
        share = f"{100 * self.same:.1f} % of {self.words:,} target words"
        return f"both models attend most to the same source word for {share}; distance {self.distance:.2f}"

    def written(self) -> dict[str, Any]:
        """Return a dict for JSON, for example {"distance": 0.25, "same": 0.9, "words": 500}."""
        return asdict(self)


def agreement(
    one: Any,
    other: Any,
    sources: Iterable[str],
    targets: Iterable[str],
    *,
    at: str = CROSS,
    head: int | None = None,
) -> Agreement:
    """Compare the attention of two translators on the same sentence pairs, for each target word.

    one, other: two Translators. Their tokenizers may differ: weights are summed over the subwords of a word
        before they are compared.
    sources: the source sentence of each pair.
    targets: the target sentence of each pair, the same for both translators.
    at: the attention layers (sites) to compare, by name, with * as wildcard; several are averaged.
    head: the index of the head to compare. Default: the mean over heads.

    A sentence pair is skipped if the two translators split it into different numbers of words.
    """
    left, right = list(sources), list(targets)
    distances, same = [], []
    scored = (translator.score(left, right, look=CROSS) for translator in (one, other))
    for pair in zip(*scored, strict=True):
        first, second = (each.align(at, head).matrix.double().numpy() for each in pair)
        if first.shape != second.shape or not first.size:
            continue
        for ours, theirs in zip(first, second, strict=True):
            distance = jensen_shannon(ours, theirs)
            if not numpy.isnan(distance):
                distances.append(distance)
                same.append(ours.argmax() == theirs.argmax())
    if not distances:
        problem = "there is no target word for which both models recorded attention"
        hint = "use models with attention: bahdanau, luong, lstmn or transformer"
        raise ArgumentError(message("agreement()", problem, hint=hint))
    return Agreement(float(numpy.mean(distances)), float(numpy.mean(same)), len(distances))
