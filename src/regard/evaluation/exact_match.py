"""Exact match: the percentage of translations that are equal to a reference."""

from __future__ import annotations

from collections.abc import Iterable

from regard.data.tokenizers.tokenizer import clean
from regard.evaluation.bleu import References, Score, checked_sentences

__all__ = ["exact_match"]


def exact_match(translations: Iterable[str], references: References, *, lowercase: bool = False) -> Score:
    """Compute the percentage of translations that are equal to a reference, 0 to 100, higher is better.

    Use this score for tasks with one correct answer, such as dates, numbers or labels. Translations and
    references are normalised before the comparison: Unicode NFC, and consecutive white space becomes one
    space.

    references: a list with one reference for each translation, or several such lists. With several lists, a
        translation is correct if it equals one of its references.
    lowercase: ignore case.

    >>> exact_match(["2021-03-03", "2021-03-30"], ["2021-03-03", "2021-03-03"]).value
    50.0
    """
    hypotheses, several = checked_sentences("exact_match()", translations, references)

    def normalised(text: str) -> str:
        return clean(text.lower() if lowercase else text)

    matches = sum(
        normalised(hypothesis) in map(normalised, references_of_it)
        for hypothesis, *references_of_it in zip(hypotheses, *several, strict=True)
    )
    signature = f"nrefs:{len(several)}|case:{'lc' if lowercase else 'mixed'}|space:normalised"
    return Score("exact match", 100.0 * matches / len(hypotheses), signature)
