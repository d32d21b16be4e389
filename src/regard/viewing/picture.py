"""picture(): from what a model looked at to a picture, by the name of a view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Group
from rich.text import Text

from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.pictures.animation import player
from regard.viewing.pictures.canvas import Canvas
from regard.viewing.pictures.colors import label
from regard.viewing.pictures.head_grid import heads
from regard.viewing.pictures.link_lines import lines
from regard.viewing.pictures.long_sequences import long_map
from regard.viewing.pictures.matrix import matrix
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.shaded_text import shaded
from regard.viewing.pictures.view_selection import Chosen, Word, chosen, matching, place_of
from regard.viewing.pictures.word_over_time import over_time
from regard.viewing.seen import BEGIN, Seen, Site
from regard.viewing.view_inputs import Drawable, drawable

__all__ = ["VIEWS", "Picture", "noted", "picture"]

FEW, EVEN = 4, 1.5
"""Of so many keys on, weights are told to be even where none is more than so many times its share."""

BETWEEN = 36.0
"""Between matrices on one canvas, in points."""


def picture(
    seen: Drawable,
    view: str = "matrix",
    *,
    site: str | None = None,
    head: int | None = None,
    word: Word | None = None,
    title: str | None = None,
) -> Picture:
    """Draw what a model looked at: print it, show it in a notebook, or save it as .png, .svg, .pdf or .gif.

    seen: a Seen; a Translation, drawn by words; or what record() gave for one sequence, drawn by positions.
    view: matrix, lines, heads, word (over time), shaded, self (the encoder's and the decoder's own
    attention), rollout, player or long. site: the places of attention, with * as wildcard; those that look at
    the source unless given, taken together. head: one head of theirs, from 0 on; their mean unless given.
    word: for `word` a key and for `shaded` a query, by number or as text. title: the target unless given.

    >>> from regard.viewing import Seen, Site, picture
    >>> site = Site("decoder.cross", [[0.9, 0.1], [0.0, 1.0]], ["a", "cat"], ["나는", "고양이"])
    >>> seen = Seen([site], ["나는", "고양이"], ["a", "cat"], [0, 1], [0, 1], title="a cat")
    >>> print(picture(seen, "matrix"))
    a cat
            나는    고양이
        a ███████    ·
      cat    ·    ███████
          0  ░▒▓█ 1
    """
    if view not in VIEWS:
        raise UnknownName("view", view, VIEWS)
    seen = drawable(seen, "picture()")
    drawn = VIEWS[view](seen, site, head, word, seen.title if title is None else title)
    return noted(drawn, *_evenness(seen, view, site, head), *seen.notes)


def noted(drawn: Picture, *notes: str) -> Picture:
    """The picture with notes under it, in its files and in the terminal."""
    told = [label(note, 220) for note in notes]
    for canvas in drawn.frames:
        canvas.foot(*told)
    if told:
        drawn.terminal = Group(drawn.terminal, *(Text(note, "dim") for note in told))
    return drawn


def _evenness(seen: Seen, view: str, site: str | None, head: int | None) -> Iterator[str]:
    """A note where all weights are about alike: shades end at the largest, and would have it look strong."""
    if view in ("self", "rollout", "long"):
        return
    drawn: list[NDArray[Any]] = [each.weights for each in matching(seen, site)] if view == "heads" else []
    for weights in drawn or [chosen(seen, site, head).weights]:
        keys = weights.shape[-1]
        whole = weights.size and weights.sum(-1).min() > 0.9
        if keys < FEW or not whole or weights.max() > EVEN / keys:
            return
    yield f"nearly even: no weight is far from 1/{keys} = {1 / keys:.3g}"


def _matrix(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    return matrix(*_drawn("matrix", seen, site, head, word, title))


def _lines(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    return lines(*_drawn("lines", seen, site, head, word, title))


def _word(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    found = chosen(seen, site, head)
    if isinstance(word, str):
        side = "target" if found.kind == "decoder" else "source"
        word = place_of(word, found.columns, "picture()", side, found.rows)
    return over_time(*_values(found, "" if word is not None else title), word=word)


def _shaded(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    found = chosen(seen, site, head)
    if isinstance(word, str):
        side = "source" if found.kind == "encoder" else "target"
        word = place_of(word, found.rows, "picture()", side, found.columns)
    return shaded(*_values(found, title), word=word)


def _heads(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    if head is not None:
        raise ArgumentError(message("picture()", "heads draws every head", hint="matrix draws one"))
    _wordless("heads", word)
    return heads(matching(seen, site), title)


def _self(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    """The attention of each part to itself, a matrix for each."""
    _wordless("self", word)
    patterns = [site] if site else [f"{part}*self" for part in ("encoder", "decoder") if _own(seen, part)]
    if not patterns:
        known = ", ".join(each.name for each in seen.sites) or "none"
        problem = f"no part of the model looks at itself; it looks at {known}"
        hint = "a transformer does; of its translator, look='*' keeps all"
        raise ArgumentError(message("picture()", problem, hint=hint))
    drawn = [matrix(*_values(chosen(seen, pattern, head), "")) for pattern in patterns]
    canvas, left = Canvas(label(title, 90) or "Self-attention"), 0.0
    for each in drawn:
        room = each.frames[0].bounds
        canvas.put(each.frames[0], left - room[0], -room[1])
        left += room[2] - room[0] + BETWEEN
    canvas.head(label(title, 90))
    canvas.about = " and ".join(each.frames[0].about for each in drawn)
    return Picture([canvas], Group(*(each.terminal for each in drawn)))


def _rollout(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    if head is not None:
        raise ArgumentError(message("picture()", "a rollout is over all heads of all layers"))
    _wordless("rollout", word)
    found = seen.rollout(site or "encoder")
    return matrix(
        found.weights[0], found.rows, found.columns, title, f"{found.name}: attention through all layers"
    )


def _player(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    _wordless("player", word)
    found = chosen(seen, site, head)
    if found.kind != "cross":
        problem = f"the player shows a target reading its source, and {found.about} does not"
        raise ArgumentError(message("picture()", problem, hint="view='self' draws self-attention"))
    reading = chosen(seen, "encoder*self", head).weights if _own(seen, "encoder") else None
    past = _past(chosen(seen, "decoder*self", head), len(found.rows)) if _own(seen, "decoder") else None
    return player(found.weights, found.columns, found.rows, title, reading=reading, past=past)


def _long(seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Picture:
    _wordless("long", word)
    names = [each.name for each in seen.long]
    if not names:
        hint = "regard.viewing.pooled_attention(...) makes them; view='matrix' draws the rest"
        raise ArgumentError(message("picture()", "nothing long was kept", hint=hint))
    if site is not None and site not in names:
        raise UnknownName("long site", site, names)
    return long_map(seen.long[names.index(site) if site else 0], title, head=head)


View = Callable[[Seen, str | None, int | None, Word | None, str], Picture]

VIEWS: dict[str, View] = {
    "matrix": _matrix,
    "lines": _lines,
    "heads": _heads,
    "word": _word,
    "shaded": _shaded,
    "self": _self,
    "rollout": _rollout,
    "player": _player,
    "long": _long,
}
"""Every view of what was seen, by name. To add one: its file and one line."""

Drawn = tuple[NDArray[numpy.float64], Sequence[str], Sequence[str], str, str]


def _drawn(view: str, seen: Seen, site: str | None, head: int | None, word: Word | None, title: str) -> Drawn:
    _wordless(view, word)
    return _values(chosen(seen, site, head), title)


def _values(found: Chosen, title: str) -> Drawn:
    return found.weights, found.rows, found.columns, title, found.about


def _own(seen: Seen, part: str) -> list[Site]:
    return [each for each in seen.sites if each.kind == part and each.name.endswith("self")]


def _past(found: Chosen, count: int) -> NDArray[numpy.float64] | None:
    """What each target word read of those before it; None where it cannot be told which they were."""
    skipped = 1 if found.columns[:1] == (BEGIN,) else 0
    kept = found.weights[:, skipped:]
    if BEGIN in found.columns[skipped:] or kept.shape[0] != count or kept.shape[1] > count:
        return None
    return numpy.pad(kept, ((0, 0), (0, count - kept.shape[1])))


def _wordless(view: str, word: Word | None) -> None:
    if word is not None:
        raise ArgumentError(
            message("picture()", f"{view} draws all words", hint="word=... is of word and shaded")
        )
