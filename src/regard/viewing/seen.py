"""Seen: what a model looked at for one sentence, as arrays and words; whoever draws it needs no model."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.array_file import load_arrays, save_arrays
from regard.viewing.pooled_attention import Pooled
from regard.viewing.seen_site import Site, firsts, real, spelled_words, taken, word_numbers
from regard.viewing.terminal_colors import cropped
from regard.viewing.word_groups import grouped

__all__ = ["Seen", "Site"]

SITE, ARRAYS = ("name", "rows", "columns", "row_words", "column_words"), ("weights", "values")
LONG, LONG_ARRAYS = ("name", "rows", "columns", "whole"), ("keys", "weights", "maxima", "means")
"""What is kept of each site in a file: as text, and as arrays."""

TEXT = {
    "source": [str],
    "target": [str],
    "source_words": [int],
    "target_words": [int],
    "title": str,
    "notes": [str],
    "score": float,
    "sites": [dict],
    "long": [dict],
}
SITE_TEXT = {"name": str, "rows": [str], "columns": [str], "row_words": [int], "column_words": [int]}
LONG_TEXT = {"name": str, "rows": [str], "columns": [str], "whole": bool}
"""The type of each value in a file; a list of one type stands for lists of it."""

BEGIN = "<s>"
"""What a decoder reads before its first token."""


@dataclass(frozen=True, eq=False, repr=False)
class Seen:
    """What a model looked at for one sentence: its sites, its pieces, and the words that these belong to.

    source, target: pieces, "</s>" included. source_words, target_words: the number of the word each piece
    belongs to, -1 for none. title, notes, score: what is told beside it. long: sites of sequences too long
    for a matrix.

    >>> from regard.viewing import Seen, Site
    >>> source, target = ("▁고", "양이", "</s>"), ("▁cat", "</s>")
    >>> site = Site("decoder.cross", [[0.5, 0.25, 0.25], [0, 0, 1]], target, source)
    >>> seen = Seen((site,), source, target, (0, 0, -1), (0, -1))
    >>> words = seen.words()
    >>> words.source, words.sites[0].weights[0].tolist()
    (('고양이', '</s>'), [[0.75, 0.25], [0.0, 1.0]])
    >>> seen.words().without_specials(renormalise=True).sites[0].weights.tolist()
    [[[1.0]]]
    """

    sites: tuple[Site, ...]
    source: tuple[str, ...]
    target: tuple[str, ...]
    source_words: tuple[int, ...]
    target_words: tuple[int, ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    score: float | None = None
    long: tuple[Pooled, ...] = ()

    def __post_init__(self) -> None:
        for name in ("sites", "source", "target", "notes", "long"):
            given = getattr(self, name)
            if isinstance(given, str | Site | Pooled):
                raise ArgumentError(message("Seen()", f"{name} is one, not a list", hint=f"{name}=[...]"))
            self._set(name, tuple(given))
        for name in ("source_words", "target_words"):
            pieces = getattr(self, name.removesuffix("_words"))
            self._set(name, word_numbers("Seen()", name, getattr(self, name), len(pieces)))
        self._set("sites", tuple(map(self._numbered, self.sites)))

    def __repr__(self) -> str:
        sites = [site.name for site in self.sites] + [site.name for site in self.long]
        pieces = f"{len(self.source)} source and {len(self.target)} target pieces"
        return f"Seen({cropped(self.title, 60)!r}, {pieces}; {', '.join(sites) or 'no sites'})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        crossing = any(site.kind == "cross" for site in self.sites)
        yield self.words().picture() if crossing else Text(repr(self))

    def _repr_html_(self) -> str | None:
        crossing = any(site.kind == "cross" for site in self.sites)
        return str(self.words().picture()._repr_html_()) if crossing else None

    def site(self, name: str) -> Site:
        """The site of this name.

        >>> Seen((), (), (), (), ()).site("decoder.cross")
        Traceback (most recent call last):
        regard.errors.UnknownName: unknown site 'decoder.cross'
        known:
        """
        for site in self.sites:
            if site.name == name:
                return site
        raise UnknownName("site", name, [site.name for site in self.sites])

    def words(self) -> Seen:
        """The same with pieces joined to words: a sum over pieces looked at, a mean over pieces that look.

        What belongs to no word, such as "</s>", stays as it is. Values are known of pieces alone, and are
        left out.
        """
        source, target = grouped(self.source_words), grouped(self.target_words)
        return replace(
            self,
            sites=tuple(site.words() for site in self.sites),
            source=spelled_words(self.source, source),
            target=spelled_words(self.target, target),
            source_words=firsts(self.source_words, source),
            target_words=firsts(self.target_words, target),
        )

    def without_specials(self, renormalise: bool) -> Seen:
        """The same without what belongs to no word: "</s>", "<s>".

        renormalise: whether each row is made to sum to what it did before; otherwise what the special tokens
        received is gone. A row that looked at nothing else is 0.
        """
        source, target = real(self.source_words), real(self.target_words)
        return replace(
            self,
            sites=tuple(site.without_specials(renormalise) for site in self.sites),
            source=taken(self.source, source),
            target=taken(self.target, target),
            source_words=taken(self.source_words, source),
            target_words=taken(self.target_words, target),
        )

    def weighted_by_values(self) -> Seen:
        """The same with each weight multiplied by the norm of the value it read (Kobayashi et al. 2020).

        Sites whose values are not known are left out.
        """
        known = [site for site in self.sites if site.values is not None]
        if not known:
            problem = "the values of no site are known"
            hint = "values are known of pieces: seen.weighted_by_values().words(), in this order"
            raise ArgumentError(message("weighted_by_values()", problem, hint=hint))
        weighted = replace(self, sites=tuple(site.weighted_by_values() for site in known))
        return weighted.noted("weights are multiplied by the norms of the values that they read")

    def noted(self, *notes: object) -> Seen:
        """The same with something more said under its pictures: what `faithfulness()` found, say.

        >>> Seen((), (), (), (), ()).noted("all of it was read").notes
        ('all of it was read',)
        """
        return replace(self, notes=(*self.notes, *map(str, notes)))

    def rollout(self, part: str = "encoder") -> Site:
        """How much of each input a part's last layer holds, if attention were all that moves it.

            R = A_L ... A_2 A_1,  A = (W + I) / 2,  each row divided by its sum

        with W the mean over the heads of a layer's self-attention (Abnar and Zuidema 2020, eq. 1).

        >>> weights = numpy.full((2, 2, 2), 0.5)
        >>> sites = [Site(f"encoder.{layer}.self", weights, ("a", "b"), ("a", "b")) for layer in range(2)]
        >>> seen = Seen(sites, ("a", "b"), (), (0, 1), ())
        >>> seen.rollout().weights.tolist()
        [[[0.625, 0.375], [0.375, 0.625]]]
        """
        layers = [
            site
            for site in self.sites
            if site.name.startswith(f"{part}.") and site.name.endswith("self") and site.heads
        ]
        if not layers:
            known = ", ".join(site.name for site in self.sites) or "none"
            problem = f"there is no self-attention of the {part}; the sites are: {known}"
            raise ArgumentError(message("rollout()", problem, hint='look="*" keeps every site'))
        layers.sort(key=lambda site: [int(number) for number in re.findall(r"\d+", site.name)])
        rolled = numpy.eye(len(layers[0].rows))
        for site in layers:
            mixed = site.weights.mean(0, dtype=numpy.float64) + numpy.eye(len(site.rows))
            rolled = mixed / mixed.sum(-1, keepdims=True) @ rolled
        return replace(layers[-1], name=f"{part}.rollout", weights=rolled.astype(numpy.float32), values=None)

    def picture(self, view: str = "matrix", **options: Any) -> Any:
        """Draw it: see regard.viewing.picture, which takes the same."""
        return importlib.import_module("regard.viewing.picture").picture(self, view, **options)

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all: a header in JSON and the arrays, as safetensors does.

        It is read by Seen.load on any machine, years later, with no model.
        """
        about = ("source", "target", "source_words", "target_words", "title", "notes", "score")
        told = {name: getattr(self, name) for name in about}
        told["sites"] = [{name: getattr(site, name) for name in SITE} for site in self.sites]
        told["long"] = [{name: getattr(site, name) for name in LONG} for site in self.long]
        arrays: dict[str, NDArray[Any]] = {}
        for kind, sites, names in (("sites", self.sites, ARRAYS), ("long", self.long, LONG_ARRAYS)):
            for place, site in enumerate(sites):
                found = {f"{kind}.{place}.{name}": getattr(site, name) for name in names}
                arrays |= {name: array for name, array in found.items() if array is not None}
        save_arrays(path, "regard.seen", told, arrays)

    @staticmethod
    def load(path: str | Path) -> Seen:
        """Read what save() wrote; nothing in the file is ever run."""
        told, arrays = load_arrays(path, "regard.seen", "Seen.save()")

        def built(kind: str, make: Any, names: Sequence[str]) -> tuple[Any, ...]:
            return tuple(
                make(**about, **{name: arrays.get(f"{kind}.{place}.{name}") for name in names})
                for place, about in enumerate(told.pop(kind))
            )

        try:
            _check_told(told, TEXT)
            for kind, known in (("sites", SITE_TEXT), ("long", LONG_TEXT)):
                for each in told[kind]:
                    _check_told(each, known)
            sites, long = built("sites", Site, ARRAYS), built("long", Pooled, LONG_ARRAYS)
            return Seen(sites, **told, long=long)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            problem = f"this file is damaged: {type(error).__name__}"
            raise DataError(message(str(path), problem, hint="write it again with Seen.save()")) from None

    def _numbered(self, site: Site) -> Site:
        """A site with the words that its rows and columns belong to."""
        if site.row_words is not None and site.column_words is not None:
            return site
        target_first = site.kind != "encoder"
        return replace(
            site,
            row_words=site.row_words or self._words_of(site.rows, target_first),
            column_words=site.column_words or self._words_of(site.columns, site.kind == "decoder"),
        )

    def _words_of(self, pieces: tuple[str, ...], target_first: bool) -> tuple[int, ...]:
        sides = [(self.source, self.source_words), (self.target, self.target_words)]
        read = ((BEGIN, *self.target[:-1]), (-1, *self.target_words[:-1]))
        for known, numbers in (*(reversed(sides) if target_first else sides), read):
            if pieces == known:
                return numbers
        return tuple(range(len(pieces)))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _check_told(told: dict[str, Any], known: dict[str, Any]) -> None:
    """Raise where a value that a file gives is of another type than save() writes."""
    optional = ("score", "row_words", "column_words")
    for name, value in told.items():
        kind = known.get(name)
        if kind is None or (value is None and name in optional):
            continue  # an unknown name is refused by the constructor
        if isinstance(kind, list):
            valid = isinstance(value, list) and all(_is(each, kind[0]) for each in value)
        else:
            valid = _is(value, kind)
        if not valid:
            raise TypeError(name)


def _is(value: object, kind: type) -> bool:
    if kind is int:
        return type(value) is int and abs(value) < 2**31
    if kind is float:
        return type(value) is float or (type(value) is int and abs(value) < 2**53)
    return isinstance(value, kind)
