"""Symmetrization: combine the word alignments of two translation directions into one.

Attention links each target word to one source word; a model of the opposite direction links each source word
to one target word. The intersection of both alignments has high precision, their union has high recall. The
grow-diag methods start with the intersection and add links of the union (Och and Ney 2003; Koehn, Och and
Marcu 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from regard.errors import UnknownName
from regard.evaluation.alignment_error_rate import Link, Links, linked

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
