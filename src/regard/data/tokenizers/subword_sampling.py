"""Subword sampling: a segmentation drawn at random, so that a model sees words cut in many ways.

Written here because the generator inside sentencepiece cannot be seeded again once it has been used, and a
run that resumes must draw what the unbroken one would have drawn.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = [
    "Cut",
    "Draw",
    "Lattice",
    "Listed",
    "Merged",
    "Walked",
    "Ways",
    "draw_pieces",
    "every_way",
    "reach",
    "sample_merges",
    "sample_pieces",
]

Draw = Callable[[], float]
"""Gives a number from 0 to 1, another each time."""


class Cut(Protocol):
    """A word that is ready to be cut at random."""

    def drawn(self, draw: Draw) -> Sequence[int]:
        """Its tokens, cut as the numbers that are drawn decide."""


class Lattice(NamedTuple):
    """What segmentations are made of: the log-probability of each piece, and what follows from them.

    longest: the characters of the longest piece. unknown: the score of a character that is no piece.
    """

    scores: Mapping[str, float]
    longest: int
    unknown: float

    @classmethod
    def of(cls, scores: Mapping[str, float]) -> Lattice:
        """The lattice of these pieces; unknown is as much below the least as it is in sentencepiece."""
        return cls(scores, max(map(len, scores), default=1), min(scores.values(), default=0.0) - 10)


def sample_pieces(text: str, lattice: Lattice, alpha: float, draw: Draw) -> list[str]:
    """Draw one of all segmentations of text into pieces, each with probability p(pieces)^alpha, normalised.

    Kudo (2018), "Subword Regularization", section 3.2, over all segmentations: the weights of the ways to
    reach a place are summed forwards, and a way is drawn backwards.

    >>> import random
    >>> lattice, draw = Lattice.of({"a": -2.0, "b": -2.0, "ab": -3.0}), random.Random(0).random
    >>> [sample_pieces("ab", lattice, 0.5, draw) for _ in range(3)]
    [['a', 'b'], ['ab'], ['ab']]
    """
    return draw_pieces(text, reach(text, lattice, alpha), draw)


Ways = list[list[tuple[float, int]]]
"""For each place of a text, the places that a piece before it can begin at, each with its probability."""


def reach(text: str, lattice: Lattice, alpha: float) -> Ways:
    """The ways to reach each place of a text: the half of sample_pieces() that can be kept for a word."""
    scores, longest, unknown = lattice
    total = [0.0]
    ways: Ways = [[]]
    for end in range(1, len(text) + 1):
        found = []
        for begin in range(max(0, end - longest), end):
            score = scores.get(text[begin:end])
            if score is None and begin == end - 1:
                score = unknown
            if score is not None:
                found.append((total[begin] + alpha * score, begin))
        if len(found) == 1:
            total.append(found[0][0])
            ways.append([(1.0, found[0][1])])
            continue
        best = max(found)[0]
        whole = best + math.log(sum([math.exp(weight - best) for weight, _ in found]))
        total.append(whole)
        ways.append([(math.exp(weight - whole), begin) for weight, begin in found])
    return ways


def draw_pieces(text: str, ways: Ways, draw: Draw) -> list[str]:
    """One segmentation, drawn from the last place backwards."""
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


def every_way(
    text: str, ways: Ways, most: int, spelled: Callable[[str], Sequence[Item]]
) -> list[tuple[float, tuple[Item, ...]]] | None:
    """All segmentations, each with its probability; None where there are more than `most`.

    spelled: what a piece is written as, such as its tokens.

    >>> ways = reach("ab", Lattice.of({"a": -2.0, "b": -2.0, "ab": -3.0}), 0.5)
    >>> [(round(part, 3), way) for part, way in every_way("ab", ways, most=2, spelled=lambda piece: [piece])]
    [(0.622, ('ab',)), (0.378, ('a', 'b'))]
    """
    counts = [1]
    for before in ways[1:]:
        counts.append(min(sum(counts[begin] for _, begin in before), most + 1))
    if counts[-1] > most:
        return None
    # Each way is its last piece and the way before that, spelled when all are known: a long word has many
    # places, and to spell the ways to each of them would take its length squared.
    found: list[list[tuple[float, Any]]] = [[(1.0, None)]]
    for end in range(1, len(text) + 1):
        here: list[tuple[float, Any]] = []
        for part, begin in ways[end]:
            last = spelled(text[begin:end])
            here += [(part * so_far, (first, last)) for so_far, first in found[begin]]
        found.append(here)
    return [(part, _spelled(way)) for part, way in found[-1]]


def _spelled(way: Any) -> tuple[Any, ...]:
    pieces = []
    while way is not None:
        way, last = way
        pieces.append(last)
    return tuple(item for piece in reversed(pieces) for item in piece)


def sample_merges(text: str, scores: Mapping[str, float], dropout: float, draw: Draw) -> list[str]:
    """Merge the characters of text, best pair first, leaving out each merge with a probability.

    Provilkov et al. (2020), "BPE-Dropout", algorithm 1, as sentencepiece does it: a merge that is left out
    comes back when one of its neighbours changes. scores: of each piece that a merge can make.

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
        # Of a pair that has been merged into another meanwhile, what was proposed does not hold any more.
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


class Listed(NamedTuple):
    """A word with few ways to cut it, as tokens: one number chooses among them by the bounds between them."""

    bounds: list[float]
    tokens: list[tuple[int, ...]]

    def drawn(self, draw: Draw) -> Sequence[int]:
        return self.tokens[bisect(self.bounds, draw())]


class Walked(NamedTuple):
    """A word with many ways to cut it, one of which is found place by place."""

    word: str
    ways: Ways
    tokens_of: Callable[[Sequence[str]], list[int]]

    def drawn(self, draw: Draw) -> Sequence[int]:
        return self.tokens_of(draw_pieces(self.word, self.ways, draw))


class Merged(NamedTuple):
    """A word whose characters are merged, some merges left out."""

    word: str
    scores: Mapping[str, float]
    dropout: float
    tokens_of: Callable[[Sequence[str]], list[int]]

    def drawn(self, draw: Draw) -> Sequence[int]:
        return self.tokens_of(sample_merges(self.word, self.scores, self.dropout, draw))
