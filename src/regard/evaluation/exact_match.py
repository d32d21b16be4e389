"""Exact match: how many hypotheses are equal to a reference."""

from __future__ import annotations

from collections.abc import Iterable

from regard.data.tokenizers.normalize import clean
from regard.evaluation.bleu import References, Score, checked_sentences

__all__ = ["exact_match"]


def exact_match(translations: Iterable[str], references: References, *, lowercase: bool = False) -> Score:
    """The percentage of hypotheses that are equal to a reference, 0 to 100, higher is better.

    The score for tasks with one right answer: dates, numbers, labels. references: one for each hypothesis, or
    several lists of them, of which any may match. Both sides are compared as tokenizers read them: composed
    characters (NFC), and one space for each run of white space. lowercase: ignore case.

    >>> exact_match(["2021-03-03", "2021-03-30"], ["2021-03-03", "2021-03-03"]).value
    50.0
    """
    hypotheses, several = checked_sentences("exact_match()", translations, references)

    def normalised(text: str) -> str:
        return clean(text.lower() if lowercase else text)

    matches = sum(
        normalised(hypothesis) in map(normalised, right)
        for hypothesis, *right in zip(hypotheses, *several, strict=True)
    )
    signature = f"nrefs:{len(several)}|case:{'lc' if lowercase else 'mixed'}|space:normalised"
    return Score("exact match", 100.0 * matches / len(hypotheses), signature)
