"""Look: what to see of an attention, asked for by name; what is not asked for is not computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from regard.errors import LookError, UnknownName, message
from regard.select import LOOKS, Select

__all__ = ["Look"]


@dataclass(frozen=True)
class Look:
    """What to see: each field asked for comes back under the same name in Attended, the others are None.

    weights: the whole (B, H, T, S); rows: the weights of these queries, (B, H, R, S); top: the k largest
    weights of each query and their keys; alignment: the key of the largest weight, (B, H, T), -1 where there
    is none; entropy: of each query's weights in nats, (B, H, T); mass: what each key received, (B, H, S).
    gradient: whether gradients flow through what is seen and through lse, for penalties or guided alignment.

    Weights are those before dropout. Everything but `weights` is also there for lengths at which no T x S
    matrix would fit.

    >>> import regard, torch
    >>> x = 3 * torch.eye(3)
    >>> seen = regard.attention(x, x, look=regard.Look(alignment=True, mass=True))
    >>> seen.alignment, seen.mass, seen.weights
    (tensor([0, 1, 2]), tensor([1.0000, 1.0000, 1.0000]), None)
    """

    weights: bool = False
    rows: tuple[int, ...] | None = None
    top: int = 0
    alignment: bool = False
    entropy: bool = False
    mass: bool = False
    gradient: bool = False

    def __post_init__(self) -> None:
        if self.rows is not None:
            if hasattr(self.rows, "tolist"):  # a tensor or a NumPy array
                object.__setattr__(self, "rows", self.rows.tolist())
            elif not isinstance(self.rows, int | str):
                object.__setattr__(self, "rows", tuple(map(_plain, self.rows)))
            if isinstance(self.rows, int) or not all(isinstance(row, int) for row in self.rows):
                raise LookError(
                    message("Look()", f"rows is {self.rows!r}", expected="whole numbers: rows=(0, -1)")
                )
            object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "top", _plain(self.top))
        if not isinstance(self.top, int) or isinstance(self.top, bool) or self.top < 0:
            raise LookError(
                message("Look()", f"top is {self.top!r}", expected="how many keys to show: 0 or more")
            )

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of the looks that are asked for, sorted."""
        return tuple(name for name in LOOKS if getattr(self, name) not in (False, None, 0))

    def __or__(self, other: Look | None) -> Look:
        """Everything that either asks for."""
        if other is None or other == self:
            return self
        rows = tuple(dict.fromkeys((self.rows or ()) + (other.rows or ())))
        return Look(
            weights=self.weights or other.weights,
            rows=rows if self.rows is not None or other.rows is not None else None,
            top=max(self.top, other.top),
            alignment=self.alignment or other.alignment,
            entropy=self.entropy or other.entropy,
            mass=self.mass or other.mass,
            gradient=self.gradient or other.gradient,
        )

    def possible(self, select: Select, queries: int) -> Look:
        """As much of this look as the selection can give, of the rows that there are."""
        cannot: dict[str, Any] = {name: None if name == "rows" else False for name in self.asked}
        found = replace(self, **{name: none for name, none in cannot.items() if name not in select.looks})
        if found.rows is None:
            return found
        there = [row % queries for row in found.rows if -queries <= row < queries]
        return replace(found, rows=tuple(dict.fromkeys(there)) or None)

    def checked(self, select: Select, queries: int) -> Look:
        """This look with rows counted from 0; raises where the selection or the call cannot give it."""
        for name in self.asked:
            if name not in select.looks:
                problem = f"{type(select).__name__} cannot give the look '{name}'"
                raise LookError(
                    message(
                        "attention()",
                        problem,
                        expected=f"one of {', '.join(select.looks)}",
                        hint=select.why_not,
                    )
                )
        if self.rows is None:
            return self
        for row in self.rows:
            if not -queries <= row < queries:
                raise LookError(
                    message(
                        "attention()",
                        f"there is no row {row} to look at",
                        expected=f"0 <= row < T = {queries}",
                    )
                )
        return replace(self, rows=tuple(row % queries for row in self.rows))


def _plain(number: Any) -> Any:
    """A NumPy integer as an int; anything else as it is."""
    return number if isinstance(number, int) or not isinstance(number, Integral) else int(number)


def _with_known_names(init: Callable[..., None]) -> Callable[..., None]:
    """Look.__init__ that answers an unknown keyword with the nearest known one."""

    @functools.wraps(init)
    def checked(self: Look, *values: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in Look.__dataclass_fields__:
                raise UnknownName("argument of Look()", name, Look.__dataclass_fields__)
        init(self, *values, **keywords)

    return checked


Look.__init__ = _with_known_names(Look.__init__)  # type: ignore[method-assign]
