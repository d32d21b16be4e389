"""The built-in Korean-English corpus: a small grammar that generates sentence pairs with word alignments.

The modules, from letters to the corpus:

    lexicon    attaches particles to nouns and endings to verbs; the vocabulary
    phrases    parts of a sentence, built in both languages at the same time
    grammar    clauses, by meaning, and the sentences that combine them
    corpus     generates the examples of each split

An object of the class Dice makes all random choices. The words are in lexicon.toml.
"""

from __future__ import annotations

from regard.data.korean.corpus import Example, KoreanEnglish, korean_english

__all__ = ["Example", "KoreanEnglish", "korean_english"]
