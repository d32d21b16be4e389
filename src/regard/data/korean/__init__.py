"""The built-in Korean-English corpus: a small grammar that generates sentence pairs with word alignments.

lexicon.py attaches particles to nouns and endings to verbs; its words are in lexicon.toml. grammar.py builds
phrases, clauses and sentences, in both languages at the same time. KoreanEnglish generates the examples of
each split; the splits share no sentence. An object of the class Dice makes all random choices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from regard.data.korean.grammar import Dice, Phrase, long_sentence, sentence
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["Example", "KoreanEnglish", "korean_english"]


class Example(NamedTuple):
    """A Korean sentence, its English translation, and their word alignment.

    source, target: the Korean and the English words and punctuation marks, separated by single spaces.
    sure, possible: alignment links, pairs (index of the source word, index of the target word) from 0.

    The possible links include the sure links. Every English word has at least one possible link and at most
    one sure link.

    >>> example = next(iter(korean_english("train", 1)))
    >>> example.sure <= example.possible
    True
    """

    source: str
    target: str
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


class Split(NamedTuple):
    """Which sentences a split of the built-in corpus ("train", "valid", "test", "long") contains.

    make: function that generates a random sentence.
    shortest, longest: the smallest and the largest number of words in a sentence.
    tenths: numbers from 0 to 9. The split contains the sentences for which tenth() returns one of these
        numbers.
    repeats: whether a sentence may occur more than once.
    """

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
"""All splits of the built-in corpus by name.

A hash of the Korean sentence determines its split (see tenth()), whatever the random seed is. So two splits
never contain the same sentence.
"""


def tenth(source: str) -> int:
    """Return a number from 0 to 9, computed from a hash of the Korean sentence. It decides the split.

    Sentences that differ only in their final punctuation mark have the same number. Sentences of one or two
    words always belong to "train". Forms such as 요리사입니다 occur only in these short sentences, so a model
    could not learn these forms from longer sentences.
    """
    source = unmarked(source)
    if source.count(" ") < 2:
        return max(SPLITS["train"].tenths)
    return hashlib.blake2b(source.encode(), digest_size=8).digest()[0] * 10 // 256


def unmarked(source: str) -> str:
    """Return a sentence without its final punctuation mark.

    >>> unmarked("나는 고양이로소이다 .")
    '나는 고양이로소이다'
    """
    return source.removesuffix(" .").removesuffix(" !").removesuffix(" ?")


def linked(phrase: Phrase) -> Example:
    """Convert a complete sentence to an Example. Its alignment links become pairs of word indices."""
    for place, word in enumerate(phrase.korean):
        word.place = place
    sure: set[tuple[int, int]] = set()
    possible: set[tuple[int, int]] = set()
    for place, gloss in enumerate(phrase.english):
        if gloss.sure is not None:
            sure.add((gloss.sure.place, place))
        for word in gloss.possible:
            possible.add((word.place, place))
    source = " ".join([word.text for word in phrase.korean])
    target = " ".join([gloss.text for gloss in phrase.english])
    return Example(source, target, frozenset(sure), frozenset(possible | sure))


class KoreanEnglish:
    """The built-in Korean-English corpus, which korean_english() returns. See there for the arguments.

    Each iteration generates the same examples again.

    >>> [example.source for example in KoreanEnglish("test", count=1, seed=0)]
    ['최웅준은 자전거로 그 극장에 일찍 가고 문을 열었다 .']
    """

    def __init__(self, split: str, count: int, seed: int):
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        if count < 0:
            raise ArgumentError(
                message("korean_english()", f"count is {count}", expected="the number of examples, 0 or more")
            )
        self.split, self.count, self.seed = split, count, seed

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"KoreanEnglish(split={self.split!r}, count={self.count}, seed={self.seed})"

    @property
    def fingerprint(self) -> str:
        """A hash of split, count and seed, which determine the examples."""
        rules = f"korean-english 2 {self.split} {self.count} {self.seed}"
        return hashlib.blake2b(rules.encode(), digest_size=16).hexdigest()

    def __iter__(self) -> Iterator[Example]:
        split = SPLITS[self.split]
        dice = Dice(f"korean-english {self.split} {self.seed}")
        generated: set[str] = set()
        count = 0
        while count < self.count:
            phrase = split.make(dice)
            if not split.shortest <= len(phrase.korean) <= split.longest:
                continue
            if self.split != "long" and len(phrase.english) > split.longest:
                continue
            source = " ".join([word.text for word in phrase.korean])
            key = unmarked(source)
            if tenth(source) not in split.tenths or key in generated:
                continue
            if not split.repeats:
                generated.add(key)
            count += 1
            yield linked(phrase)


def korean_english(split: str = "train", count: int = 10000, seed: int = 0) -> KoreanEnglish:
    """Return the built-in Korean-English corpus, which a grammar generates during iteration.

    split: "train", "valid" and "test" have sentences of up to 30 words in each language; "long" has sentences
        of 25 to 60 Korean words.
    count: number of examples. A larger count only adds examples at the end.
    seed: random seed. The same split and seed always give the same examples.

    Two splits never contain the same sentence, whatever their seeds and counts are. Only "train" may contain
    a sentence more than once.

    >>> corpus = korean_english("test", count=2)
    >>> len(corpus), list(corpus) == list(corpus)
    (2, True)
    """
    return KoreanEnglish(split, count, seed)
