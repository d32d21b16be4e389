"""Draw queries, keys, scores and values of one attention layer (site) for a sentence pair."""

from __future__ import annotations

from typing import Any

from regard.call import Call
from regard.errors import ArgumentError, message
from regard.viewing import Picture, Seen, Site, steps
from regard.viewing.picture import noted
from regard.viewing.pictures.view_selection import matching, rows_of

__all__ = ["calls_at", "drawn_steps"]


def calls_at(translator: Any, source: str, target: str, site: str) -> list[Call]:
    """Return the attention calls (query, key, value and settings) of a site for a sentence pair.

    Forced decoding makes the calls: one for all target tokens or, in a recurrent decoder, one per token.

    site: the name of the site.
    """
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
    """Draw a picture of one attention computation for a sentence pair, step by step from scores to output.

    seen: the recorded attention of the pair, with one row per target token.
    words: the same attention, with one row per target word.
    site: the name of a site, with * as wildcard. The last matching site is drawn.
    head: the index of the head. Default: 0.
    word: draw only the rows (queries) of this word or token. Default: all rows.
    """
    place, head = matching(seen, site)[-1], head or 0
    if not 0 <= head < place.heads:
        problem = f"{place.name} has no head {head}"
        raise ArgumentError(message("--head", problem, expected=f"0 to {place.heads - 1}"))
    rows = list(range(len(place.rows)))
    if word is not None:
        rows = rows_of(word, place, words.site(place.name).rows, "--word")
    query, key, value, scores, formula = _inputs(calls_at(translator, source, target, place.name), place)
    label = f"{place.name}, head {head}" if place.heads > 1 else place.name
    picture = steps(
        query[head, rows],
        key[head],
        value[head],
        formula,
        scores=scores[head, rows],
        rows=[place.rows[row] for row in rows],
        columns=place.columns,
        title=seen.title,
        about=f"{label}; query and keys after the projections of the score function",
    )
    return noted(picture, *seen.notes)


def _inputs(calls: list[Call], site: Site) -> tuple[Any, Any, Any, Any, str]:
    """Return query, key, value and scores of an attention layer, and the formula of its scores as text.

    The shapes are query (H, T, D), key (H, S, D), value (H, S, E) and scores (H, T, S). A formula is, for
    example, "query · key × 0.125".

    calls: all calls of the layer for one sentence pair.
    site: the recorded attention of the layer, with the labels of its rows and columns.
    """
    import torch

    from regard.backends.reference import compare
    from regard.select import Soft

    rows = sum(call.sizes[2] for call in calls)
    if not calls or rows != len(site.rows) or calls[0].sizes[3] != len(site.columns):
        problem = "the sentence is too long: it was translated in several parts"
        raise ArgumentError(message("--view steps", problem, hint="use a shorter sentence"))
    if not all(isinstance(call.select, Soft) for call in calls):
        problem = f"{site.name} does not use softmax, but this view can only draw softmax attention"
        raise ArgumentError(message("--view steps", problem))
    parts = []
    for call in calls:
        scores, visible = compare(call)
        parts.append((scores / call.temperature).masked_fill(~visible, -torch.inf)[0])
    first = calls[0]
    query = torch.cat([call.query[0] for call in calls], dim=1)
    key, value = (first.spread(tensor)[0] for tensor in (first.key, first.value))
    if first.combine == "inner":
        scale = first.scale / first.temperature
        formula = "query · key" if scale == 1 else f"query · key × {scale:.3g}"
    else:
        formula = "v · tanh(query + key)"
    formula = formula if first.bias is None else f"{formula} + bias"
    return query.detach(), key.detach(), value.detach(), torch.cat(parts, dim=1).detach(), formula
