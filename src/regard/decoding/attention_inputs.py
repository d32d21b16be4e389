"""What went into an attention of a run: queries, keys, scores and values at a site, for one pair."""

from __future__ import annotations

from typing import Any

from regard.call import Call
from regard.errors import ArgumentError, message
from regard.viewing import Picture, Seen, Site, steps
from regard.viewing.picture import noted
from regard.viewing.pictures.view_selection import matching, rows_of

__all__ = ["calls_at", "drawn_steps"]


def calls_at(translator: Any, source: str, target: str, site: str) -> list[Call]:
    """The calls made at a site while a given pair is read, in their order."""
    from regard.sites import scope

    calls: list[Call] = []
    with scope(at=site, watch=lambda _, call: calls.append(call)):
        translator.score([source], [target])
    return calls


def drawn_steps(
    translator: Any,
    seen: Seen,
    source: str,
    target: str,
    site: str | None,
    head: int | None,
    word: str | None,
    words: Seen,
) -> Picture:
    """One attention of a pair, step by step: of the last site of this name, and of its first head.

    word: of the words that the rows of the site spell, in `words`, or of its pieces; all rows unless given.
    """
    place, head = matching(seen, site)[-1], head or 0
    if not 0 <= head < place.heads:
        problem = f"{place.name} has no head {head}"
        raise ArgumentError(message("--head", problem, expected=f"0 to {place.heads - 1}"))
    rows = list(range(len(place.rows)))
    if word is not None:
        rows = rows_of(word, place, words.site(place.name).rows, "--word")
    query, key, value, scores, formula = _numbers(calls_at(translator, source, target, place.name), place)
    named = f"{place.name}, head {head}" if place.heads > 1 else place.name
    drawn = steps(
        query[head, rows],
        key[head],
        value[head],
        formula,
        scores=scores[head, rows],
        rows=[place.rows[row] for row in rows],
        columns=place.columns,
        title=seen.title,
        about=f"{named}; query and keys as the score projects them",
    )
    return noted(drawn, *seen.notes)


def _numbers(made: list[Call], site: Site) -> tuple[Any, Any, Any, Any, str]:
    """Query (H, T, D), key (H, S, D), value (H, S, E), scores (H, T, S) of a site, and how they were made."""
    import torch

    from regard.backends.reference import compare
    from regard.select import Soft

    rows = sum(call.sizes[2] for call in made)
    if not made or rows != len(site.rows) or made[0].sizes[3] != len(site.columns):
        problem = "the sentence was read in several parts"
        raise ArgumentError(message("--view steps", problem, hint="a shorter sentence can be shown"))
    if not all(isinstance(call.select, Soft) for call in made):
        problem = f"{site.name} does not select by softmax, which is what is drawn"
        raise ArgumentError(message("--view steps", problem))
    parts = []
    for call in made:
        scores, visible = compare(call)
        parts.append((scores / call.temperature).masked_fill(~visible, -torch.inf)[0])
    first = made[0]
    query = torch.cat([call.query[0] for call in made], dim=1)
    key, value = (first.spread(each)[0] for each in (first.key, first.value))
    if first.combine == "inner":
        scale = first.scale / first.temperature
        formula = "query · key" if scale == 1 else f"query · key × {scale:.3g}"
    else:
        formula = "v · tanh(query + key)"
    biased = formula if first.bias is None else f"{formula} + bias"
    return query.detach(), key.detach(), value.detach(), torch.cat(parts, dim=1).detach(), biased
