"""Suggest a tokenizer from the training pairs: characters for strings, subwords for sentences."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizers.normalize import clean, sides

__all__ = ["suggest_tokenizer"]

READ, SAMPLE = 200_000, 4000
"""The first pairs that are read, and how many of them, evenly spread, are looked at: files may be sorted."""

FEWEST = 20
"""Fewer pairs say too little."""

MOST_WORDS = 1.5
"""A side with more words per line on average is made of sentences or phrases."""

LONG_STRING, LONG_LINE = 40, 80
"""The median length of a side, in characters: of strings whose alphabet is not small, and of any side. Longer
lines make sequences of characters too long to train on in little time."""

ENDS = (".", "!", "?", "…", "。", "！", "？")
"""What sentences end with."""

SMALL_ALPHABET = 30
"""Distinct characters of strings that may be long: nucleotides, amino acids, digits."""

WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE")
"""Scripts that put no spaces between words, by the names of their characters: a line is a sentence there."""


@dataclass(frozen=True)
class _Side:
    """What one side of the sampled pairs is like.

    words: mean number of words per line. length: median number of characters. alphabet: distinct characters.
    distinct: share of distinct lines. unseen: share of the words of one half of the distinct lines that are
    not in the other half. symbols: share of digits and punctuation among the characters. spaceless: share of
    characters of scripts without spaces. ended: share of lines that end as sentences do.
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
        known = {word for line in distinct[::2] for word in line.split()}
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
            unseen=sum(word not in known for word in others) / max(len(others), 1),
            symbols=sum(letter in symbols for letter in letters) / len(letters),
            spaceless=sum(letter in spaceless for letter in letters) / len(letters),
            ended=sum(line.endswith(ENDS) for line in lines) / len(lines),
            ascii=letters.isascii(),
        )

    def strings(self) -> str:
        """Why the lines of this side are strings that are read character by character; "" if they are not."""
        if self.distinct < 0.1 or self.unseen < 0.1:  # labels, classes: a closed set
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
    """The tokenizer that suits some training pairs, "character" or "unigram", and why, in one sentence.

    Characters are for tasks on strings: dates, numbers, spelling, pronunciation, sequences of letters. Most
    of their words are never seen in training, and the answer depends on single characters. All else is
    "unigram", in doubt too: sentences of any language, those written without spaces, and sentences with a few
    labels, each of which becomes one token. At most 4,000 pairs are looked at.

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
        return "unigram", f"{len(sample)} pairs are too few to tell whether characters would suit them"
    source, target = (_Side.of(list(lines)) for lines in zip(*sample, strict=True))
    strings = [(name, side.strings()) for name, side in (("sources", source), ("targets", target))]
    if source.length > LONG_LINE and not (strings[0][1] and source.alphabet <= SMALL_ALPHABET):
        return "unigram", f"sources are long, {source.length} characters in the median"
    if target.length > LONG_LINE:
        return "unigram", f"targets are long, {target.length} characters in the median"
    for name, why in reversed(strings):
        if why:
            return "character", f"{name} {why}"
    if sum(len(before) == len(after) for before, after in sample) >= 0.95 * len(sample) and (
        source.unseen >= 0.1 and source.spaceless < 0.2 and source.length >= 5
    ):
        return "character", "sources and targets have as many characters as each other, in nearly all pairs"
    return "unigram", f"sources have {source.words:.1f} words per line, targets {target.words:.1f}"
