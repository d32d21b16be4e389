"""Agreement: whether two models, the same but for their seeds say, look at the same words."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy

from regard.errors import ArgumentError, message
from regard.evaluation.erasure import CROSS
from regard.evaluation.faithfulness import Translates
from regard.evaluation.rank_correlation import jensen_shannon

__all__ = ["Agreement", "agreement"]


@dataclass(frozen=True)
class Agreement:
    """How alike two models look at source words while they say the same target words.

    distance: the mean Jensen-Shannon distance of their weights, 0 for the same and 1 for nothing shared.
    same: of how many target words, as a share, both look most at one source word.

    >>> print(Agreement(distance=0.25, same=0.9, words=500))
    both look most at the same word for 90.0 % of 500 words; distance 0.25
    """

    distance: float
    same: float
    words: int

    def __str__(self) -> str:
        share = f"{100 * self.same:.1f} % of {self.words:,} words"
        return f"both look most at the same word for {share}; distance {self.distance:.2f}"

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def agreement(
    one: Translates,
    other: Translates,
    sources: Iterable[str],
    targets: Iterable[str],
    *,
    at: str = CROSS,
    head: int | None = None,
) -> Agreement:
    """Compare what two translators look at for the same pairs, word by word.

    at, head: whose attention counts, in both. Words are those between spaces, so that tokenizers may differ;
    pairs of which either reads another number of words are left out.
    """
    left, right = list(sources), list(targets)
    distances, same = [], []
    for first, second in zip(*(_weights(each, left, right, at, head) for each in (one, other)), strict=True):
        if first.shape != second.shape or not first.size:
            continue
        for ours, theirs in zip(first, second, strict=True):
            distance = jensen_shannon(ours, theirs)
            if not numpy.isnan(distance):
                distances.append(distance)
                same.append(ours.argmax() == theirs.argmax())
    if not distances:
        problem = "there is no word that both looked at something for"
        raise ArgumentError(message("agreement()", problem, hint="bahdanau, luong and transformer look"))
    return Agreement(float(numpy.mean(distances)), float(numpy.mean(same)), len(distances))


def _weights(
    translator: Translates, sources: list[str], targets: list[str], at: str, head: int | None
) -> Any:
    """The weights (target words, source words) of each pair."""
    looking = copy.copy(translator)
    looking.look = CROSS
    return [each.align(at, head).matrix.double().numpy() for each in looking.score(sources, targets)]
