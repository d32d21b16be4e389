"""The corpus: sentences of the grammar as numbered examples, in splits that never share one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from regard.data.korean.grammar import long_sentence, sentence
from regard.data.korean.phrases import VERSION, VERSIONS, Dice, Phrase
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["Example", "KoreanEnglish", "SPLITS", "VERSION", "VERSIONS", "korean_english", "separate_marks"]


class Example(NamedTuple):
    """A Korean sentence, its English, and which word says which.

    source, target: words, and marks as words of their own, with single spaces between. sure, possible: pairs
    (source word, target word), counted from 0. The possible ones include the sure ones; every English word
    has a possible one, and one sure one at most.

    >>> example = next(iter(korean_english("train", 1)))
    >>> example.sure <= example.possible
    True
    """

    source: str
    target: str
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


class Split(NamedTuple):
    """What a split takes: how sentences are made, how long, of which tenths, and whether they repeat."""

    make: Callable[[Dice], Phrase]
    shortest: int
    longest: int
    tenths: frozenset[int]
    repeats: bool = False


SPLITS = {
    "train": Split(sentence, 2, 30, frozenset(range(3, 10)), repeats=True),
    "valid": Split(sentence, 2, 30, frozenset({0})),
    "test": Split(sentence, 2, 30, frozenset({1})),
    "long": Split(long_sentence, 25, 60, frozenset({2})),
}
"""A hash of its Korean says to which tenth a sentence belongs, whatever the seed: splits cannot share one."""


ATTACHED = re.compile(r"(?<=\w)([.,!?])(?=\s|$)")
"""A mark that ends a word."""


def tenth(source: str, version: int = VERSION) -> int:
    """The tenth of all sentences that a Korean sentence belongs to, 0 to 9.

    From version 2 on, sentences that differ only in their final mark are in the same split, and sentences of
    two words are always in "train", because forms such as 요리사입니다 occur nowhere else.
    """
    if version > 1:
        source = unmarked(source)
        if source.count(" ") < 2:
            return max(SPLITS["train"].tenths)
    return hashlib.blake2b(source.encode(), digest_size=8).digest()[0] * 10 // 256


def unmarked(source: str) -> str:
    """A sentence without its final mark.

    >>> unmarked("나는 고양이로소이다 .")
    '나는 고양이로소이다'
    """
    return source.removesuffix(" .").removesuffix(" !").removesuffix(" ?")


def separate_marks(line: str) -> str:
    """A line with its marks as words of their own, as the corpus writes them; the rest stays as it is.

    >>> separate_marks("나는 고양이로소이다. 너는 3.5를 아니?")
    '나는 고양이로소이다 . 너는 3.5를 아니 ?'
    """
    return ATTACHED.sub(r" \1", line)


def linked(said: Phrase) -> Example:
    """A sentence with its words numbered, so that its links can be pairs of numbers."""
    for place, word in enumerate(said.korean):
        word.place = place
    sure: set[tuple[int, int]] = set()
    possible: set[tuple[int, int]] = set()
    for place, gloss in enumerate(said.english):
        if gloss.sure is not None:
            sure.add((gloss.sure.place, place))
        for word in gloss.possible:
            possible.add((word.place, place))
    source = " ".join([word.text for word in said.korean])
    target = " ".join([gloss.text for gloss in said.english])
    return Example(source, target, frozenset(sure), frozenset(possible | sure))


class KoreanEnglish:
    """A corpus that is made as it is read, the same every time; see korean_english().

    >>> [example.source for example in KoreanEnglish("test", count=1, seed=0)]
    ['최웅준은 자전거로 그 극장에 일찍 가고 문을 열었다 .']
    """

    def __init__(self, split: str, count: int, seed: int, version: int = VERSION):
        if version not in VERSIONS:
            raise UnknownName("version of the grammar", str(version), map(str, VERSIONS))
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        if count < 0:
            raise ArgumentError(
                message("korean_english()", f"count is {count}", expected="how many examples, 0 or more")
            )
        self.split, self.count, self.seed, self.version = split, count, seed, version

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        given = f"split={self.split!r}, count={self.count}, seed={self.seed}, version={self.version}"
        return f"KoreanEnglish({given})"

    @property
    def fingerprint(self) -> str:
        """A name for exactly these examples: it changes with split, count, seed and version."""
        rules = f"korean-english {self.version} {self.split} {self.count} {self.seed}"
        return hashlib.blake2b(rules.encode(), digest_size=16).hexdigest()

    def __iter__(self) -> Iterator[Example]:
        split = SPLITS[self.split]
        dice = Dice(f"korean-english {self.split} {self.seed}", self.version)
        met: set[str] = set()
        made = 0
        while made < self.count:
            said = split.make(dice)
            if not split.shortest <= len(said.korean) <= split.longest:
                continue
            if self.split != "long" and len(said.english) > split.longest:
                continue
            source = " ".join([word.text for word in said.korean])
            key = source if self.version == 1 else unmarked(source)
            if tenth(source, self.version) not in split.tenths or key in met:
                continue
            if not split.repeats:
                met.add(key)
            made += 1
            yield linked(said)


def korean_english(
    split: str = "train", count: int = 10000, seed: int = 0, version: int = VERSION
) -> KoreanEnglish:
    """The built-in Korean-English corpus: as many examples as asked for, made by a grammar as they are read.

    split: "train", "valid" and "test" have up to 30 words on either side, "long" 25 to 60 Korean ones. The
    same split and seed give the same examples, and a larger count begins with those of a smaller. Splits
    share no sentence, whatever their seeds and counts. In "train" a short sentence may come again, as often
    as the grammar says it; in the others none does. version: of the grammar. Version 2, the default, leaves
    out the final mark of every fifth sentence and adds the purpose ending -(으)러, more reasons and a name;
    version 1 makes the sentences that Regard made before it.

    >>> corpus = korean_english("test", count=2)
    >>> len(corpus), list(corpus) == list(corpus)
    (2, True)
    """
    return KoreanEnglish(split, count, seed, version)
