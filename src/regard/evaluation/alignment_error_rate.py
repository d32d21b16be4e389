"""Word alignments in Pharaoh format, compared with gold alignments and with each other.

In Pharaoh format, a line contains the links of one sentence pair. "0-0 1-2" links the first source word to
the first target word, and the second source word to the third target word. "1p2" or "1?2" is a possible link:
annotators disagree on it, or it is part of a phrase. In "1-2:0.83", 0.83 is a probability; it is ignored.

symmetrise() combines the alignments of two translation directions. Attention links each target word to one
source word; a model of the opposite direction links each source word to one target word. The intersection of
both alignments has high precision, their union has high recall. The grow-diag methods start with the
intersection and add links of the union (Och and Ney 2003; Koehn, Och and Marcu 2003).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from regard.data.line_io import say
from regard.data.read_text import read_lines
from regard.errors import ArgumentError, DataError, UnknownName, message, printable, shown

Way = TypeVar("Way", bound=Hashable)
Other = TypeVar("Other", bound=Hashable)

Link = tuple[int, int]
Proposed = Sequence["Links | Iterable[Link]"]

LINK = re.compile(r"([0-9]{1,9})([-p?])([0-9]{1,9})(?::[0-9]{1,9}(?:\.[0-9]{1,18})?)?")

MAX_OUT_OF_RANGE = 0.05
"""Maximum fraction of sentence pairs with gold links that are out of range. A larger one raises DataError."""

FEWEST_LINES = 20
"""Number of sentence pairs with gold links from which a note is printed if no link has word 0."""


@dataclass(frozen=True)
class Links:
    """The links of one sentence pair, as (source word, target word), counted from 0.

    sure: the unambiguous links (Och and Ney 2003).
    possible: all sure links, and the links on which annotators disagree or which are part of a phrase. The
        constructor adds the sure links to this set.

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
        """Return the links, sorted, as a line in Pharaoh format, for example "0-0 1-2 1p3".

        base: the index of the first word in the line, 0 or 1.
        """
        _check_base("written()", base)
        return " ".join(
            f"{source + base}{'-' if (source, target) in self.sure else 'p'}{target + base}"
            for source, target in sorted(self.possible)
        )

    def turned(self) -> Links:
        """Return the links with source and target swapped: the link (1, 2) becomes (2, 1)."""
        return Links(frozenset((b, a) for a, b in self.sure), frozenset((b, a) for a, b in self.possible))


@dataclass(frozen=True)
class AlignmentScore:
    """Scores of proposed links A, compared with the sure links S and the possible links P (Och and Ney 2003).

    precision = |A & P| / |A|    recall = |A & S| / |S|    error_rate = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    The counts are summed over all sentences before the division. If the denominator is 0, precision and
    recall are 1, and the error rate is 0.

    proposed: |A|, the number of proposed links.
    sure: |S|, the number of sure links.
    hits: |A & P|, the number of proposed links that are possible.
    sure_hits: |A & S|, the number of proposed links that are sure.

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
        total = self.proposed + self.sure
        return 1.0 - (self.sure_hits + self.hits) / total if total else 0.0

    def __str__(self) -> str:
        aer, precision, recall = (f"{100 * x:.2f}" for x in (self.error_rate, self.precision, self.recall))
        counts = f"({self.proposed:,} links proposed, {self.sure:,} sure)"
        return f"AER {aer}  precision {precision}  recall {recall}  {counts}"


def parse_links(line: str, base: int = 0, place: str = "parse_links()") -> Links:
    """Parse a line in Pharaoh format, such as "0-0 1-2 1p3": the word alignment of one sentence pair.

    base: the index of the first word in the line, 0 or 1.
    place: the file and the line number, for error messages.

    >>> sorted(parse_links("1-1 2-3", base=1).sure)
    [(0, 0), (1, 2)]
    """
    _check_base("parse_links()", base)
    links: dict[bool, set[Link]] = {True: set(), False: set()}
    for written in line.split():
        parts = LINK.fullmatch(written)
        if parts is None:
            problem = f"'{printable(written[:40])}' is not a link"
            expected = "two word indices: 1-2 for a sure link, 1p3 for a possible link"
            raise DataError(message(place, problem, expected=expected))
        source, target = int(parts[1]) - base, int(parts[3]) - base
        if min(source, target) < 0:
            hint = "use base=0 if words are counted from 0"
            raise DataError(
                message(place, f"'{written}' contains the word index 0, but base is 1", hint=hint)
            )
        links[parts[2] == "-"].add((source, target))
    return Links(frozenset(links[True]), frozenset(links[False]))


def read_links(path: str | os.PathLike[str], base: int = 0) -> list[Links]:
    """Read the word alignments of a file in Pharaoh format, one line per sentence pair; a line may be empty.

    path: the file, plain or gzip.
    base: the index of the first word in the file, 0 or 1.

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
    """Return the proposed links of one sentence pair as a set of pairs (source word, target word).

    Words are given by their indices, from 0.

    proposed: a Links object (only its sure links are returned), an Alignment (its field `links` is
        returned), or an iterable of pairs.

    >>> sorted(linked(parse_links("0-0 1p1"))), sorted(linked([(0, 0), (1, 1)]))
    ([(0, 0)], [(0, 0), (1, 1)])
    """
    if isinstance(proposed, str):
        hint = "read the links of a text with parse_links()"
        raise ArgumentError(message("score_links()", f"{proposed[:40]!r} is a str", hint=hint))
    pairs = proposed.sure if isinstance(proposed, Links) else getattr(proposed, "links", proposed)
    return frozenset((int(source), int(target)) for source, target in pairs)


def past_the_end(drawn: Sequence[Links], lengths: Sequence[Link]) -> list[tuple[int, Link]]:
    """Return the gold links that refer to a word after the end of its sentence.

    The result is a list of pairs (index of the sentence pair, link).

    drawn: the gold alignment of each sentence pair.
    lengths: the number of source words and of target words of each sentence pair.

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
    proposed: Proposed, drawn: Sequence[Links], lengths: Sequence[Link] | None = None
) -> AlignmentScore:
    """Compare proposed links with gold alignments; the score includes the alignment error rate.

    proposed: for each sentence pair, its links as pairs (source word, target word), counted from 0, or as a
        Links object, of which only the sure links count.
    drawn: the gold alignment of each sentence pair, with sure and possible links.
    lengths: the number of source and target words of each sentence pair. If it is set, a link that is out of
        range raises DataError, for example if its words are counted from 1.

    >>> score_links([[(0, 0), (1, 1), (2, 2)]], [parse_links("0-0 1p1")]).error_rate  # 1 - (1 + 2) / (3 + 1)
    0.25
    """
    if len(proposed) != len(drawn):
        problem = f"the numbers of sentences differ: proposed has {len(proposed)}, drawn has {len(drawn)}"
        expected = "the same number of sentences in every argument"
        raise ArgumentError(message("score_links()", problem, expected=expected))
    if lengths is not None:
        every = [Links(linked(links) | gold.possible) for links, gold in zip(proposed, drawn, strict=True)]
        for index, link in past_the_end(every, lengths):
            problem = f"link {link[0]}-{link[1]} is out of range for {lengths[index]} source and target words"
            hint = "if words are counted from 1: parse_links(text, base=1); if sides are swapped: turned()"
            raise DataError(message(f"score_links(), sentence {index + 1}", problem, hint=hint))
    sums = [0, 0, 0, 0]
    for links, gold in zip(map(linked, proposed), drawn, strict=True):
        sets = (links, gold.sure, links & gold.possible, links & gold.sure)
        sums = [total + len(part) for total, part in zip(sums, sets, strict=True)]
    return AlignmentScore(*sums)


def rank_by_links(ways: Mapping[Way, Proposed], drawn: Sequence[Links]) -> list[tuple[Way, AlignmentScore]]:
    """Sort ways to compute alignments, for example layers and heads, by alignment error rate, lowest first.

    ways: maps each way (any hashable object, such as a name) to the links that it gives for each sentence.
    drawn: the gold alignment of each sentence.

    Ways with the same error rate keep the order of `ways`.

    >>> ways = {"a": [[(0, 1)], [(0, 0)]], "b": [[(0, 0)], [(0, 0)]]}
    >>> [(way, score.error_rate) for way, score in rank_by_links(ways, [parse_links("0-0")] * 2)]
    [('b', 0.0), ('a', 0.5)]
    """
    scores = [(way, score_links(proposed, drawn)) for way, proposed in ways.items()]
    return sorted(scores, key=lambda each: each[1].error_rate)


def rank_by_agreement(
    forward: Mapping[Way, Proposed], backward: Mapping[Other, Proposed]
) -> list[tuple[Way, Other, float]]:
    """Rank ways to compute alignments (layers and heads) of two models, without gold alignments.

    The models translate in opposite directions. Links that both models propose are probably correct. So each
    forward way is compared with each backward way. The pairs of ways are sorted by the F1 of their links,
    highest first:

        F1 = 2 |A & B| / (|A| + |B|)    A: the links of the forward way, B: the links of the backward way

    The counts are summed over all sentences. F1 is 0 if there are no links. Chen et al. (2020) select layers
    similarly, by the alignment error rate of one direction with the other as gold alignment.

    forward: maps each way of the source-to-target model to the links that it gives for each sentence.
    backward: maps each way of the target-to-source model to its links. These links must be (source word,
        target word) too. The model proposes them in the opposite order, so the caller must swap them (see
        Links.turned()).

    Returns tuples (forward way, backward way, F1).

    >>> forward = {"a": [[(0, 0), (1, 1)]], "b": [[(0, 1), (1, 1)]]}
    >>> backward = {"c": [[(0, 0), (1, 1)]], "d": [[(1, 0)]]}
    >>> rank_by_agreement(forward, backward)[:2]
    [('a', 'c', 1.0), ('b', 'c', 0.5)]
    """
    counts = {len(proposed) for proposed in (*forward.values(), *backward.values())}
    if len(counts) > 1:
        problem = f"the ways have links for {' or '.join(map(str, sorted(counts)))} sentences"
        expected = "the same number of sentences for every way in forward and backward"
        raise ArgumentError(message("rank_by_agreement()", problem, expected=expected))
    ours, theirs = ([list(map(linked, each)) for each in side.values()] for side in (forward, backward))
    pairs = [
        (way, other, _f1(a, b))
        for way, a in zip(forward, ours, strict=True)
        for other, b in zip(backward, theirs, strict=True)
    ]
    return sorted(pairs, key=lambda each: -each[2])


def _f1(first: Sequence[frozenset[Link]], second: Sequence[frozenset[Link]]) -> float:
    both = sum(len(a & b) for a, b in zip(first, second, strict=True))
    return 2 * both / max(sum(map(len, first)) + sum(map(len, second)), 1)


def check_links(gold: Sequence[Links], words: Sequence[tuple[int, int]], place: str) -> None:
    """Raise DataError if the gold alignments do not match the sentence pairs.

    They do not match in two cases: the number of alignments differs from the number of pairs; or many links
    are out of range, for example because the file counts words from 1. A few links that are out of range are
    treated as annotation errors: they are reported on standard error. In the score, they count as links that
    the model did not find, as in other tools. If no link has the first word of its sentence, words are
    probably counted from 1, and a note on standard error says so.

    gold: the gold alignment of each pair.
    words: the number of source words and of target words of each pair.
    place: the file with the gold alignments, for error messages.
    """
    if len(gold) != len(words):
        problem = f"there are {len(gold):,} lines of gold alignments, but {len(words):,} sentence pairs"
        raise DataError(message(place, problem, expected="one line for each pair, empty if it has no links"))
    out_of_range = past_the_end(gold, words)
    if out_of_range:
        line, (source, target) = out_of_range[0]
        counts = f"{words[line][0]} source and {words[line][1]} target words"
        where, link = f"{place}, line {line + 1}", f"link {source}-{target}"
        if len({line for line, _ in out_of_range}) > MAX_OUT_OF_RANGE * len(gold):
            hint = "use --base 1 if words are counted from 1, or check whether the sides are swapped"
            raise DataError(message(where, f"{link} is out of range for {counts}", hint=hint))
        total = f"; {len(out_of_range)} such links in total" if len(out_of_range) > 1 else ""
        say(f"{where}: {link} is out of range for {counts}; the link counts as not found{total}")
    linked_lines = [links.possible for links in gold if links.possible]
    if len(linked_lines) >= FEWEST_LINES and all(min(link) > 0 for links in linked_lines for link in links):
        hint = "if words are counted from 1, use --base 1"
        say(f"{place}: no link has word 0, the first word of a sentence; {hint}")


def _check_base(call: str, base: int) -> None:
    if base not in (0, 1):
        raise ArgumentError(
            message(call, f"base is {base!r}", expected="0 or 1, the index of the first word")
        )


AROUND = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
"""Offsets (target, source) from a link to its neighbours, in the order in which grow-diag tries them."""

LinkSet = frozenset[Link]


def symmetrise(
    forward: Links | Iterable[Link], backward: Links | Iterable[Link], how: str = "grow-diag-final-and"
) -> Links:
    """Combine the alignments of two translation directions.

    Links are pairs (source word, target word), counted from 0, in both directions.

    forward: links of the source-to-target model.
    backward: links of the target-to-source model, with the sides swapped (see Links.turned()).
    how: the method, one of

    intersection         the links that are in forward and in backward
    union                the links that are in forward or in backward
    grow-diag            start with the intersection; for each link, sorted by target and then source word,
                         add neighbouring links (also diagonal ones) that are in the union and have an
                         unaligned word; repeat until no link is added
    grow-diag-final      after grow-diag, add each link of forward, then of backward, if at least one of its
                         two words is unaligned
    grow-diag-final-and  after grow-diag, add each link of forward, then of backward, if both of its words are
                         unaligned

    >>> forward, backward = [(0, 0), (1, 1), (1, 2), (3, 4)], [(0, 0), (1, 1), (2, 2), (4, 1)]
    >>> for how in SYMMETRISATIONS:
    ...     print(f"{how:20}", symmetrise(forward, backward, how))
    intersection         0-0 1-1
    union                0-0 1-1 1-2 2-2 3-4 4-1
    grow-diag            0-0 1-1 1-2 2-2
    grow-diag-final      0-0 1-1 1-2 2-2 3-4 4-1
    grow-diag-final-and  0-0 1-1 1-2 2-2 3-4
    """
    if how not in SYMMETRISATIONS:
        raise UnknownName("symmetrisation", how, SYMMETRISATIONS)
    return Links(SYMMETRISATIONS[how](linked(forward), linked(backward)))


def _in_order(links: Iterable[Link]) -> list[Link]:
    return sorted(links, key=lambda link: (link[1], link[0]))


def _grow_diag(forward: LinkSet, backward: LinkSet) -> LinkSet:
    """Combine the links of two directions with the method grow-diag, which symmetrise() describes."""
    union, links = forward | backward, set(forward & backward)
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    before = -1
    while len(links) != before:
        before = len(links)
        # The loop is over the union, so that it also visits links that it has added itself, if they come
        # later.
        for source, target in _in_order(union):
            if (source, target) not in links:
                continue
            for down, right in AROUND:
                neighbour = source + right, target + down
                unaligned = neighbour[0] not in sources or neighbour[1] not in targets
                if neighbour in union and unaligned:
                    links.add(neighbour)
                    sources.add(neighbour[0])
                    targets.add(neighbour[1])
    return frozenset(links)


def _add_unaligned(links: LinkSet, proposed: LinkSet, both: bool) -> LinkSet:
    """Return `links`, and also the proposed links whose words are not aligned yet.

    both: if True, both words of a link must be unaligned; if False, one of them is enough.
    """
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    added = set()
    for source, target in _in_order(proposed):
        unaligned = (source not in sources, target not in targets)
        if all(unaligned) if both else any(unaligned):
            added.add((source, target))
            sources.add(source)
            targets.add(target)
    return links | added


def _final(forward: LinkSet, backward: LinkSet, both: bool) -> LinkSet:
    links = _add_unaligned(_grow_diag(forward, backward), forward, both)
    return _add_unaligned(links, backward, both)


SYMMETRISATIONS: dict[str, Callable[[LinkSet, LinkSet], LinkSet]] = {
    "intersection": frozenset.intersection,
    "union": frozenset.union,
    "grow-diag": _grow_diag,
    "grow-diag-final": lambda forward, backward: _final(forward, backward, both=False),
    "grow-diag-final-and": lambda forward, backward: _final(forward, backward, both=True),
}
"""Name of a symmetrization method -> the function that combines two sets of links into one set."""
