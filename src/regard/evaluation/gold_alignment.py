"""Links that people drew: whether they fit the pairs they are for, and how well others agree with them."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.line_io import say
from regard.errors import DataError, message
from regard.evaluation import AlignmentScore, Links, past_the_end, score_links

__all__ = ["check_drawn", "judged"]

SLIPS = 0.05
"""Of how many sentences the links may point past the words: people slip, but not in one of twenty."""


def judged(
    links: Sequence[tuple[tuple[int, int], ...]],
    drawn: Sequence[Links],
    words: Sequence[tuple[int, int]],
    place: str,
) -> AlignmentScore:
    """How well links agree with those that people drew; words: how many each side has between spaces."""
    check_drawn(drawn, words, place)
    return score_links(links, drawn)


def check_drawn(drawn: Sequence[Links], words: Sequence[tuple[int, int]], place: str) -> None:
    """Refuse links that are not those of the pairs: of another number, or counted from another number.

    A few that point past the words are slips of whoever drew them. They count as links that nobody finds, as
    they do in other programs, and standard error says so.
    """
    if len(drawn) != len(words):
        problem = f"{len(drawn):,} lines of links for {len(words):,} pairs"
        raise DataError(message(place, problem, expected="one for each, empty where there is no link"))
    past = past_the_end(drawn, words)
    if not past:
        return
    line, (source, target) = past[0]
    counts = f"{words[line][0]} and {words[line][1]} words"
    where, problem = f"{place}, line {line + 1}", f"a link {source}-{target}, with {counts}, from 0 on"
    if len({line for line, _ in past}) > SLIPS * len(drawn):
        hint = "--base 1 where words are counted from 1; or are the sides swapped?"
        raise DataError(message(where, problem, hint=hint))
    more = f"; {len(past)} such links in all" if len(past) > 1 else ""
    say(f"{where}: {problem}: it counts as one that was not found{more}")
