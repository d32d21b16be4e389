"""Rank ways to compute word alignments from attention, with or without gold alignments.

A way is a choice of attention weights, for example one head of one layer. The functions of this file use ways
only as dict keys, so a way can be any hashable object, for example a Choice or a str.
"""

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
    """Sort ways to compute alignments, for example layers and heads, by alignment error rate, lowest first.

    ways: maps each way (any hashable object, such as a name) to the links that it gives for each sentence.
    drawn: the gold alignment of each sentence.

    Ways with the same error rate keep the order of `ways`.

    >>> from regard.evaluation import parse_links
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
    shape = len(forward), len(backward)
    both = numpy.zeros(shape, dtype=numpy.int64)
    forward_sizes, backward_sizes = (numpy.zeros(size, dtype=numpy.int64) for size in shape)
    for sentence in range(max(counts, default=0)):
        forward_sets = [linked(proposed[sentence]) for proposed in forward.values()]
        backward_sets = [linked(proposed[sentence]) for proposed in backward.values()]
        forward_WL, backward_WL = _incidence(forward_sets, backward_sets)
        both += forward_WL @ backward_WL.T
        forward_sizes, backward_sizes = forward_sizes + forward_WL.sum(1), backward_sizes + backward_WL.sum(1)
    f1 = 2 * both / numpy.maximum(forward_sizes[:, None] + backward_sizes[None, :], 1)
    pairs = [
        (way, other, float(f1[row, column]))
        for row, way in enumerate(forward)
        for column, other in enumerate(backward)
    ]
    return sorted(pairs, key=lambda each: -each[2])


def _incidence(first: list[frozenset[Link]], second: list[frozenset[Link]]) -> tuple[Any, Any]:
    """Return two lists of sets of links as two matrices, with a row for each set and a column for each link.

    An element is 1 if the set contains the link, otherwise 0. Both matrices have the same columns, so the dot
    product of two rows is the number of links that two sets share.
    """
    columns = {link: place for place, link in enumerate(frozenset().union(*first, *second))}
    matrices = []
    for sets in (first, second):
        rows = numpy.zeros((len(sets), len(columns)), dtype=numpy.int64)
        for row, links in zip(rows, sets, strict=True):
            row[[columns[link] for link in links]] = 1
        matrices.append(rows)
    return matrices[0], matrices[1]
