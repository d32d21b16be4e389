"""Look: what an attention call returns besides its output. Only the requested values are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from regard.errors import LookError, check_keywords, message
from regard.select import LOOKS, Select

__all__ = ["Look"]


@dataclass(frozen=True)
class Look:
    """What attention() should return besides output and lse.

    The result of attention() is an Attended. Each argument of Look, except `gradient`, requests the field of
    the same name.

    weights: True for the whole matrix of weights, (B, H, T, S).
    rows: indices of R queries. Only the weights of these queries are returned, (B, H, R, S). Negative indices
        count from the end.
    top: a number k. The k largest weights of each query and their keys are returned, (B, H, T, k).
    alignment: True for the index of the key with the largest weight, (B, H, T). -1 if the query sees no key.
    entropy: True for the entropy of each query's weights in nats, (B, H, T).
    mass: True for the sum of the weights that each key receives, (B, H, S).
    pooled: a block size n, for the mean weight of each block of n queries and n keys, (B, H, T/n, S/n), where
        T/n and S/n are rounded up. The last blocks can be smaller; hidden keys count as weights of 0.
    gradient: True to make the requested fields and lse differentiable, for regularisation or guided
        alignment.

    All fields describe the weights before dropout. All fields except `weights` can be computed without
    storing the T x S matrix, so they also work for long sequences.

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
    pooled: int = 0
    gradient: bool = False

    def __post_init__(self) -> None:
        if self.rows is not None:
            if hasattr(self.rows, "tolist"):  # a tensor or a NumPy array
                object.__setattr__(self, "rows", self.rows.tolist())
            elif not isinstance(self.rows, int | str):
                object.__setattr__(self, "rows", tuple(map(_plain, self.rows)))
            if isinstance(self.rows, int) or not all(isinstance(row, int) for row in self.rows):
                raise LookError(
                    message("Look()", f"rows is {self.rows!r}", expected="integers, such as rows=(0, -1)")
                )
            object.__setattr__(self, "rows", tuple(self.rows))
        for name in ("weights", "alignment", "entropy", "mass", "gradient"):
            if isinstance(getattr(self, name), str):
                hint = "use keywords: Look(weights=True, entropy=True)"
                raise LookError(
                    message("Look()", f"{name} is {getattr(self, name)!r}", expected="a bool", hint=hint)
                )
        for name, expected in (("top", "a number of keys, 0 or more"), ("pooled", "a block size, 0 or more")):
            object.__setattr__(self, name, _plain(getattr(self, name)))
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise LookError(message("Look()", f"{name} is {number!r}", expected=expected))

    @property
    def requested(self) -> tuple[str, ...]:
        """The names of the requested fields in alphabetical order, such as ("mass", "weights")."""
        return tuple(name for name in LOOKS if getattr(self, name) not in (False, None, 0))

    def __or__(self, other: Look | None) -> Look:
        """Return a Look that requests all fields of this Look and of `other`."""
        if other is None or other == self:
            return self
        if self.pooled and other.pooled and self.pooled != other.pooled:
            problem = f"two Looks of one call have the block sizes pooled={self.pooled} and {other.pooled}"
            raise LookError(message("Look()", problem, expected="one block size for all Looks of a call"))
        rows = tuple(dict.fromkeys((self.rows or ()) + (other.rows or ())))
        return Look(
            weights=self.weights or other.weights,
            rows=rows if self.rows is not None or other.rows is not None else None,
            top=max(self.top, other.top),
            alignment=self.alignment or other.alignment,
            entropy=self.entropy or other.entropy,
            mass=self.mass or other.mass,
            pooled=self.pooled or other.pooled,
            gradient=self.gradient or other.gradient,
        )

    def possible(self, select: Select, queries: int) -> Look:
        """Return this Look without fields that `select` does not provide, and without rows out of range.

        select: the selection of the call. Gate, for example, provides no entropy.
        queries: T, the number of queries of the call.
        """
        off = [name for name in self.requested if name not in select.looks]
        disabled: dict[str, Any] = {name: None if name == "rows" else False for name in off}
        look = replace(self, **disabled) if off else self
        if look.rows is None:
            return look
        in_range = [row % queries for row in look.rows if -queries <= row < queries]
        return replace(look, rows=tuple(dict.fromkeys(in_range)) or None)

    def checked(self, select: Select, queries: int) -> Look:
        """Return this Look with negative rows replaced by row + T.

        Raises LookError if a row is out of range, or if `select` does not provide a requested field.

        select: the selection of the call. Gate, for example, provides no entropy.
        queries: T, the number of queries of the call.
        """
        for name in self.requested:
            if name not in select.looks:
                problem = f"Look({name}=...) is not available with {type(select).__name__}"
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
                        f"Look(rows=...) has row {row}, which is out of range",
                        expected=f"-T <= row < T = {queries}",
                    )
                )
        return replace(self, rows=tuple(row % queries for row in self.rows))


def _plain(number: Any) -> Any:
    """Convert a NumPy integer to int; return anything else unchanged."""
    return number if isinstance(number, int) or not isinstance(number, Integral) else int(number)


Look.__init__ = check_keywords(Look.__init__)  # type: ignore[method-assign]
