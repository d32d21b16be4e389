"""Subword sampling: split words into subwords at random, to regularise training.

sentencepiece can sample segmentations too, but its random generator cannot be seeded again after its first
use. So a resumed training run would sample other segmentations than an uninterrupted run.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = [
    "Segmenter",
    "Draw",
    "Lattice",
    "ShortWord",
    "MergedWord",
    "LongWord",
    "Backpointers",
    "draw_pieces",
    "all_segmentations",
    "backpointers",
    "sample_merges",
]

Draw = Callable[[], float]
"""A function that returns a random number in [0, 1), such as random.Random(0).random."""


class Segmenter(Protocol):
    """A word, prepared for sampling its segmentations (ways to split it into subwords)."""

    def drawn(self, draw: Draw) -> Sequence[int]:
        """Sample a segmentation of the word and return its token ids.

        draw: a function that returns a random number in [0, 1).
        """


class Lattice(NamedTuple):
    """The pieces (subwords) of a unigram tokenizer, into which a word can be segmented.

    scores: the log-probability of each piece.
    longest: the length of the longest piece in characters.
    unknown: the score of a character that is not a piece.
    """

    scores: Mapping[str, float]
    longest: int
    unknown: float

    @classmethod
    def of(cls, scores: Mapping[str, float]) -> Lattice:
        """Create a Lattice from the log-probability of each piece (subword).

        `unknown`, the score of a character that is not a piece, becomes the lowest score minus 10, as in
        sentencepiece.
        """
        return cls(scores, max(map(len, scores), default=1), min(scores.values(), default=0.0) - 10)


Backpointers = list[list[tuple[float, int]]]
"""For each position of a text, the pieces (subwords) that can end there.

Each piece is a pair: its probability, and the position at which it starts."""


def backpointers(text: str, lattice: Lattice, alpha: float) -> Backpointers:
    """For each position of a text, compute the probability of each piece (subword) that can end there.

    Entry i of the result is a list of pairs (probability, start), one for each piece text[start:i].

    lattice: the pieces and their log-probabilities.
    alpha: the exponent of the probabilities. The smaller it is, the more random are the segmentations.

    This is the forward filtering of Kudo (2018, "Subword Regularization", section 3.2): the probability of a
    segmentation is proportional to p(pieces)^alpha. draw_pieces() samples from this distribution.
    """
    scores, longest, unknown = lattice
    total = [0.0]
    ways: Backpointers = [[]]
    for end in range(1, len(text) + 1):
        arcs = []
        for begin in range(max(0, end - longest), end):
            score = scores.get(text[begin:end])
            if score is None and begin == end - 1:
                score = unknown
            if score is not None:
                arcs.append((total[begin] + alpha * score, begin))
        if len(arcs) == 1:
            total.append(arcs[0][0])
            ways.append([(1.0, arcs[0][1])])
            continue
        best = max(arcs)[0]
        whole = best + math.log(sum([math.exp(weight - best) for weight, _ in arcs]))
        total.append(whole)
        ways.append([(math.exp(weight - whole), begin) for weight, begin in arcs])
    return ways


def draw_pieces(text: str, ways: Backpointers, draw: Draw) -> list[str]:
    """Sample one segmentation, piece by piece from the end of the text to its start (backward sampling).

    ways: the result of backpointers().
    draw: function that returns a random number in [0, 1).

    >>> import random
    >>> ways = backpointers("ab", Lattice.of({"a": -2.0, "b": -2.0, "ab": -3.0}), 0.5)
    >>> draw = random.Random(0).random
    >>> [draw_pieces("ab", ways, draw) for _ in range(3)]
    [['a', 'b'], ['ab'], ['ab']]
    """
    pieces = []
    end = len(text)
    while end:
        left = draw()
        for part, begin in ways[end]:
            chosen = begin
            left -= part
            if left < 0:
                break
        pieces.append(text[chosen:end])
        end = chosen
    return pieces[::-1]


Item = TypeVar("Item")


def all_segmentations(
    text: str, ways: Backpointers, most: int, spelled: Callable[[str], Sequence[Item]]
) -> list[tuple[float, tuple[Item, ...]]] | None:
    """Return all segmentations of a text into pieces (subwords), or None if there are more than `most`.

    ways: the result of backpointers().
    spelled: a function that returns the items of a piece, such as its tokens.

    Each segmentation is a pair (probability, items of all its pieces).

    >>> ways = backpointers("ab", Lattice.of({"a": -2.0, "b": -2.0, "ab": -3.0}), 0.5)
    >>> [(round(part, 3), way) for part, way in all_segmentations("ab", ways, most=2, spelled=lambda x: [x])]
    [(0.622, ('ab',)), (0.378, ('a', 'b'))]
    """
    counts = [1]
    for before in ways[1:]:
        counts.append(min(sum(counts[begin] for _, begin in before), most + 1))
    if counts[-1] > most:
        return None
    # A segmentation is stored as a linked list: (segmentation without the last piece, last piece). It becomes
    # a tuple only at the end. With tuples at every position, the time would be quadratic in the length of the
    # word.
    prefixes: list[list[tuple[float, Any]]] = [[(1.0, None)]]
    for end in range(1, len(text) + 1):
        here: list[tuple[float, Any]] = []
        for part, begin in ways[end]:
            last = spelled(text[begin:end])
            here += [(part * so_far, (first, last)) for so_far, first in prefixes[begin]]
        prefixes.append(here)
    return [(part, _spelled(way)) for part, way in prefixes[-1]]


def _spelled(way: Any) -> tuple[Any, ...]:
    pieces = []
    while way is not None:
        way, last = way
        pieces.append(last)
    return tuple(item for piece in reversed(pieces) for item in piece)


def sample_merges(text: str, scores: Mapping[str, float], dropout: float, draw: Draw) -> list[str]:
    """Segment a text by BPE: merge the pair of symbols with the highest score first; skip merges at random.

    Each merge is skipped with probability `dropout` (Provilkov et al. 2020, "BPE-Dropout", algorithm 1). As
    in sentencepiece, a skipped pair is not tried again. Each of the two symbols may still be merged with the
    symbol on its other side.

    scores: the score of each piece that a merge can create.
    draw: function that returns a random number in [0, 1).

    >>> scores = {"ab": 0.0, "abc": -1.0}
    >>> sample_merges("abcab", scores, 0.0, lambda: 0.5), sample_merges("abcab", scores, 1.0, lambda: 0.5)
    (['abc', 'ab'], ['a', 'b', 'c', 'a', 'b'])
    """
    symbols = list(text)
    before, after = list(range(-1, len(text) - 1)), list(range(1, len(text) + 1))
    agenda: list[tuple[float, int, str]] = []

    def propose(left: int) -> None:
        if left >= 0 and after[left] < len(text):
            score = scores.get(merged := symbols[left] + symbols[after[left]])
            if score is not None:
                heapq.heappush(agenda, (-score, left, merged))

    for left in range(len(text)):
        propose(left)
    while agenda:
        _, left, merged = heapq.heappop(agenda)
        right = after[left]
        # Ignore a merge in the queue if another merge has changed one of its two symbols in the meantime.
        stale = not symbols[left] or right >= len(text) or symbols[left] + symbols[right] != merged
        if stale or draw() < dropout:
            continue
        symbols[left], symbols[right] = merged, ""
        after[left] = after[right]
        if after[right] < len(text):
            before[after[right]] = left
        propose(before[left])
        propose(left)
    return [symbol for symbol in symbols if symbol]


class ShortWord(NamedTuple):
    """A word with few segmentations. All of them are stored, to sample one of them quickly.

    tokens: the token ids of each segmentation.
    bounds: the cumulative probabilities of the segmentations. The last cumulative probability is not stored,
        because it is always 1.
    """

    bounds: list[float]
    tokens: list[tuple[int, ...]]

    def drawn(self, draw: Draw) -> Sequence[int]:
        return self.tokens[bisect(self.bounds, draw())]


class LongWord(NamedTuple):
    """A word with many segmentations. A segmentation is sampled piece by piece.

    word: the word.
    ways: the result of backpointers() for the word.
    tokens_of: a function that converts pieces (subwords) to token ids.
    """

    word: str
    ways: Backpointers
    tokens_of: Callable[[Sequence[str]], list[int]]

    def drawn(self, draw: Draw) -> Sequence[int]:
        return self.tokens_of(draw_pieces(self.word, self.ways, draw))


class MergedWord(NamedTuple):
    """A word that is segmented by BPE with dropout.

    word: the word.
    scores: the score of each piece (subword) that a merge can create.
    dropout: the probability that a merge is skipped; see sample_merges().
    tokens_of: a function that converts pieces to token ids.
    """

    word: str
    scores: Mapping[str, float]
    dropout: float
    tokens_of: Callable[[Sequence[str]], list[int]]

    def drawn(self, draw: Draw) -> Sequence[int]:
        return self.tokens_of(sample_merges(self.word, self.scores, self.dropout, draw))
