"""Choosing: which of several ways to read an alignment is best, by links that people drew or without any."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy

from regard.errors import ArgumentError, message
from regard.evaluation.alignment_error_rate import AlignmentScore, Link, Links, linked, score_links

__all__ = ["rank_by_agreement", "rank_by_links"]

Way = TypeVar("Way", bound=Hashable)
Other = TypeVar("Other", bound=Hashable)
Proposed = Sequence[Links | Iterable[Link]]


def rank_by_links(ways: Mapping[Way, Proposed], drawn: Sequence[Links]) -> list[tuple[Way, AlignmentScore]]:
    """Ways to read the alignments of some sentences, the lowest error rate first.

    ways: by any name, the links of each sentence that this way gives. drawn: those that people drew. Of
    equals, what was given first stays first.

    >>> from regard.evaluation import parse_links
    >>> ways = {"a": [[(0, 1)], [(0, 0)]], "b": [[(0, 0)], [(0, 0)]]}
    >>> [(way, score.error_rate) for way, score in rank_by_links(ways, [parse_links("0-0")] * 2)]
    [('b', 0.0), ('a', 0.5)]
    """
    scores = [(way, score_links(found, drawn)) for way, found in ways.items()]
    return sorted(scores, key=lambda each: each[1].error_rate)


def rank_by_agreement(
    forward: Mapping[Way, Proposed], backward: Mapping[Other, Proposed]
) -> list[tuple[Way, Other, float]]:
    """Pairs of ways, one of each direction, those that agree most first, with no links that people drew.

    A model of each direction looks at the same sentences; where both read the same links, those are likely
    right (Chen et al. 2020 choose layers so, by the error rate of one against the other).

    F1 = 2 |A & B| / (|A| + |B|)

    forward, backward: by any name, the links of each sentence, all as (source word, target word): those of
    the backward model turned round. Where neither proposes any link, they agree on nothing: 0.

    >>> forward = {"a": [[(0, 0), (1, 1)]], "b": [[(0, 1), (1, 1)]]}
    >>> backward = {"c": [[(0, 0), (1, 1)]], "d": [[(1, 0)]]}
    >>> rank_by_agreement(forward, backward)[:2]
    [('a', 'c', 1.0), ('b', 'c', 0.5)]
    """
    counts = {len(found) for found in (*forward.values(), *backward.values())}
    if len(counts) > 1:
        problem = f"{' and '.join(map(str, sorted(counts)))} sentences"
        raise ArgumentError(message("rank_by_agreement()", problem, expected="as many of each way"))
    shape = len(forward), len(backward)
    both, ours, theirs = (numpy.zeros(size, dtype=numpy.int64) for size in (shape, shape[0], shape[1]))
    for sentence in range(max(counts, default=0)):
        some = [linked(found[sentence]) for found in forward.values()]
        others = [linked(found[sentence]) for found in backward.values()]
        mine, its = _incidence(some, others)
        both += mine @ its.T
        ours, theirs = ours + mine.sum(1), theirs + its.sum(1)
    f1 = 2 * both / numpy.maximum(ours[:, None] + theirs[None, :], 1)
    pairs = [
        (way, other, float(f1[row, column]))
        for row, way in enumerate(forward)
        for column, other in enumerate(backward)
    ]
    return sorted(pairs, key=lambda each: -each[2])


def _incidence(some: list[frozenset[Link]], others: list[frozenset[Link]]) -> tuple[Any, Any]:
    """For each set a row, with a 1 for each link of any set that it holds: products count what they share."""
    columns = {link: place for place, link in enumerate(frozenset().union(*some, *others))}
    found = []
    for sets in (some, others):
        rows = numpy.zeros((len(sets), len(columns)), dtype=numpy.int64)
        for row, links in zip(rows, sets, strict=True):
            row[[columns[link] for link in links]] = 1
        found.append(rows)
    return found[0], found[1]
