"""The published flavour of BLEU: lower-cased words as the Moses scripts split them, nothing smoothed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable

from regard.errors import ArgumentError, UnknownName, install_command, message
from regard.evaluation.bleu import References, Score, checked_sentences

__all__ = ["moses_bleu", "moses_words"]


def moses_bleu(translations: Iterable[str], references: References, language: str = "en") -> Score:
    """Corpus BLEU as papers on Multi30k report it: of lower-cased, Moses-tokenised text, without smoothing.

    Both sides are lower-cased, their punctuation is normalised (normalize-punctuation.perl -l language) and
    they are split into words (tokenizer.perl -l language; hyphens stay inside words), in this order: what
    the makers of Multi30k did to it. Then BLEU-4 = brevity * (p1 p2 p3 p4)^(1/4) over the corpus, as
    multi-bleu.perl and fairseq compute it: a precision of 0 makes it 0, and of several references the one
    nearest in length counts for brevity.

    translations: plain text, neither tokenised nor escaped. references: one for each, or several lists of
    them. language: of the text, as in moses_words().

    Differs from the papers: sacremoses does what the scripts do, which gives as many words as are published
    for train, val and test 2016 of Multi30k in English, German and French (12,103 for the German test, which
    is the length of the reference that Wu et al. 2021 print beside their 41.02). Signs that the scripts
    escape, as ' to &apos;, stay as they are on both sides, which counts the same. Models that print tokenised
    text had it scored as it was; here every sentence is tokenised anew.

    >>> score = moses_bleu(["Ein Mann, der rennt!"], ["ein Mann , der rennt !"], "de")
    >>> print(f"{score.value:.1f}", score.signature)  # doctest: +ELLIPSIS
    100.0 nrefs:1|case:lc|eff:no|tok:moses-de|norm:moses-de|smooth:none|sacremoses:...|version:...
    """
    from sacrebleu.metrics import BLEU

    given, several = checked_sentences("moses_bleu()", translations, references)
    split = moses_words(language)
    # The words stand apart already; force says so to sacrebleu, which would warn of it.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    ours, theirs = list(map(split, given)), [list(map(split, each)) for each in several]
    score = metric.corpus_score(ours, theirs)
    versions = (f"{name}:{importlib.metadata.version(package)}" for name, package in VERSIONS.items())
    ways = ("case:lc", "eff:no", f"tok:moses-{language}", f"norm:moses-{language}", "smooth:none")
    return Score("Moses BLEU", float(score.score), "|".join((f"nrefs:{len(several)}", *ways, *versions)))


VERSIONS = {"sacremoses": "sacremoses", "version": "sacrebleu"}
"""What a signature ends with: whose version stands behind which word."""


def moses_words(language: str = "en") -> Callable[[str], str]:
    """A function from a sentence to its words in lower case, with spaces between, as the Moses scripts do it.

    language: its code; it decides which abbreviations keep their full stop, and what an apostrophe does.

    >>> moses_words("en")("The dog's well-known “trick”, isn’t it?")
    'the dog \\'s well-known " trick , " isn \\'t it ?'
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError:
        problem, hint = "sacremoses is not installed", install_command("moses")
        raise ArgumentError(message("moses_bleu()", problem, hint=hint)) from None
    # Moses takes English abbreviations for a language it does not know; Japanese and Korean need none.
    known = {*NonbreakingPrefixes().available_langs.values(), "ja", "ko"}
    if language not in known:
        raise UnknownName("language of Moses", language, known)
    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    tokenizer = MosesTokenizer(language)

    def split(sentence: str) -> str:
        return str(tokenizer.tokenize(normalizer.normalize(sentence.lower()), return_str=True, escape=False))

    return split
