"""BLEU-1 to BLEU-4 of captions without brevity penalty, as in Show, Attend and Tell (Xu et al. 2015)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from regard.evaluation.bleu import Score
from regard.evaluation.caption_words import (
    CAPTION_TOKENS,
    Ngram,
    checked_captions,
    checked_references,
    count_ngrams,
)

__all__ = ["caption_bleu"]

ORDER = 4


def caption_bleu(
    captions: Iterable[str], references: Iterable[Iterable[str]]
) -> tuple[Score, Score, Score, Score]:
    """Compute BLEU-1, 2, 3 and 4 of captions without brevity penalty, each 0 to 100, higher is better.

    BLEU-N = (p_1 ... p_N)^(1/N), with p_n the n-gram precision over all captions (Papineni et al. 2002,
    section 2.1.1). An n-gram that occurs several times in a caption is counted at most k times, where k is
    the largest number of times that it occurs in one reference of the image. There is no brevity penalty, as
    in Xu et al. 2015 (section 5), so a short caption is not penalised. Compare these scores only with scores
    without brevity penalty. For BLEU with the penalty, use bleu().

    captions: one caption for each image.
    references: for each image, a list of one or more references. This differs from bleu(), where each list
        has one reference for every translation.

    There is no smoothing: if no n-gram of length N matches, BLEU-N is 0. caption_words() splits captions.

    >>> for score in caption_bleu(["a dog runs fast"], [["a dog is running fast", "the dog runs"]]):
    ...     print(f"{score.name} {score.value:.2f}")
    BLEU-1 100.00
    BLEU-2 81.65
    BLEU-3 0.00
    BLEU-4 0.00
    """
    call = "caption_bleu()"
    listed = checked_references(call, references)
    hypotheses = checked_captions(call, captions, len(listed))
    matched, total = [0] * ORDER, [0] * ORDER
    for words, several in zip(hypotheses, listed, strict=True):
        most: list[Counter[Ngram]] = [Counter() for _ in range(ORDER)]
        for reference in several:
            for maximum, counts in zip(most, count_ngrams(reference, ORDER), strict=True):
                maximum |= counts
        for order, counts in enumerate(count_ngrams(words, ORDER)):
            matched[order] += (counts & most[order]).total()
            total[order] += counts.total()
    precisions = [part / whole if whole else 0.0 for part, whole in zip(matched, total, strict=True)]
    fewest, largest = min(map(len, listed)), max(map(len, listed))
    number = str(largest) if fewest == largest else f"{fewest}-{largest}"
    signature = f"nrefs:{number}|{CAPTION_TOKENS}|bp:no|smooth:none"
    one, two, three, four = (
        Score(f"BLEU-{order}", 100 * _mean(precisions[:order]), signature) for order in range(1, ORDER + 1)
    )
    return one, two, three, four


def _mean(precisions: list[float]) -> float:
    """Return the geometric mean of n-gram precisions; 0 if one of them is 0."""
    return math.prod(precisions) ** (1 / len(precisions))
