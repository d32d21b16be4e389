"""evaluate_corpus(): compute BLEU, chrF, TER and exact match of a corpus in one call."""

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
    """Compute BLEU, chrF, TER and exact match of a corpus and, if requested, Moses BLEU.

    translations: plain, detokenized text.
    references: a list with one reference for each translation, or several such lists.
    tokenize: the name of the tokenizer that sacrebleu uses for BLEU.
    lowercase: whether BLEU, chrF and exact match ignore case. TER always ignores case.
    moses: the language of the text for moses_bleu(); None disables Moses BLEU.

    >>> for score in evaluate_corpus(["The cat sat on the mat"], ["the cat sat on a mat"]):
    ...     print(score.name, round(score.value, 1))
    BLEU 34.3
    chrF2 67.7
    TER 16.7
    exact match 0.0
    """
    hypotheses, several = checked_sentences("evaluate_corpus()", translations, references)
    scores = [
        bleu(hypotheses, several, tokenize=tokenize, lowercase=lowercase),
        chrf(hypotheses, several, lowercase=lowercase),
        ter(hypotheses, several),
        exact_match(hypotheses, several, lowercase=lowercase),
    ]
    return scores if moses is None else [*scores, moses_bleu(hypotheses, several, moses)]
