"""Alignment: links between words in Pharaoh format, and how well they agree with those that people drew.

A line holds the links of one pair: "0-0 1-2" links the first words of both sides, and the second with the
third. "1p2" or "1?2" is a possible link: people did not agree on it, or it is part of a phrase. Of
"1-2:0.83", by a model that says how sure it is, the last part is passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.read_text import read_lines
from regard.errors import ArgumentError, DataError, message, printable, shown

__all__ = [
    "AlignmentScore",
    "Link",
    "Links",
    "linked",
    "parse_links",
    "past_the_end",
    "read_links",
    "score_links",
]

Link = tuple[int, int]

LINK = re.compile(r"([0-9]{1,9})([-p?])([0-9]{1,9})(?::[0-9]{1,9}(?:\.[0-9]{1,18})?)?")


@dataclass(frozen=True)
class Links:
    """The links of one pair of sentences, as (source word, target word) from 0 on.

    sure, possible: as in Och and Ney (2003), all that is sure is possible too, given or not.

    >>> links = parse_links("0-0 1-2 1p3")
    >>> sorted(links.sure), sorted(links.possible)
    ([(0, 0), (1, 2)], [(0, 0), (1, 2), (1, 3)])
    >>> print(links, "|", links.turned())
    0-0 1-2 1p3 | 0-0 2-1 3p1
    """

    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", self.possible | self.sure)

    def __str__(self) -> str:
        return self.written()

    def written(self, base: int = 0) -> str:
        """The line in Pharaoh format, sorted. base: the number of the first word, 0 or 1."""
        _check_base("written()", base)
        return " ".join(
            f"{source + base}{'-' if (source, target) in self.sure else 'p'}{target + base}"
            for source, target in sorted(self.possible)
        )

    def turned(self) -> Links:
        """The same with the sides swapped."""
        return Links(frozenset((b, a) for a, b in self.sure), frozenset((b, a) for a, b in self.possible))


@dataclass(frozen=True)
class AlignmentScore:
    """How well proposed links A agree with sure links S and possible links P, over a set (Och and Ney 2003).

    precision = |A & P| / |A|    recall = |A & S| / |S|    error_rate = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    Sums go over all sentences before the division. Where there is nothing to divide by, nothing is wrong:
    precision or recall is 1, the error rate 0. proposed, sure: |A| and |S|. hits, sure_hits: |A & P| and
    |A & S|.

    >>> score = AlignmentScore(proposed=4, sure=3, hits=3, sure_hits=2)
    >>> print(score)
    AER 28.57  precision 75.00  recall 66.67  (4 links proposed, 3 sure)
    """

    proposed: int
    sure: int
    hits: int
    sure_hits: int

    @property
    def precision(self) -> float:
        return self.hits / self.proposed if self.proposed else 1.0

    @property
    def recall(self) -> float:
        return self.sure_hits / self.sure if self.sure else 1.0

    @property
    def error_rate(self) -> float:
        whole = self.proposed + self.sure
        return 1.0 - (self.sure_hits + self.hits) / whole if whole else 0.0

    def __str__(self) -> str:
        aer, precision, recall = (f"{100 * x:.2f}" for x in (self.error_rate, self.precision, self.recall))
        counts = f"({self.proposed:,} links proposed, {self.sure:,} sure)"
        return f"AER {aer}  precision {precision}  recall {recall}  {counts}"


def parse_links(line: str, base: int = 0, place: str = "parse_links()") -> Links:
    """Links from a line in Pharaoh format. base: the number that the line gives to a first word, 0 or 1.

    >>> sorted(parse_links("1-1 2-3", base=1).sure)
    [(0, 0), (1, 2)]
    """
    _check_base("parse_links()", base)
    found: dict[bool, set[Link]] = {True: set(), False: set()}
    for written in line.split():
        parts = LINK.fullmatch(written)
        if parts is None:
            problem = f"'{printable(written[:40])}' is no link"
            raise DataError(message(place, problem, expected="numbers of words, as in 0-0 1-2 1p3"))
        source, target = int(parts[1]) - base, int(parts[3]) - base
        if min(source, target) < 0:
            hint = "these links are counted from 0: base=0"
            raise DataError(message(place, f"'{written}' links word 0, with words counted from 1", hint=hint))
        found[parts[2] == "-"].add((source, target))
    return Links(frozenset(found[True]), frozenset(found[False]))


def read_links(path: str | os.PathLike[str], base: int = 0) -> list[Links]:
    """The links of a file in Pharaoh format, a line a pair, plain or gzip; an empty line has no links.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "links.txt")
    ...     _ = path.write_text("0-0 1-1\\n\\n0-1\\n")
    ...     [len(links.sure) for links in read_links(path)]
    [2, 0, 1]
    """
    lines = enumerate(read_lines(path), 1)
    return [parse_links(line, base, f"{shown(path)}, line {number}") for number, line in lines]


def linked(proposed: Any) -> frozenset[Link]:
    """The links that count of a proposal: of Links the sure ones; an Alignment of a translation has its own.

    >>> sorted(linked(parse_links("0-0 1p1"))), sorted(linked([(0, 0), (1, 1)]))
    ([(0, 0)], [(0, 0), (1, 1)])
    """
    pairs = proposed.sure if isinstance(proposed, Links) else getattr(proposed, "links", proposed)
    return frozenset((int(source), int(target)) for source, target in pairs)


def past_the_end(drawn: Sequence[Links], lengths: Sequence[Link]) -> list[tuple[int, Link]]:
    """Links that point past the words of their sentences, with the number of the sentence, from 0 on.

    lengths: how many words the sides of each sentence have.

    >>> past_the_end([parse_links("0-0 1-1"), parse_links("0-0 1p2")], [(2, 2), (2, 2)])
    [(1, (1, 2))]
    """
    return [
        (number, link)
        for number, (links, (sources, targets)) in enumerate(zip(drawn, lengths, strict=True))
        for link in sorted(links.possible)
        if not (0 <= link[0] < sources and 0 <= link[1] < targets)
    ]


def score_links(
    proposed: Sequence[Links | Iterable[Link]], drawn: Sequence[Links], lengths: Sequence[Link] | None = None
) -> AlignmentScore:
    """Compare proposed links with those that people drew, sentence by sentence.

    proposed: for each sentence Links, of which the sure ones count, or pairs of numbers from 0 on. drawn:
    Links with sure and possible ones. lengths: how many words the sides of each sentence have, to find links
    that point past them, as they do when words are counted from another number.

    >>> score_links([[(0, 0), (1, 1), (2, 2)]], [parse_links("0-0 1p1")]).error_rate
    0.25
    """
    if len(proposed) != len(drawn) or (lengths is not None and len(lengths) != len(drawn)):
        given = [len(each) for each in (proposed, drawn, lengths) if each is not None]
        problem = f"{' against '.join(map(str, given))} sentences"
        raise ArgumentError(message("score_links()", problem, expected="as many of each"))
    sums = [0, 0, 0, 0]
    for index, (ours, theirs) in enumerate(zip(proposed, drawn, strict=True)):
        links = linked(ours)
        if lengths is not None:
            _check_lengths(index, Links(links | theirs.possible), lengths[index])
        found = (links, theirs.sure, links & theirs.possible, links & theirs.sure)
        sums = [total + len(part) for total, part in zip(sums, found, strict=True)]
    return AlignmentScore(*sums)


def _check_base(call: str, base: int) -> None:
    if base not in (0, 1):
        raise ArgumentError(message(call, f"base is {base!r}", expected="0 or 1, the number of a first word"))


def _check_lengths(index: int, links: Links, lengths: Link) -> None:
    for _, link in past_the_end([links], [lengths]):
        problem = f"a link {link[0]}-{link[1]}, with {lengths[0]} and {lengths[1]} words"
        hint = "are words counted from 1, or the sides swapped? See base= and turned()"
        raise DataError(message(f"score_links(), sentence {index + 1}", problem, hint=hint))
