"""Measure whether two translation models attend to the same source words.

For example, the two models can be trained with different random seeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy

from regard.errors import ArgumentError, message
from regard.evaluation.rank_correlation import jensen_shannon
from regard.roles import CROSS


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
