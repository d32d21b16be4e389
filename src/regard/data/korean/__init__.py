"""The built-in Korean-English corpus: a small grammar that generates sentence pairs with word alignments.

The modules, from letters to the corpus:

    lexicon    attaches particles to nouns and endings to verbs; the vocabulary
    grammar    phrases, clauses and sentences, built in both languages at the same time
    corpus     generates the examples of each split

An object of the class Dice makes all random choices. The words are in lexicon.toml.
"""

from __future__ import annotations

from regard.data.korean.corpus import Example, KoreanEnglish, korean_english

__all__ = ["Example", "KoreanEnglish", "korean_english"]
