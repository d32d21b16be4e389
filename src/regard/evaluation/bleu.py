"""Corpus BLEU, chrF and TER, computed by sacrebleu. The settings of a metric are the signature of a score.

Only scores with the same signature can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.requirements import pip_command

__all__ = ["TOKENIZERS", "References", "Score", "bleu", "checked_sentences", "chrf", "ter"]

TOKENIZERS = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
"""The tokenizers for BLEU: all tokenizers of sacrebleu that need no download of a model."""

References = Iterable[str] | Iterable[Iterable[str]]


@dataclass(frozen=True)
class Score:
    """The score of a corpus, for example its BLEU.

    name: the name of the metric, for example "BLEU".
    value: the score.
    signature: the settings of the metric as text, for example "nrefs:1|case:mixed" for one reference and
        case-sensitive comparison. Only scores with the same signature can be compared.

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
    """Compute corpus BLEU (Papineni et al. 2002): n-gram precision up to 4-grams, 0 to 100, higher is better.

    translations: plain, detokenized text.
    references: a list with one reference for each translation, or several such lists.
    tokenize: one of TOKENIZERS. "13a" is the standard for European languages. "ko-mecab" and "ja-mecab" need
        optional packages of sacrebleu. "char" works for Korean without them.
    lowercase: ignore case.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on a mat"]).value.__round__(2)
    53.73
    """
    from sacrebleu.metrics import BLEU

    if tokenize not in TOKENIZERS:
        raise UnknownName("tokenizer of BLEU", tokenize, TOKENIZERS)
    try:
        # force=True: otherwise, sacrebleu warns about tokenized text. The score is the same.
        options = {"tokenize": tokenize, "lowercase": lowercase, "force": True}
        return _scored("bleu()", BLEU, options, "BLEU", translations, references)
    except RuntimeError:
        extra = tokenize.partition("-")[0]
        hint = f"use tokenize='char', or {pip_command(f'sacrebleu[{extra}]')}"
        raise ArgumentError(
            message("bleu()", f"the tokenizer '{tokenize}' is not installed", hint=hint)
        ) from None


def chrf(
    translations: Iterable[str], references: References, *, words: int = 0, lowercase: bool = False
) -> Score:
    """Compute corpus chrF2 (Popović 2015): character n-gram F-score (n up to 6), 0 to 100, higher is better.

    chrF needs no tokenizer, so it suits Korean well.

    translations: plain, detokenized text.
    references: a list with one reference for each translation, or several such lists.
    words: the maximum order of word n-grams, which count in addition to character n-grams; 2 gives chrF++.
    lowercase: ignore case.

    >>> chrf(["고양이가 앉았다"], ["고양이가 앉았다"]).value
    100.0
    """
    from sacrebleu.metrics import CHRF

    if words < 0:
        raise ArgumentError(message("chrf()", f"words is {words}", expected="0 or more; 2 for chrF++"))
    name = "chrF2" + "+" * words
    options = {"word_order": words, "lowercase": lowercase}
    return _scored("chrf()", CHRF, options, name, translations, references)


def ter(translations: Iterable[str], references: References) -> Score:
    """Compute corpus TER (Snover et al. 2006): edits per reference word in percent, lower is better.

    translations: plain, detokenized text.
    references: a list with one reference for each translation, or several such lists.

    >>> ter(["the cat sat"], ["the cat sits"]).value.__round__(2)
    33.33
    """
    from sacrebleu.metrics import TER

    return _scored("ter()", TER, {}, "TER", translations, references)


def checked_sentences(
    call: str, translations: Iterable[str], references: References
) -> tuple[list[str], list[list[str]]]:
    """Check the arguments of a metric, and return them as lists: (translations, references).

    The returned references are a list of one or more lists; each of these has one reference for each
    translation. Raises ArgumentError or DataError if the arguments cannot be scored.

    call: the name of the function that computes the metric, such as "bleu()", for error messages.
    """
    if isinstance(translations, str) or isinstance(references, str):
        problem = f"{'translations' if isinstance(translations, str) else 'references'} is a single str"
        raise ArgumentError(message(call, problem, expected="a list of sentences", hint="use [text]"))
    hypotheses, listed = list(translations), list(references)
    one_each = all(isinstance(each, str) for each in listed)
    several: list[list[Any]] = [listed] if one_each else [list(each) for each in listed]
    if not hypotheses:
        raise DataError(
            message(call, "there are no translations to score", expected="at least one translation")
        )
    for each in several:
        if len(each) != len(hypotheses):
            problem = f"there are {len(hypotheses)} translations, but {len(each)} references"
            raise DataError(
                message(call, problem, expected="one reference for each translation, in the same order")
            )
    for kind, sentences in (("translation", hypotheses), *(("reference", each) for each in several)):
        for number, sentence in enumerate(sentences, 1):
            if not isinstance(sentence, str):
                problem = f"{kind} {number} is of type {type(sentence).__name__}"
                raise ArgumentError(message(call, problem, expected="sentences as str, not as tokens"))
    return hypotheses, several


def _scored(
    call: str,
    kind: Any,
    options: dict[str, Any],
    name: str,
    translations: Iterable[str],
    references: References,
) -> Score:
    """Return the score of a metric of sacrebleu: its class and its options."""
    hypotheses, several = checked_sentences(call, translations, references)
    metric = _metric(kind, tuple(options.items()), tuple(map(tuple, several)))
    score = metric.corpus_score(hypotheses, None)
    return Score(name, float(score.score), str(metric.get_signature()))


@lru_cache(maxsize=4)
def _metric(kind: Any, options: tuple[tuple[str, Any], ...], references: tuple[tuple[str, ...], ...]) -> Any:
    """Return a metric of sacrebleu that has counted the n-grams of the references.

    Cached: evaluations during training use the same references each time.
    """
    return kind(**dict(options), references=[list(each) for each in references])
