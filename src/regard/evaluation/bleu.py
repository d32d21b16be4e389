"""BLEU, chrF and TER of a corpus, by sacrebleu, each with the signature that says how it was computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regard.errors import ArgumentError, DataError, UnknownName, message

__all__ = ["TOKENIZERS", "References", "Score", "bleu", "checked_sentences", "chrf", "ter"]

TOKENIZERS = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
"""The ways to split words for BLEU; those of sacrebleu that fetch a model from the network are left out."""

References = Iterable[str] | Iterable[Iterable[str]]


@dataclass(frozen=True)
class Score:
    """One number for a corpus, with its signature: only numbers with the same signature can be compared.

    >>> print(Score("BLEU", 27.314, "nrefs:1|case:mixed"))
    BLEU 27.31  nrefs:1|case:mixed
    """

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}  {self.signature}"


def bleu(
    translations: Iterable[str], references: References, *, tokenize: str = "13a", lowercase: bool = False
) -> Score:
    """Corpus BLEU (Papineni et al. 2002): precision of 1 to 4 words in a row, 0 to 100, higher is better.

    translations: plain text, as people write it. references: one for each, or several lists of them.
    tokenize: one of TOKENIZERS; "13a" is what papers use for European languages, "ko-mecab" and "ja-mecab"
    need sacrebleu's extras, and "char" is what can be had for Korean without them.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on a mat"]).value.__round__(2)
    53.73
    """
    from sacrebleu.metrics import BLEU

    if tokenize not in TOKENIZERS:
        raise UnknownName("tokenizer of BLEU", tokenize, TOKENIZERS)
    try:
        # Without force, sacrebleu warns of text that is tokenized already; it scores the same.
        metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    except RuntimeError:
        extra = tokenize.partition("-")[0]
        hint = f"pip install sacrebleu[{extra}], or take tokenize='char'"
        raise ArgumentError(message("bleu()", f"'{tokenize}' is not installed", hint=hint)) from None
    return _scored("bleu()", metric, "BLEU", translations, references)


def chrf(
    translations: Iterable[str], references: References, *, words: int = 0, lowercase: bool = False
) -> Score:
    """Corpus chrF2 (Popović 2015): F-score of 1 to 6 characters in a row, 0 to 100, higher is better.

    It needs no tokenizer, so it suits Korean well. words: 2 gives chrF++, with words in a row too.
    lowercase: whether capital letters count as small ones.

    >>> chrf(["고양이가 앉았다"], ["고양이가 앉았다"]).value
    100.0
    """
    from sacrebleu.metrics import CHRF

    if words < 0:
        raise ArgumentError(message("chrf()", f"words is {words}", expected="0, or 2 for chrF++"))
    name = "chrF2" + "+" * words
    return _scored("chrf()", CHRF(word_order=words, lowercase=lowercase), name, translations, references)


def ter(translations: Iterable[str], references: References) -> Score:
    """Corpus TER (Snover et al. 2006): edits for each word of the reference, in percent, lower is better.

    >>> ter(["the cat sat"], ["the cat sits"]).value.__round__(2)
    33.33
    """
    from sacrebleu.metrics import TER

    return _scored("ter()", TER(), "TER", translations, references)


def checked_sentences(
    call: str, translations: Iterable[str], references: References
) -> tuple[list[str], list[list[str]]]:
    """The translations, and lists of references with one for each; what is no such thing is refused."""
    if isinstance(translations, str) or isinstance(references, str):
        raise ArgumentError(message(call, "a text alone", expected="lists of sentences", hint="[text]"))
    given, held = list(translations), list(references)
    one_each = all(isinstance(each, str) for each in held)
    several: list[list[Any]] = [held] if one_each else [list(each) for each in held]
    if not given:
        raise DataError(message(call, "there is nothing to score", expected="at least one translation"))
    for each in several:
        if len(each) != len(given):
            problem = f"{len(given)} translations against {len(each)} references"
            raise DataError(message(call, problem, expected="one for each, in the same order"))
    for kind, sentences in (("translation", given), *(("reference", each) for each in several)):
        for number, sentence in enumerate(sentences, 1):
            if not isinstance(sentence, str):
                problem = f"{kind} {number} is no text but {type(sentence).__name__}"
                raise ArgumentError(message(call, problem, expected="sentences as text, not as tokens"))
    return given, several


def _scored(call: str, metric: Any, name: str, translations: Iterable[str], references: References) -> Score:
    score = metric.corpus_score(*checked_sentences(call, translations, references))
    return Score(name, float(score.score), str(metric.get_signature()))
