"""The built-in Korean-English corpus: a small grammar that generates sentence pairs with word alignments.

hangul splits and joins syllables; particles and conjugation attach endings; lexicon and predicates are the
vocabulary; phrases, nominals, clauses, actions, errands, reasons and descriptions build parts of a sentence
in both languages at once; grammar combines them to sentences, and corpus assigns these to splits.

The grammar has two versions. Only Dice of version 2 make the choices that version 2 added, so version 1 still
generates exactly the sentences that it generated before version 2 existed.
"""

from __future__ import annotations

from regard.data.korean.corpus import Example, KoreanEnglish, korean_english

__all__ = ["Example", "KoreanEnglish", "korean_english"]
