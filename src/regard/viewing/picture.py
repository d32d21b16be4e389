"""picture(): draw recorded attention in one of several views, chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray
from rich.console import Group
from rich.text import Text

from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.pictures.animation import player
from regard.viewing.pictures.canvas import Canvas, label
from regard.viewing.pictures.matrix import BETWEEN, heads, long_map, matrix
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.pictures.view_selection import Chosen, Word, matching, mean_of, place_of
from regard.viewing.pictures.words import lines, over_time, reading, shaded
from regard.viewing.seen import BEGIN, Drawable, Seen, Site, drawable

UNIFORM_KEYS, UNIFORM_RATIO = 4, 1.5
"""Limits for weights that are called nearly uniform: there are at least UNIFORM_KEYS keys, and no weight
exceeds UNIFORM_RATIO / (number of keys)."""

NOT_AVERAGED = ("self", "rollout", "long", "reading")
"""The views that do not draw a mean over sites. Their pictures have no notes about drawn sites and uniform
weights."""


def picture(
    seen: Drawable,
    view: str = "matrix",
    *,
    site: str | None = None,
    head: int | None = None,
    word: Word | None = None,
    title: str | None = None,
) -> Picture:
    """Draw recorded attention as a Picture, to print, to display in a notebook, or to save as a file.

    seen: a Seen, a Translation, or the result of record() for one sequence. The subwords of a Translation are
        joined to words. In a result of record(), the words are the positions 0, 1, 2, ...
    view: "matrix", "lines", "heads", "word" (one key over time), "shaded", "self" (self-attention of encoder
        and decoder), "rollout", "player" (an animation), "long" or "reading" (one line per word of a text,
        with the earlier words shaded by its attention to them).
    site: name of an attention layer (site), with * as wildcard. If several sites match, their mean is drawn.
        Default: the cross-attention sites. If there are none, the last site and all sites of the same kind
        (see Site.kind), for example all self-attention sites of the encoder.
    head: index of one head. Default: the mean over heads.
    word: the word to draw, as an index or as text: a key in the view "word", a query in the view "shaded".
    title: a line above the picture. Default: the title of `seen`, usually the target sentence.

    The method save() of the result writes a .png, .svg, .pdf or .gif file.

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
    _check(view, head, word)
    recorded = isinstance(seen, Mapping)
    seen = drawable(seen, "picture()")
    drawn = VIEWS[view](Asked(seen, site, head, word, seen.title if title is None else title))
    sites = _sites_drawn(seen) if recorded and site is None and view not in NOT_AVERAGED else ()
    return noted(drawn, *sites, *_uniformity(seen, view, site, head), *seen.notes)


def noted(drawn: Picture, *notes: str) -> Picture:
    """Add notes below a picture, in its files and in the terminal, and return the picture."""
    labels = [label(note, 220) for note in notes]
    for canvas in drawn.frames:
        canvas.foot(*labels)
    if labels:
        drawn.terminal = Group(drawn.terminal, *(Text(note, "dim") for note in labels))
    return drawn


def _sites_drawn(seen: Seen) -> Iterator[str]:
    """Yield a note if some recorded sites (attention layers) are not drawn by default.

    The note lists the sites that are drawn and the sites that are not drawn. It says that site=... selects
    other sites.
    """
    drawn = [each.name for each in matching(seen)]
    others = [each.name for each in seen.sites if each.name not in drawn]
    if others:
        yield f"drawn: {', '.join(drawn)}; not drawn: {', '.join(others)}; choose with site=..."


def _uniformity(seen: Seen, view: str, site: str | None, head: int | None) -> Iterator[str]:
    """Yield a note if the weights in the picture are nearly uniform.

    The colour scale ends at the largest weight. So without the note, small differences would look important.
    """
    if view in NOT_AVERAGED:
        return
    drawn: list[NDArray[Any]] = [each.weights for each in matching(seen, site)] if view == "heads" else []
    for weights in drawn or [mean_of(matching(seen, site), head).weights]:
        keys = weights.shape[-1]
        normalised = weights.size and weights.sum(-1).min() > 0.9
        if keys < UNIFORM_KEYS or not normalised or weights.max() > UNIFORM_RATIO / keys:
            return
    yield f"nearly uniform: all weights are close to 1/{keys} = {1 / keys:.3g}"


class Asked(NamedTuple):
    """What to draw: the arguments of picture()."""

    seen: Seen
    site: str | None
    head: int | None
    word: Word | None
    title: str

    @property
    def choice(self) -> Chosen:
        """The mean weights of the sites that match."""
        return mean_of(matching(self.seen, self.site), self.head)


def _word(asked: Asked) -> Picture:
    choice, word = asked.choice, asked.word
    if isinstance(word, str):
        side = "target" if choice.kind == "decoder" else "source"
        word = place_of(word, choice.columns, "picture()", side, choice.rows)
    return over_time(*_values(choice, "" if word is not None else asked.title), word=word)


def _shaded(asked: Asked) -> Picture:
    choice, word = asked.choice, asked.word
    if isinstance(word, str):
        side = "source" if choice.kind == "encoder" else "target"
        word = place_of(word, choice.rows, "picture()", side, choice.columns)
    return shaded(*_values(choice, asked.title), word=word)


def _self(asked: Asked) -> Picture:
    """Draw the self-attention of the encoder and of the decoder as two matrices side by side.

    If `site` is set, there is only one matrix: the mean of the matching sites.
    """
    seen, title = asked.seen, asked.title
    groups = (
        [matching(seen, asked.site)] if asked.site else [_own(seen, part) for part in ("encoder", "decoder")]
    )
    if not any(groups):
        raise _no_self_attention(seen)
    drawn = [matrix(*_values(mean_of(sites, asked.head), "")) for sites in groups if sites]
    canvas, left = Canvas(label(title, 90) or "Self-attention"), 0.0
    for each in drawn:
        bounds = each.frames[0].bounds
        canvas.put(each.frames[0], left - bounds[0], -bounds[1])
        left += bounds[2] - bounds[0] + BETWEEN
    canvas.head(label(title, 90))
    canvas.about = " and ".join(each.frames[0].about for each in drawn)
    return Picture([canvas], Group(*(each.terminal for each in drawn)))


def _rollout(asked: Asked) -> Picture:
    rolled = asked.seen.rollout(asked.site or "encoder")
    about = f"{rolled.name}: attention through all layers"
    return matrix(rolled.weights[0], rolled.rows, rolled.columns, asked.title, about)


def _player(asked: Asked) -> Picture:
    choice, seen = asked.choice, asked.seen
    if choice.kind != "cross":
        problem = f"view 'player' needs cross-attention, but {choice.about} is not a cross-attention site"
        hint = "choose another view: there is no cross-attention"
        if any(each.kind == "cross" for each in seen.sites):
            hint = "use site='cross' (--site cross) to draw all cross-attention, or another view"
        raise ArgumentError(message("picture()", problem, hint=hint))
    encoder, decoder = _own(seen, "encoder"), _own(seen, "decoder")
    reading = mean_of(encoder, asked.head).weights if encoder else None
    past = _past(mean_of(decoder, asked.head), len(choice.rows)) if decoder else None
    return player(choice.weights, choice.columns, choice.rows, asked.title, reading=reading, past=past)


def _long(asked: Asked) -> Picture:
    names = [each.name for each in asked.seen.long]
    if not names:
        problem = "there are no sites of long sequences (Seen.long is empty)"
        hint = "make them with regard.viewing.pooled(...), or use view='matrix' to draw the other sites"
        raise ArgumentError(message("picture()", problem, hint=hint))
    if asked.site is not None and asked.site not in names:
        raise UnknownName("long site", asked.site, names)
    place = names.index(asked.site) if asked.site else 0
    return long_map(asked.seen.long[place], asked.title, head=asked.head)


def _reading(asked: Asked) -> Picture:
    """Draw one line of text for each word, with the earlier words that it attends to.

    If `site` is None, the self-attention of the decoder is drawn. If there is none, the self-attention of the
    encoder is drawn.
    """
    seen = asked.seen
    sites = matching(seen, asked.site) if asked.site else _own(seen, "decoder") or _own(seen, "encoder")
    if not sites:
        raise _no_self_attention(seen)
    choice = mean_of(sites, asked.head)
    later = len(choice.rows) != len(choice.columns) or numpy.triu(choice.weights, 1).any()
    if later or choice.kind == "cross":
        problem = f"view 'reading' needs attention to earlier words only, unlike {choice.about}"
        hint = (
            "the attention of language models and of an lstmn has this form; use view='self' for other sites"
        )
        raise ArgumentError(message("picture()", problem, hint=hint))
    return reading(choice.weights, choice.columns, asked.title, choice.about)


View = Callable[[Asked], Picture]

VIEWS: dict[str, View] = {
    "matrix": lambda asked: matrix(*_values(asked.choice, asked.title)),
    "lines": lambda asked: lines(*_values(asked.choice, asked.title)),
    "heads": lambda asked: heads(matching(asked.seen, asked.site), asked.title),
    "word": _word,
    "shaded": _shaded,
    "self": _self,
    "rollout": _rollout,
    "player": _player,
    "long": _long,
    "reading": _reading,
}
"""Every view by name. To add a view, write its module and add one line here."""

OF_ONE_WORD, OF_ALL_HEADS = ("word", "shaded"), ("heads", "rollout")
"""The views that can draw one word, and those that draw all heads."""

Drawn = tuple[NDArray[numpy.float64], Sequence[str], Sequence[str], str, str]


def _check(view: str, head: int | None, word: Word | None) -> None:
    """Raise ArgumentError if the view cannot draw a single word or a single head."""
    if word is not None and view not in OF_ONE_WORD:
        hint = "leave out word=..., or use view='word' or view='shaded'"
        raise ArgumentError(message("picture()", f"view {view!r} draws all words", hint=hint))
    if head is not None and view in OF_ALL_HEADS:
        hint = "use view='matrix' to draw one head"
        problem = f"view {view!r} always uses every head, so head=... is not allowed"
        raise ArgumentError(message("picture()", problem, hint=hint))


def _values(choice: Chosen, title: str) -> Drawn:
    return choice.weights, choice.rows, choice.columns, title, choice.about


def _no_self_attention(seen: Seen) -> ArgumentError:
    names = [each.name for each in seen.sites]
    problem = f"there is no self-attention of an encoder or decoder; sites: {', '.join(names) or 'none'}"
    if not names:
        hint = "record the attention first: translate with look='*', or call the model inside record()"
    else:
        likely = next((each.name for each in seen.sites if each.role.kind == "self"), names[0])
        hint = f"name the site to draw: picture(..., 'self', site={likely!r})"
        if all(each.kind == "cross" for each in seen.sites):
            hint = "choose another view, or record self-attention: translate with a Transformer and look='*'"
    return ArgumentError(message("picture()", problem, hint=hint))


def _own(seen: Seen, part: str) -> list[Site]:
    """Return the recorded self-attention layers (sites) of `part`, which is "encoder" or "decoder"."""
    return [each for each in seen.sites if each.kind == part and each.role.kind == "self"]


def _past(choice: Chosen, count: int) -> NDArray[numpy.float64] | None:
    """Return the decoder self-attention weights (T, T) between target words, without the column of BOS.

    choice: decoder self-attention weights with the words of their rows and columns.
    count: T, the number of target words.

    If the columns end before the last target word, they are padded with zeros.

    Returns None if the rows or columns are not the target words.
    """
    skipped = 1 if choice.columns[:1] == (BEGIN,) else 0
    weights = choice.weights[:, skipped:]
    if BEGIN in choice.columns[skipped:] or weights.shape[0] != count or weights.shape[1] > count:
        return None
    return numpy.pad(weights, ((0, 0), (0, count - weights.shape[1])))
