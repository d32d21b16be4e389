"""Site: the weights of one attention layer, with the words of its queries and keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.roles import Role, role_by_name
from regard.viewing.as_arrays import as_numpy, check_words, checked_weights
from regard.viewing.word_groups import grouped, joined, spelled_or_space

__all__ = ["Site", "firsts", "real", "spelled_words", "taken", "word_numbers"]


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
        self._set("role", role_by_name(str(self.name)) if self.role is None else Role(*self.role))
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
        rows, columns = grouped(row_words), grouped(column_words)
        sums = joined(joined(self.weights, columns, axis=2), rows, axis=1)
        lengths = numpy.array([len(group) for group in rows], dtype=numpy.float32)
        return replace(
            self,
            weights=sums / lengths[:, None],
            rows=spelled_words(self.rows, rows),
            columns=spelled_words(self.columns, columns),
            values=None,
            row_words=firsts(row_words, rows),
            column_words=firsts(column_words, columns),
        )

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
    return numbers


def real(numbers: Sequence[int]) -> list[int]:
    """Return the positions of all tokens except special tokens such as "</s>".

    numbers: the word index of each token. -1 for special tokens.
    """
    return [place for place, number in enumerate(numbers) if number >= 0]


def taken(items: Sequence[Any], places: Iterable[int]) -> tuple[Any, ...]:
    """Return the items at the positions `places`."""
    return tuple(items[place] for place in places)


def firsts(numbers: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the word index of each group of subwords. All subwords of a group belong to the same word.

    numbers: the word index of each subword.
    groups: the positions of the subwords of each group.
    """
    return tuple(numbers[group[0]] for group in groups)


def spelled_words(pieces: Sequence[str], groups: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Return the text of each group of subwords. A group that is only a space becomes ␣.

    pieces: the subwords.
    groups: the positions of the subwords of each group.
    """
    return tuple(spelled_or_space([pieces[place] for place in group]) for group in groups)
