"""Seen: the recorded attention of one sentence as arrays and words, with a Site for each attention layer.

It can be drawn without the model. drawable() and seen_of() convert other objects to a Seen.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.array_file import load_arrays, save_arrays
from regard.roles import Role, role_by_name
from regard.viewing.as_arrays import as_numpy, check_words, checked_weights
from regard.viewing.html_document import SUFFIXES
from regard.viewing.pooled_attention import Pooled
from regard.viewing.terminal_colors import cropped
from regard.viewing.word_groups import grouped, joined, spelled_or_space

SITE, ARRAYS = ("name", "rows", "columns", "row_words", "column_words", "role"), ("weights", "values")
LONG = ("name", "rows", "columns", "whole", "exact_means")
LONG_ARRAYS = ("keys", "weights", "maxima", "means")
"""The fields that a saved Seen has for each site.

SITE and ARRAYS are fields of a Site. LONG and LONG_ARRAYS are fields of a Pooled. SITE and LONG are saved in
the JSON header. ARRAYS and LONG_ARRAYS are saved as arrays."""

WRITERS = "regard view --output, or Seen.save()"
"""What writes .seen files, for error messages."""

BEGIN = "<s>"
"""The begin-of-sentence token: the first input of a decoder."""


@dataclass(frozen=True, eq=False, repr=False)
class Site:
    """The weights of one attention layer.

    name: for example "decoder.cross" or "encoder.0.self".
    weights: (H, T, S), or (T, S) for attention without heads.
    rows, columns: the T queries and the S keys as text.
    values: (H, S), the norm of the value vector of each key, if known.
    row_words: the index of the word of each row (subword). -1 for special tokens. Default: the word indices
        of the Seen that contains the site.
    column_words: the index of the word of each column.
    role: a regard.roles.Role: whether this is self- or cross-attention, and which sequences the queries and
        keys come from. Default: derived from the name by regard.roles.role_by_name().

    >>> Site("decoder.cross", [[0.9, 0.1]], ["cat"], ["고양이", "</s>"])
    Site('decoder.cross', H=1 T=1 S=2)
    """

    name: str
    weights: NDArray[numpy.float32]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[numpy.float32] | None = None
    row_words: tuple[int, ...] | None = None
    column_words: tuple[int, ...] | None = None
    role: Role = None  # type: ignore[assignment]  # set by __post_init__

    def __post_init__(self) -> None:
        call, weights = f"Site({self.name!r})", as_numpy(self.weights)
        self._set("name", str(self.name))
        role = role_by_name(self.name) if self.role is None else self.role
        if not isinstance(role, tuple | list) or not all(isinstance(each, str) for each in role):
            raise ArgumentError(message(call, f"role is {role!r}", expected="a Role"))
        self._set("role", Role(*role))
        weights = weights[None] if weights.ndim == 2 else weights
        # Usually, the weights are valid and float32. Then they are not copied.
        plain = weights.dtype == numpy.float32 and weights.ndim == 3 and weights.size
        if not (plain and weights.min() >= 0 and weights.max() < numpy.inf):
            weights = checked_weights(call, weights, "HTS", None)[0].astype(numpy.float32)
        if not len(weights):
            raise ArgumentError(message(call, "weights have H = 0 heads", expected="(H, T, S), H at least 1"))
        for name, axis in (("rows", 0), ("columns", 1)):
            check_words(call, name, getattr(self, name), weights[0], axis=axis)
            self._set(name, tuple(map(str, getattr(self, name))))
        self._set("weights", weights)
        if self.values is not None:
            values = as_numpy(self.values).astype(numpy.float32)
            if values.shape != weights.shape[::2]:
                expected = f"(H, S) = {weights.shape[::2]}"
                raise ArgumentError(message(call, f"values have shape {values.shape}", expected=expected))
            self._set("values", values)
        for name, words in (("row_words", self.rows), ("column_words", self.columns)):
            numbers = getattr(self, name)
            if numbers is not None:
                self._set(name, word_numbers(call, name, numbers, len(words)))

    def __repr__(self) -> str:
        heads, rows, columns = self.weights.shape
        return f"Site({self.name!r}, H={heads} T={rows} S={columns})"

    @property
    def heads(self) -> int:
        """Number of heads. 1 for attention without heads."""
        return len(self.weights)

    @property
    def kind(self) -> str:
        """The kind of attention, to group layers: "encoder" or "decoder" for self-attention.

        For other attention, the result is the kind of the role, for example "cross".
        """
        if self.role.kind not in ("", "self"):
            return self.role.kind
        parts = {"source": "encoder", "target": "decoder", "input": "decoder"}
        return parts.get(self.role.rows, self.role.rows)

    def words(self) -> Site:
        """Return a copy whose rows and columns are words instead of subwords.

        For how the weights of subwords are combined, see Seen.words().
        """
        row_words, column_words = self._numbers
        groups, others = grouped(row_words), grouped(column_words)
        sums = joined(joined(self.weights, others, axis=2), groups, axis=1)
        weights = sums / numpy.array([len(group) for group in groups], dtype=numpy.float32)[:, None]
        rows, row_words = as_words(self.rows, row_words, groups)
        columns, column_words = as_words(self.columns, column_words, others)
        return Site(self.name, weights, rows, columns, None, row_words, column_words, self.role)

    def without_specials(self, renormalise: bool) -> Site:
        """Return a copy without the rows and columns of special tokens, such as "</s>".

        renormalise: whether each row keeps its sum; see Seen.without_specials().
        """
        row_words, column_words = self._numbers
        rows, columns = real(row_words), real(column_words)
        before = self.weights[:, rows]
        weights = before[..., columns]
        if renormalise:
            sums = weights.sum(-1, keepdims=True)
            weights = numpy.divide(
                weights * before.sum(-1, keepdims=True), sums, out=numpy.zeros_like(weights), where=sums != 0
            )
        return replace(
            self,
            weights=weights,
            rows=taken(self.rows, rows),
            columns=taken(self.columns, columns),
            values=None if self.values is None else self.values[:, columns],
            row_words=taken(row_words, rows),
            column_words=taken(column_words, columns),
        )

    def weighted_by_values(self) -> Site:
        """Return a copy with each weight multiplied by the norm of the value vector of its key."""
        if self.values is None:
            problem = "this site has no value norms"
            hint = (
                "words() and weighted_by_values() drop them: call weighted_by_values() once, before words()"
            )
            raise ArgumentError(message(f"{self.name}.weighted_by_values()", problem, hint=hint))
        return replace(self, weights=self.weights * self.values[:, None], values=None)

    @property
    def _numbers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The word indices of the rows and of the columns. If they are unknown, each token is a word."""
        rows, columns = tuple(range(len(self.rows))), tuple(range(len(self.columns)))
        return self.row_words or rows, self.column_words or columns

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def word_numbers(call: str, name: str, indices: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the word index of each token as a tuple. Raise ArgumentError if the number is not `size`.

    call: the public function that the user called, for the error message.
    name: the name of the argument with the word indices, for the error message.
    """
    numbers = tuple(map(int, indices))
    if len(numbers) != size:
        raise ArgumentError(
            message(call, f"{name} has {len(numbers)} entries", expected=f"{size}, one per token")
        )
    if any(not -1 <= number < 2**31 for number in numbers):
        raise ArgumentError(message(call, f"{name} has an index below -1 or above 2^31"))
    return numbers


def real(numbers: Sequence[int]) -> list[int]:
    """Return the positions of all tokens except special tokens such as "</s>".

    numbers: the word index of each token. -1 for special tokens.
    """
    return [place for place, number in enumerate(numbers) if number >= 0]


def taken(items: Sequence[Any], places: Iterable[int]) -> tuple[Any, ...]:
    """Return the items at the positions `places`."""
    return tuple(items[place] for place in places)


def as_words(
    pieces: Sequence[str], numbers: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the text and the word index of each group of subwords. A word that is a space becomes ␣."""
    texts = tuple(spelled_or_space([pieces[place] for place in group]) for group in groups)
    return texts, tuple(numbers[group[0]] for group in groups)


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
            self._set(name, tuple(value if name in ("sites", "long") else map(str, value)))
        self._set("title", str(self.title))
        self._set("score", None if self.score is None else float(self.score))
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
        source, source_words = as_words(self.source, self.source_words, grouped(self.source_words))
        target, target_words = as_words(self.target, self.target_words, grouped(self.target_words))
        sites, more = tuple(site.words() for site in self.sites), (self.title, self.notes, self.score)
        return Seen(sites, source, target, source_words, target_words, *more, self.long)

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

        Seen.load() reads the file on any machine, without the model. To draw the attention, use picture() or
        regard.viewing.explore().
        """
        if (ending := Path(path).suffix.lower()) in (".html", *SUFFIXES):
            hint = "explore(seen, path) writes a page" if ending == ".html" else "seen.picture().save(path)"
            expected = "another ending, such as .seen, which Seen.load() reads"
            raise ArgumentError(message(str(path), "save() does not draw", expected=expected, hint=hint))
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


class HasSeen(Protocol):
    """An object with a method seen(), such as a Translation."""

    def seen(self) -> Seen: ...


Drawable = Seen | HasSeen | Mapping[str, Sequence[Any]]


def seen_of(source: object, call: str) -> Seen:
    """Convert an object that contains recorded attention to a Seen.

    source: a Seen, a Translation, or a Record (the result of record()). A Seen is returned unchanged. A
        Translation is converted to a Seen with subwords. A Record is converted to a Seen with the positions
        0, 1, 2, ... as words.
    call: the name of the public function, for error messages.
    """
    if isinstance(source, Seen):
        return source
    if isinstance(source, Mapping):
        return _recorded(source, call)
    if hasattr(source, "seen") and not isinstance(source, type):
        seen: Seen = source.seen()
        return seen
    problem = f"the first argument is of type {type(source).__name__}"
    expected = "a Seen, a Translation, or the result of record()"
    hint = "to draw weights alone, use draw(weights, rows, columns); for several translations, viewing.page()"
    raise ArgumentError(message(call, problem, expected=expected, hint=hint))


def drawable(source: object, call: str) -> Seen:
    """Convert an object that contains recorded attention to a Seen of words.

    The function differs from seen_of() in one point: the subwords of a Translation are joined to words. For
    the arguments, see seen_of().
    """
    seen = seen_of(source, call)
    return seen if seen is source or isinstance(source, Mapping) else seen.words()


def _recorded(record: Mapping[str, Sequence[Any]], call: str) -> Seen:
    """Convert a Record (the result of record()) to a Seen, with a Site for each recorded attention layer.

    Queries and keys are labelled with their positions: "0", "1", "2", ...
    """
    sites = []
    roles = getattr(record, "roles", {})
    for name, calls in record.items():
        weights = _joined(name, calls, call)
        rows, columns = (tuple(map(str, range(size))) for size in weights.shape[-2:])
        sites.append(Site(str(name), weights, rows, columns, role=roles.get(name) or role_by_name(str(name))))
    return Seen(tuple(sites), (), (), (), ())


def _joined(name: str, calls: Sequence[Any], call: str) -> NDArray[Any]:
    """Return the recorded weights of a site (an attention layer) for one sequence, (H, T, S).

    If the site was called several times with one query each, as in step-by-step decoding, the weights of all
    calls are concatenated.

    name: the name of the site.
    calls: the recorded results of the calls of the site.
    call: the name of the public function, for error messages.
    """
    weights = [_weights(name, each, call) for each in calls]
    if len(weights) > 1 and any(each.shape[-2] != 1 for each in weights):
        problem = f"site {name!r} was called {len(weights)} times"
        hint = f"draw the weights of one call: record[{name!r}][0].weights"
        raise ArgumentError(
            message(call, problem, expected="one call, or several calls with one query each", hint=hint)
        )
    widest = max(each.shape[-1] for each in weights)
    padded = [numpy.pad(each, ((0, 0), (0, 0), (0, widest - each.shape[-1]))) for each in weights]
    return numpy.concatenate(padded, axis=1)


def _weights(name: str, attended: Any, call: str) -> NDArray[Any]:
    weights = getattr(attended, "weights", None)
    if weights is None:
        problem = f"the weights of site {name!r} were not recorded"
        raise ArgumentError(message(call, problem, hint="record them with record(Look(weights=True))"))
    array = as_numpy(weights)
    if array.ndim > 2 and array.shape[0] != 1:
        problem = f"site {name!r} was called with a batch of {array.shape[0]} sequences"
        hint = "call the model with a batch of one sequence while it is recorded"
        raise ArgumentError(message(call, problem, expected="one sequence", hint=hint))
    array = array[0] if array.ndim > 2 else array
    return array if array.ndim == 3 else array[None]
