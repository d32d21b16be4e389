"""BLEU on lower-cased, Moses-tokenized text without smoothing, as in papers on Multi30k."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable

from regard.errors import ArgumentError, UnknownName, message
from regard.evaluation.bleu import References, Score, checked_sentences
from regard.files.requirements import install_command

__all__ = ["moses_bleu", "moses_words"]


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
