"""Seen: what a model looked at for one sentence, as arrays and words; whoever draws it needs no model."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.arrays import check_words, checked_weights
from regard.viewing.pooled import Pooled
from regard.viewing.words import grouped, joined, spelled

__all__ = ["Seen", "Site"]

BEGIN = "<s>"
"""What a decoder reads before its first token."""


@dataclass(frozen=True, eq=False)
class Site:
    """One place of attention: how much each query, down, looked at each key, across.

    name: "decoder.cross", "encoder.0.self". weights: (H, T, S), or (T, S) where there are no heads. rows: the
    T queries as text. columns: the S keys. values: (H, S), the norms of the values, where they are known.
    row_words, column_words: the number of the word that each is a piece of, -1 for none; found from the
    sentence where they are not given.

    >>> Site("decoder.cross", [[0.9, 0.1]], ["cat"], ["고양이", "</s>"]).weights.shape
    (1, 1, 2)
    """

    name: str
    weights: NDArray[numpy.float32]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[numpy.float32] | None = None
    row_words: tuple[int, ...] | None = None
    column_words: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        call, weights = f"Site({self.name!r})", _array(self.weights)
        weights = weights[None] if weights.ndim == 2 else weights
        # What is plainly right, as almost all is, is not copied to be checked.
        plain = weights.dtype == numpy.float32 and weights.ndim == 3 and weights.size
        if not (plain and weights.min() >= 0 and weights.max() < numpy.inf):
            weights = checked_weights(call, weights, "HTS", None)[0].astype(numpy.float32)
        if not len(weights):
            raise ArgumentError(message(call, "weights are of no head", expected="(H, T, S), H at least 1"))
        for name, axis in (("rows", 0), ("columns", 1)):
            check_words(call, name, getattr(self, name), weights[0], axis=axis)
            self._set(name, tuple(map(str, getattr(self, name))))
        self._set("weights", weights)
        if self.values is not None:
            values = _array(self.values).astype(numpy.float32)
            if values.shape != weights.shape[::2]:
                expected = f"(H, S) = {weights.shape[::2]}"
                raise ArgumentError(message(call, f"values are of sizes {values.shape}", expected=expected))
            self._set("values", values)
        for name, words in (("row_words", self.rows), ("column_words", self.columns)):
            numbers = getattr(self, name)
            if numbers is not None:
                self._set(name, _numbers(call, name, numbers, len(words)))

    @property
    def heads(self) -> int:
        """How many heads look here, 1 where there are none."""
        return len(self.weights)

    @property
    def kind(self) -> str:
        """Who looks at what: "cross", "encoder" or "decoder"."""
        return "cross" if self.name.endswith("cross") else self.name.split(".")[0]

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
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
            self._set(name, _numbers("Seen()", name, getattr(self, name), len(pieces)))
        self._set("sites", tuple(map(self._numbered, self.sites)))

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
            sites=tuple(map(_of_words, self.sites)),
            source=_spelled(self.source, source),
            target=_spelled(self.target, target),
            source_words=_firsts(self.source_words, source),
            target_words=_firsts(self.target_words, target),
        )

    def without_specials(self, renormalise: bool) -> Seen:
        """The same without what belongs to no word: "</s>", "<s>".

        renormalise: whether each row is made to sum to what it did before; otherwise what the special tokens
        received is gone. A row that looked at nothing else is 0.
        """
        source, target = _real(self.source_words), _real(self.target_words)
        return replace(
            self,
            sites=tuple(_without_specials(site, renormalise) for site in self.sites),
            source=_taken(self.source, source),
            target=_taken(self.target, target),
            source_words=_taken(self.source_words, source),
            target_words=_taken(self.target_words, target),
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
        return replace(self, sites=tuple(map(_weighted, known)))

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
        from regard.viewing.seen_file import save_seen

        save_seen(self, path)

    @staticmethod
    def load(path: str | Path) -> Seen:
        """Read what save() wrote; nothing in the file is ever run."""
        from regard.viewing.seen_file import load_seen

        return load_seen(path)

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


def _array(given: Any) -> NDArray[Any]:
    # A tensor is known by what it can do: torch is not needed to draw.
    return numpy.asarray(given.detach().cpu().float().numpy() if hasattr(given, "detach") else given)


def _numbers(call: str, name: str, given: Sequence[int], size: int) -> tuple[int, ...]:
    numbers = tuple(map(int, given))
    if len(numbers) != size:
        raise ArgumentError(message(call, f"{name} are {len(numbers)} numbers", expected=f"{size}"))
    return numbers


def _of_words(site: Site) -> Site:
    assert site.row_words is not None and site.column_words is not None
    rows, columns = grouped(site.row_words), grouped(site.column_words)
    sums = joined(joined(site.weights, columns, axis=2), rows, axis=1)
    lengths = numpy.array([len(group) for group in rows], dtype=numpy.float32)
    return Site(
        site.name,
        sums / lengths[:, None],
        _spelled(site.rows, rows),
        _spelled(site.columns, columns),
        row_words=_firsts(site.row_words, rows),
        column_words=_firsts(site.column_words, columns),
    )


def _weighted(site: Site) -> Site:
    assert site.values is not None
    return replace(site, weights=site.weights * site.values[:, None], values=None)


def _without_specials(site: Site, renormalise: bool) -> Site:
    assert site.row_words is not None and site.column_words is not None
    rows, columns = _real(site.row_words), _real(site.column_words)
    before = site.weights[:, rows]
    weights = before[..., columns]
    if renormalise:
        sums = weights.sum(-1, keepdims=True)
        weights = numpy.divide(
            weights * before.sum(-1, keepdims=True), sums, out=numpy.zeros_like(weights), where=sums != 0
        )
    return Site(
        site.name,
        weights,
        _taken(site.rows, rows),
        _taken(site.columns, columns),
        None if site.values is None else site.values[:, columns],
        _taken(site.row_words, rows),
        _taken(site.column_words, columns),
    )


def _real(numbers: Sequence[int]) -> list[int]:
    return [place for place, number in enumerate(numbers) if number >= 0]


def _taken(items: Sequence[Any], places: Iterable[int]) -> tuple[Any, ...]:
    return tuple(items[place] for place in places)


def _firsts(numbers: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(numbers[group[0]] for group in groups)


def _spelled(pieces: Sequence[str], groups: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """What each group spells; what spells nothing, as it is."""
    parts = ([pieces[place] for place in group] for group in groups)
    return tuple(spelled(part) or "".join(part) for part in parts)
