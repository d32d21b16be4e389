"""Suggest a tokenizer for training pairs: "character" for strings such as dates, "unigram" for sentences."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizers.tokenizer import clean, sides

READ, SAMPLE = 200_000, 4000
"""At most READ pairs are read, and at most SAMPLE of them are examined.

The examined pairs are taken at equal distances, because files may be sorted."""

FEWEST = 20
"""Minimum number of pairs for a decision. For fewer pairs, "unigram" is suggested."""

MOST_WORDS = 1.5
"""If the sources (or targets) have more words than this on average, they are sentences, not strings."""

LONG_STRING, LONG_LINE = 40, 80
"""Maximum median length in characters of the sources (or targets) for which "character" is suggested.

The limit is LONG_STRING for non-ASCII text with a large alphabet, and LONG_LINE for other text. Training on
longer sequences of characters takes too long."""

ENDS = (".", "!", "?", "…", "。", "！", "？")
"""Final punctuation of sentences."""

SMALL_ALPHABET = 30
"""If the sources have at most this many distinct characters, "character" may be suggested for any length.

Examples are nucleotides and digits."""

WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE")
"""Writing systems that do not separate words by spaces.

Each is identified by the first word in the Unicode names of its letters: HIRAGANA for "HIRAGANA LETTER A"."""


@dataclass(frozen=True)
class _Side:
    """Statistics of the source lines, or of the target lines, of the examined pairs.

    words: mean number of words per line.
    length: median number of characters per line.
    alphabet: number of distinct characters.
    distinct: fraction of distinct lines.
    unseen: fraction of unseen words. The distinct lines are divided into two halves; a word of one half is
        unseen if it does not occur in the other half.
    symbols: fraction of characters that are digits or punctuation.
    spaceless: fraction of characters of writing systems without spaces between words (WITHOUT_SPACES).
    ended: fraction of lines that end with final punctuation.
    ascii: whether all characters are ASCII.
    """

    words: float
    length: int
    alphabet: int
    distinct: float
    unseen: float
    symbols: float
    spaceless: float
    ended: float
    ascii: bool

    @classmethod
    def of(cls, lines: list[str]) -> _Side:
        distinct = list(dict.fromkeys(lines))
        vocabulary = {word for line in distinct[::2] for word in line.split()}
        others = [word for line in distinct[1::2] for word in line.split()]
        letters = "".join(lines).replace(" ", "") or " "
        alphabet = set(letters)
        symbols = {letter for letter in alphabet if unicodedata.category(letter)[0] in "NPS"}
        spaceless = {letter for letter in alphabet if unicodedata.name(letter, "").startswith(WITHOUT_SPACES)}
        return cls(
            words=sum(line.count(" ") + 1 for line in lines) / len(lines),
            length=sorted(map(len, lines))[len(lines) // 2],
            alphabet=len(alphabet),
            distinct=len(distinct) / len(lines),
            unseen=sum(word not in vocabulary for word in others) / max(len(others), 1),
            symbols=sum(letter in symbols for letter in letters) / len(letters),
            spaceless=sum(letter in spaceless for letter in letters) / len(letters),
            ended=sum(line.endswith(ENDS) for line in lines) / len(lines),
            ascii=letters.isascii(),
        )

    def strings(self) -> str:
        """Return why the tokenizer "character" suits these lines, or "" if it does not suit them.

        The tokenizer suits strings that are not sentences. Example of a result: "are mostly digits and
        punctuation, and 98% of their words do not occur in the other half of the sample".
        """
        # If most lines or words are repeated, they come from a small set, such as class labels.
        if self.distinct < 0.1 or self.unseen < 0.1:
            return ""
        if self.symbols >= 0.5 and self.length <= LONG_STRING:
            kind = "are mostly digits and punctuation"
            return (
                f"{kind}, and {self.unseen:.0%} of their words do not occur in the other half of the sample"
            )
        if self.words > MOST_WORDS or self.unseen < 0.5 or self.spaceless >= 0.2 or self.ended >= 0.3:
            return ""
        if self.length <= LONG_STRING or self.alphabet <= SMALL_ALPHABET or self.ascii:
            kind = f"are single strings of {self.alphabet} distinct characters"
            return f"{kind}, and {self.unseen:.0%} of them do not occur in the other half of the sample"
        return ""


def suggest_tokenizer(pairs: Iterable[Any]) -> tuple[str, str]:
    """Suggest a tokenizer for training pairs, from a sample of at most 4,000 pairs.

    Returns "character" or "unigram", and the reason in one sentence.

    "character" suits tasks with strings, such as dates, numbers, spelling and pronunciation. In these tasks,
    most words of new strings do not occur in the training data, and the output depends on single characters.
    Otherwise, and in doubt, "unigram" is suggested. It suits sentences of any language, with or without
    spaces. It also suits sentences whose targets are a few labels: each label becomes one token.

    >>> suggest_tokenizer([(f"{n} apples", str(n * n)) for n in range(100, 400)])[0]
    'character'
    >>> suggest_tokenizer([(f"the cat saw {n} dogs", "le chat a vu des chiens") for n in range(300)])[0]
    'unigram'
    """
    read = [sides(pair) for pair in itertools.islice(pairs, READ)]
    step = -(-len(read) // SAMPLE) or 1
    sample = [(clean(source), clean(target)) for source, target in read[::step]]
    sample = [pair for pair in sample if all(pair)]
    if len(sample) < FEWEST:
        return "unigram", f"{len(sample)} pairs are too few to decide whether characters are better"
    source, target = (_Side.of(list(lines)) for lines in zip(*sample, strict=True))
    strings = [(name, side.strings()) for name, side in (("sources", source), ("targets", target))]
    if source.length > LONG_LINE and not (strings[0][1] and source.alphabet <= SMALL_ALPHABET):
        return "unigram", f"sources are long: the median is {source.length} characters"
    if target.length > LONG_LINE:
        return "unigram", f"targets are long: the median is {target.length} characters"
    for name, why in reversed(strings):
        if why:
            return "character", f"{name} {why}"
    if sum(len(before) == len(after) for before, after in sample) >= 0.95 * len(sample) and (
        source.unseen >= 0.1 and source.spaceless < 0.2 and source.length >= 5
    ):
        return "character", "source and target have the same number of characters in nearly all pairs"
    return "unigram", f"sources have {source.words:.1f} words per line, targets {target.words:.1f}"
