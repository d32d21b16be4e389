"""Seen: the recorded attention of one sentence as arrays and words. It can be drawn without the model."""

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

SITE, ARRAYS = ("name", "rows", "columns", "row_words", "column_words", "role"), ("weights", "values")
LONG = ("name", "rows", "columns", "whole", "exact_means")
LONG_ARRAYS = ("keys", "weights", "maxima", "means")
"""The fields that a saved Seen has for each site.

SITE and ARRAYS are fields of a Site. LONG and LONG_ARRAYS are fields of a Pooled. SITE and LONG are saved in
the JSON header. ARRAYS and LONG_ARRAYS are saved as arrays."""

WRITERS = "regard view --output, or Seen.save()"
"""What writes .seen files, for error messages."""

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
SITE_TEXT |= {"role": [str]}  # missing in files of earlier versions
LONG_TEXT = {"name": str, "rows": [str], "columns": [str], "whole": bool}
LONG_TEXT |= {"exact_means": bool}  # missing in files of earlier versions
"""The types of the values in the JSON header of a saved Seen.

TEXT is for the Seen, SITE_TEXT for a Site, LONG_TEXT for a Pooled. [str] means a list of str."""

BEGIN = "<s>"
"""The begin-of-sentence token: the first input of a decoder."""


@dataclass(frozen=True, eq=False, repr=False)
class Seen:
    """The recorded attention of one sentence or one translation, with its subwords and words.

    sites: a Site for each recorded attention layer.
    source, target: subwords, including "</s>".
    source_words, target_words: the index of the word of each subword. -1 for special tokens.
    title: text printed above pictures.
    notes: texts printed below pictures.
    score: the log-probability of the target.
    long: a Pooled for each recorded attention layer of a sequence that is too long for a matrix.

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
            value = getattr(self, name)
            if isinstance(value, str | Site | Pooled):
                problem = f"{name} is a single {type(value).__name__}, not a list"
                raise ArgumentError(message("Seen()", problem, hint=f"{name}=[...]"))
            self._set(name, tuple(value))
        for name in ("source_words", "target_words"):
            pieces = getattr(self, name.removesuffix("_words"))
            self._set(name, word_numbers("Seen()", name, getattr(self, name), len(pieces)))
        self._set("sites", tuple(map(self._numbered, self.sites)))

    def __repr__(self) -> str:
        sites = [site.name for site in self.sites] + [site.name for site in self.long]
        counts = f"{len(self.source)} source and {len(self.target)} target subwords"
        return f"Seen({cropped(self.title, 60)!r}, {counts}; {', '.join(sites) or 'no sites'})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        crossing = any(site.kind == "cross" for site in self.sites)
        yield self.words().picture() if crossing else Text(repr(self))

    def _repr_html_(self) -> str | None:
        crossing = any(site.kind == "cross" for site in self.sites)
        return str(self.words().picture()._repr_html_()) if crossing else None

    def site(self, name: str) -> Site:
        """Return the site with this name. Raise UnknownName if there is no such site.

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
        """Return a copy in which the subwords are joined to words.

        Weights are summed over the subwords of a key and averaged over the subwords of a query. Special
        tokens such as "</s>" are not changed. Value norms are dropped, because they exist only for subwords.
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
        """Return a copy without the special tokens, such as "</s>" and "<s>".

        renormalise: whether to scale the remaining weights of each row, so that the sum of the row does not
            change. If only special tokens have weights in a row, all remaining weights are 0.
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
        """Return a copy with each weight multiplied by the norm of the value vector of its key.

        This follows Kobayashi et al. (2020).

        Sites without value norms are left out.
        """
        sites = [site for site in self.sites if site.values is not None]
        if not sites:
            problem = "no site has value norms"
            hint = "words() and weighted_by_values() drop them: seen.weighted_by_values().words(), once"
            raise ArgumentError(message("weighted_by_values()", problem, hint=hint))
        weighted = replace(self, sites=tuple(site.weighted_by_values() for site in sites))
        return weighted.noted("weights are multiplied by value norms")

    def noted(self, *notes: object) -> Seen:
        """Return a copy with more notes, for example faithfulness results. Notes are printed below pictures.

        >>> Seen((), (), (), (), ()).noted("translated with beam size 5").notes
        ('translated with beam size 5',)
        """
        return replace(self, notes=(*self.notes, *map(str, notes)))

    def rollout(self, part: str = "encoder") -> Site:
        """Compute attention rollout, an estimate of how much each input token contributes to the last layer.

            R = A_L ... A_2 A_1,  A = (W + I) / 2,  each row divided by its sum

        L is the number of layers. W are the self-attention weights of a layer, averaged over heads (Abnar and
        Zuidema 2020, eq. 1).

        part: the part with the self-attention layers: "encoder" or "decoder".

        Returns a Site whose weights are R. Its rows and columns are the tokens of the encoder or decoder.

        >>> weights = numpy.full((2, 2, 2), 0.5)
        >>> sites = [Site(f"encoder.{layer}.self", weights, ("a", "b"), ("a", "b")) for layer in range(2)]
        >>> seen = Seen(sites, ("a", "b"), (), (0, 1), ())
        >>> seen.rollout().weights.tolist()
        [[[0.625, 0.375], [0.375, 0.625]]]
        """
        layers = [site for site in self.sites if site.kind == part and site.role.kind == "self"]
        if not layers:
            names = ", ".join(site.name for site in self.sites) or "none"
            problem = f"there is no self-attention of the {part}; the sites are: {names}"
            raise ArgumentError(message("rollout()", problem, hint='record every site with look="*"'))
        layers.sort(key=lambda site: [int(number) for number in re.findall(r"\d+", site.name)])
        rolled = numpy.eye(len(layers[0].rows))
        for site in layers:
            mixed = site.weights.mean(0, dtype=numpy.float64) + numpy.eye(len(site.rows))
            rolled = mixed / mixed.sum(-1, keepdims=True) @ rolled
        return replace(layers[-1], name=f"{part}.rollout", weights=rolled.astype(numpy.float32), values=None)

    def picture(self, view: str = "matrix", **options: Any) -> Any:
        """Draw the recorded attention. For the arguments, see regard.viewing.picture()."""
        return importlib.import_module("regard.viewing.picture").picture(self, view, **options)

    def save(self, path: str | Path) -> None:
        """Write the recorded attention to a file atomically, in the safetensors format.

        Seen.load() reads the file on any machine, without the model.
        """
        about = ("source", "target", "source_words", "target_words", "title", "notes", "score")
        header = {name: getattr(self, name) for name in about}
        header["sites"] = [{name: getattr(site, name) for name in SITE} for site in self.sites]
        header["long"] = [{name: getattr(site, name) for name in LONG} for site in self.long]
        arrays: dict[str, NDArray[Any]] = {}
        for kind, sites, names in (("sites", self.sites, ARRAYS), ("long", self.long, LONG_ARRAYS)):
            for place, site in enumerate(sites):
                fields = {f"{kind}.{place}.{name}": getattr(site, name) for name in names}
                arrays |= {name: array for name, array in fields.items() if array is not None}
        save_arrays(path, "regard.seen", header, arrays)

    @staticmethod
    def load(path: str | Path) -> Seen:
        """Read a file that save() wrote. No code in the file is executed."""
        header, arrays = load_arrays(path, "regard.seen", WRITERS)

        def built(kind: str, make: Any, names: Sequence[str]) -> tuple[Any, ...]:
            return tuple(
                make(**about, **{name: arrays.get(f"{kind}.{place}.{name}") for name in names})
                for place, about in enumerate(header.pop(kind))
            )

        try:
            _check_header(header, TEXT)
            for kind, types in (("sites", SITE_TEXT), ("long", LONG_TEXT)):
                for each in header[kind]:
                    _check_header(each, types)
            sites, long = built("sites", Site, ARRAYS), built("long", Pooled, LONG_ARRAYS)
            return Seen(sites, **header, long=long)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            problem = f"the file is damaged: {type(error).__name__}"
            raise DataError(message(str(path), problem, hint=f"write it again, with {WRITERS}")) from None

    def _numbered(self, site: Site) -> Site:
        """Return the site with the word index of each row (row_words) and of each column (column_words).

        If these indices are missing, rows and columns are compared with `source` and `target` to find them.
        """
        if site.row_words is not None and site.column_words is not None:
            return site
        target_first = site.kind != "encoder"
        return replace(
            site,
            row_words=site.row_words or self._words_of(site.rows, target_first),
            column_words=site.column_words or self._words_of(site.columns, site.kind == "decoder"),
        )

    def _words_of(self, pieces: tuple[str, ...], target_first: bool) -> tuple[int, ...]:
        """Return the word index of each subword in `pieces`.

        `pieces` is compared with the subwords of the source, of the target and of the decoder input. If it
        is equal to none of these sequences, each subword is a word.

        target_first: whether `pieces` is compared with the target before the source.
        """
        sides = [(self.source, self.source_words), (self.target, self.target_words)]
        read = ((BEGIN, *self.target[:-1]), (-1, *self.target_words[:-1]))
        for subwords, numbers in (*(reversed(sides) if target_first else sides), read):
            if pieces == subwords:
                return numbers
        return tuple(range(len(pieces)))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _check_header(header: dict[str, Any], types: dict[str, Any]) -> None:
    """Raise TypeError if a value in the header of a file is not of the type that save() writes."""
    optional = ("score", "row_words", "column_words", "role")
    for name, value in header.items():
        kind = types.get(name)
        if kind is None or (value is None and name in optional):
            continue  # for an unknown name, the constructor raises an error
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
