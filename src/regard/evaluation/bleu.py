"""Corpus BLEU, chrF, TER and exact match, with sacrebleu. The settings of a metric are its signature.

Only scores with the same signature can be compared.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizers.tokenizer import clean
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.requirements import install_command, pip_command

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


def moses_bleu(translations: Iterable[str], references: References, language: str = "en") -> Score:
    """Compute corpus BLEU as in papers on Multi30k: lower-cased, Moses-tokenized text, without smoothing.

    Translations and references are preprocessed as in Multi30k, in three steps. They are lower-cased. Then
    their punctuation is normalised (normalize-punctuation.perl -l language). Then they are tokenized
    (tokenizer.perl -l language, without splitting hyphens).

    BLEU-4 = brevity * (p1 p2 p3 p4)^(1/4) over the corpus, as in multi-bleu.perl and fairseq. If one of the
    precisions is 0, BLEU is 0. With several references, the brevity penalty uses the reference closest in
    length.

    translations: plain text, neither tokenized nor escaped.
    references: a list with one reference for each translation, or several such lists.
    language: a language code, such as "de"; it decides which abbreviations keep their full stop, and how
        apostrophes are split.

    Differs from the papers:
    - sacremoses replaces the Perl scripts. It finds the published numbers of words in train, val and test
      2016 of Multi30k, in English, German and French. For example, it finds 12,103 words in the German test
      set, the reference length that Wu et al. (2021) print beside their BLEU of 41.02.
    - The Perl scripts escape some characters, for example ' as &apos;. Here neither translations nor
      references are escaped, which gives the same score.
    - If a model outputs tokenized text, papers score this text. Here every translation is tokenized again.

    >>> score = moses_bleu(["Ein Mann, der rennt!"], ["ein Mann , der rennt !"], "de")
    >>> print(f"{score.value:.1f}", score.signature)  # doctest: +ELLIPSIS
    100.0 nrefs:1|case:lc|eff:no|tok:moses-de|norm:moses-de|smooth:none|sacremoses:...|version:...
    """
    from sacrebleu.metrics import BLEU

    hypotheses, several = checked_sentences("moses_bleu()", translations, references)
    split = moses_words(language)
    # force=True: otherwise, sacrebleu warns that the text is already tokenized.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    score = metric.corpus_score(list(map(split, hypotheses)), [list(map(split, each)) for each in several])
    versions = (f"{name}:{importlib.metadata.version(package)}" for name, package in VERSIONS.items())
    settings = ("case:lc", "eff:no", f"tok:moses-{language}", f"norm:moses-{language}", "smooth:none")
    return Score("Moses BLEU", float(score.score), "|".join((f"nrefs:{len(several)}", *settings, *versions)))


VERSIONS = {"sacremoses": "sacremoses", "version": "sacrebleu"}
"""Last fields of a signature -> the Python package whose version the field contains."""


def moses_words(language: str = "en") -> Callable[[str], str]:
    """Return a function that lower-cases, normalises and tokenizes a sentence like the Moses scripts.

    The function returns the words joined by spaces.

    language: a language code; it decides which abbreviations keep their full stop, and how apostrophes are
        split.

    >>> moses_words("en")("The dog's well-known “trick”, isn’t it?")
    'the dog \\'s well-known " trick , " isn \\'t it ?'
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError:
        problem, hint = "sacremoses is not installed", install_command("moses")
        raise ArgumentError(message("moses_bleu()", problem, hint=hint)) from None
    # For an unknown language, Moses would use the list of English abbreviations. Japanese and Korean do not
    # need a list.
    languages = {*NonbreakingPrefixes().available_langs.values(), "ja", "ko"}
    if language not in languages:
        raise UnknownName("language of Moses", language, languages)
    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    tokenizer = MosesTokenizer(language)

    def split(sentence: str) -> str:
        return str(tokenizer.tokenize(normalizer.normalize(sentence.lower()), return_str=True, escape=False))

    return split


def checked_sentences(
    call: str, translations: Iterable[str], references: References
) -> tuple[list[str], list[list[str]]]:
    """Check the arguments of a metric, and return them as lists: (translations, references).

    The returned references are a list of one or more lists; each of these has one reference for each
    translation. Raises ArgumentError or DataError if the arguments cannot be scored.

    call: the name of the function that computes the metric, such as "bleu()", for error messages.
    """
    hypotheses = checked_texts(call, "translations", translations)
    if not hypotheses:
        expected = "at least one translation"
        raise DataError(message(call, "there are no translations to score", expected=expected))
    listed: Any = references if isinstance(references, str) else list(references)
    one_each = all(isinstance(each, str) for each in listed)
    several = [checked_texts(call, "references", each) for each in ([listed] if one_each else listed)]
    for each in several:
        if len(each) != len(hypotheses):
            problem = f"there are {len(hypotheses)} translations, but {len(each)} references"
            expected = "one reference for each translation, in the same order"
            raise DataError(message(call, problem, expected=expected))
    return hypotheses, several


def checked_texts(call: str, name: str, texts: object) -> list[str]:
    """Return several texts as a list. Raise ArgumentError if they are a single text, or not texts.

    call: the name of the function that was called.
    name: what the texts are, such as "translations".
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        problem = f"{name} is a single {type(texts).__name__}"
        raise ArgumentError(message(call, problem, expected="a list of texts", hint="use [text]"))
    listed = list(texts)
    for number, text in enumerate(listed, 1):
        if not isinstance(text, str):
            problem = f"item {number} of {name} is of type {type(text).__name__}"
            raise ArgumentError(message(call, problem, expected="texts as str, not as tokens"))
    return listed


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
    metric = kind(**options)
    score = metric.corpus_score(hypotheses, several)
    return Score(name, float(score.score), str(metric.get_signature()))
