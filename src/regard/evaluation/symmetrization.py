"""Symmetrising: one alignment from two, by a model of each direction.

Attention gives each target word one source word; a model of the other direction gives each source word one
target word. Links that both propose are precise and few, links that either proposes are many; growing goes
from the first towards the second (Och and Ney 2003; Koehn, Och and Marcu 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from regard.errors import UnknownName
from regard.evaluation.alignment_error_rate import Link, Links, linked

__all__ = ["SYMMETRISATIONS", "symmetrise"]

AROUND = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
"""The places beside a link, as (target, source), in the order in which they are tried."""

LinkSet = frozenset[Link]


def symmetrise(
    forward: Links | Iterable[Link], backward: Links | Iterable[Link], how: str = "grow-diag-final-and"
) -> Links:
    """One alignment from those of two directions, both as (source word, target word) from 0 on.

    forward: by the model that says the target. backward: by the one that says the source, its links turned
    round. how: intersection, union, or a way between them:

    grow-diag            begin with the intersection. Go through the links in the order of their target word,
                         then of their source word; to each, add the eight around it that are in the union
                         and have a word, on either side, without a link so far. Again, until nothing is added
    grow-diag-final      and then any link of forward, then of backward, with a word that has none so far
    grow-diag-final-and  and then those of which neither word has one so far

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


def _grown(forward: LinkSet, backward: LinkSet) -> LinkSet:
    """Grow-diag."""
    union, found = forward | backward, set(forward & backward)
    sources, targets = {source for source, _ in found}, {target for _, target in found}
    before = -1
    while len(found) != before:
        before = len(found)
        # What is added is passed in the same round if its place is still to come: walk over the union.
        for source, target in _in_order(union):
            if (source, target) not in found:
                continue
            for down, right in AROUND:
                near = source + right, target + down
                free = near[0] not in sources or near[1] not in targets
                if near in union and free:
                    found.add(near)
                    sources.add(near[0])
                    targets.add(near[1])
    return frozenset(found)


def _finished(found: LinkSet, proposed: LinkSet, both: bool) -> LinkSet:
    """With the links of one direction whose words, both or one of them, have none so far."""
    sources, targets = {source for source, _ in found}, {target for _, target in found}
    added = set()
    for source, target in _in_order(proposed):
        free = (source not in sources, target not in targets)
        if all(free) if both else any(free):
            added.add((source, target))
            sources.add(source)
            targets.add(target)
    return found | added


def _final(forward: LinkSet, backward: LinkSet, both: bool) -> LinkSet:
    found = _finished(_grown(forward, backward), forward, both)
    return _finished(found, backward, both)


SYMMETRISATIONS: dict[str, Callable[[LinkSet, LinkSet], LinkSet]] = {
    "intersection": frozenset.intersection,
    "union": frozenset.union,
    "grow-diag": _grown,
    "grow-diag-final": lambda forward, backward: _final(forward, backward, both=False),
    "grow-diag-final-and": lambda forward, backward: _final(forward, backward, both=True),
}
"""By name, what makes one set of links from two."""
