"""The report on a corpus: every score of it at once."""

from __future__ import annotations

from collections.abc import Iterable

from regard.evaluation.bleu import References, Score, bleu, checked_sentences, chrf, ter
from regard.evaluation.exact_match import exact_match
from regard.evaluation.moses_bleu import moses_bleu

__all__ = ["evaluate_corpus"]


def evaluate_corpus(
    translations: Iterable[str],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    moses: str | None = None,
) -> list[Score]:
    """BLEU, chrF, TER and exact match of a corpus and, on request, BLEU in the published Moses flavour.

    tokenize: as in bleu(). lowercase: whether BLEU, chrF and exact match ignore case; TER always does, as its
    signature says. moses: the language of the text, or None for no Moses flavour.

    >>> for score in evaluate_corpus(["The cat sat on the mat"], ["the cat sat on a mat"]):
    ...     print(score.name, round(score.value, 1))
    BLEU 34.3
    chrF2 67.7
    TER 16.7
    exact match 0.0
    """
    given, several = checked_sentences("evaluate_corpus()", translations, references)
    found = [
        bleu(given, several, tokenize=tokenize, lowercase=lowercase),
        chrf(given, several, lowercase=lowercase),
        ter(given, several),
        exact_match(given, several, lowercase=lowercase),
    ]
    return found if moses is None else [*found, moses_bleu(given, several, moses)]
