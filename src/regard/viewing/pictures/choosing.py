"""Choosing: which sites, heads and words of what was seen are drawn."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.seen import Seen, Site
from regard.viewing.shades import clean

__all__ = ["Chosen", "chosen", "matching", "place_of"]

Word = int | str


class Chosen(NamedTuple):
    """Weights (T, S) of one place, or of several taken together, with their words and what to call them."""

    weights: NDArray[numpy.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    about: str
    kind: str


def matching(seen: Seen, site: str | None = None) -> list[Site]:
    """The sites of this name, with * as wildcard; those that look at the source unless given.

    >>> from regard.viewing import Seen, Site
    >>> seen = Seen([Site("decoder.cross", [[1.0]], ["a"], ["b"])], ["b"], ["a"], [0], [0])
    >>> [each.name for each in matching(seen, "*cross")]
    ['decoder.cross']
    """
    if not seen.sites:
        problem = "nothing was looked at: the model has no attention, or none was kept"
        raise ArgumentError(message("picture()", problem, hint="bahdanau, luong and transformer have some"))
    names = [each.name for each in seen.sites]
    if site is None:
        crossing = [each for each in seen.sites if each.kind == "cross"]
        return crossing or [each for each in seen.sites if each.kind == seen.sites[-1].kind]
    found = [each for each in seen.sites if fnmatch.fnmatchcase(each.name, site)]
    if not found:
        raise UnknownName("site", clean(site), names)
    return found


def chosen(seen: Seen, site: str | None = None, head: int | None = None) -> Chosen:
    """The mean of the sites of this name and of their heads, or of one head of theirs."""
    sites = matching(seen, site)
    first = sites[0]
    for other in sites[1:]:
        if other.rows != first.rows or other.columns != first.columns:
            problem = f"{first.name} and {other.name} do not look from the same words at the same words"
            raise ArgumentError(message("picture()", problem, hint=f"site={first.name!r} alone"))
    weights = numpy.stack([_of_head(each, head) for each in sites]).astype(numpy.float64).mean(0)
    return Chosen(weights, first.rows, first.columns, _about(sites, head), first.kind)


def place_of(word: Word, words: Sequence[str], call: str = "picture()") -> int:
    """The place of a word, given as its number from 0 on (from the end below 0) or as text.

    >>> place_of("cat", ["a", "cat"]), place_of(-1, ["a", "cat"])
    (1, 1)
    """
    try:
        number = int(word)
    except ValueError:
        number = None
    if isinstance(word, str) and word in words:
        return list(words).index(word)
    if number is None:
        raise UnknownName("word", clean(word), {clean(each) for each in words})
    if not -len(words) <= number < len(words):
        expected = f"0 to {len(words) - 1}, or a word itself"
        raise ArgumentError(message(call, f"there is no word {number}", expected=expected))
    return number % len(words)


def _of_head(site: Site, head: int | None) -> NDArray[numpy.float32]:
    if head is None:
        return site.weights.mean(0)
    if not 0 <= head < site.heads:
        expected = f"0 to {site.heads - 1}" if site.heads > 1 else "0: it has one"
        raise ArgumentError(message("picture()", f"{site.name} has no head {head}", expected=expected))
    return site.weights[head]


def _about(sites: Sequence[Site], head: int | None) -> str:
    """What the weights are, in a few words."""
    heads = sites[0].heads
    which = f"head {head}" if head is not None else f"mean of {heads} heads" if heads > 1 else ""
    name = (
        sites[0].name
        if len(sites) == 1
        else f"mean of {len(sites)} sites, {sites[0].name} to {sites[-1].name}"
    )
    return ", ".join(filter(None, (name, which)))
