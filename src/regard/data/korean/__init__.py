"""The built-in Korean-English corpus: a small grammar of two languages that knows which word says which.

hangul takes syllables apart; particles and conjugation glue endings on; words and predicates are the lexicon;
phrases, nominals, clauses, actions, errands, reasons and descriptions build the pieces of a sentence in both
languages at once; grammar puts them together, and corpus numbers and splits the sentences.

The grammar has two versions. Only Dice of version 2 make the choices that version 2 added, so version 1 still
produces exactly the sentences that it produced before version 2 existed.
"""

from __future__ import annotations

from regard.data.korean.corpus import Example, KoreanEnglish, korean_english

__all__ = ["Example", "KoreanEnglish", "korean_english"]
