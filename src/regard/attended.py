"""Attended: what one attention gave, and what was seen of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from regard.look import Look

__all__ = ["Attended", "Top"]


class Top(NamedTuple):
    """The k largest weights of each query and the keys they fell on, both (B, H, T, k), largest first.

    Where a query sees fewer than k keys, the weight is 0 and the key -1.

    >>> import regard, torch
    >>> regard.attention(torch.eye(2), 9 * torch.eye(2), look=regard.Look(top=1)).top.keys
    tensor([[0],
            [1]])
    """

    weights: Tensor
    keys: Tensor


class Attended(NamedTuple):
    """The result of every attention; a field that was not asked for, or that does not exist, is None.

    output: (B, H, T, E), what was read. lse: (B, H, T), the log-sum-exp of each row of scores, -inf for a row
    that sees nothing; None for selections without one. Both are the same, bit for bit, with and without
    looking; they differ between backends by rounding. weights, rows, top, alignment, entropy, mass: see
    Look. chosen, log_probability: (B, H, T), the key that Hard or Best read, and the logarithm of the
    probability it had. All shapes lose the sizes that the query did not have.

    >>> import regard, torch
    >>> regard.attention(torch.ones(1, 2), torch.ones(4, 2), look=regard.Look(entropy=True)).entropy.exp()
    tensor([4.])
    """

    output: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None
    rows: Tensor | None = None
    top: Top | None = None
    alignment: Tensor | None = None
    entropy: Tensor | None = None
    mass: Tensor | None = None
    chosen: Tensor | None = None
    log_probability: Tensor | None = None

    def __repr__(self) -> str:
        there = [(name, field) for name, field in zip(self._fields, self, strict=True) if field is not None]
        return f"Attended({', '.join(f'{name}={_short(field)}' for name, field in there)})"

    def map(self, change: Callable[[Tensor], Tensor]) -> Attended:
        """The same with every tensor changed."""
        changed: list[Any] = [change(field) if isinstance(field, Tensor) else field for field in self]
        if self.top is not None:
            changed[self._fields.index("top")] = Top(change(self.top.weights), change(self.top.keys))
        return Attended(*changed)

    def but(self, **fields: Any) -> Attended:
        """The same with some fields given anew. (_replace does not pass torch.compile before torch 2.12.)"""
        found: list[Any] = [fields.get(name, old) for name, old in zip(self._fields, self, strict=True)]
        return Attended(*found)

    def only(self, look: Look | None, everything: Look | None) -> Attended:
        """Of what was seen for everybody who asked, what this look asked for."""
        look, everything = look or Look(), everything or Look()
        rows, top = self.rows, self.top
        if rows is not None and look.rows != everything.rows:
            rows = rows[..., [(everything.rows or ()).index(row) for row in look.rows or ()], :]
        if top is not None:
            top = Top(top.weights[..., : look.top], top.keys[..., : look.top])
        asked = look.asked
        found = self.but(
            weights=self.weights if "weights" in asked else None,
            rows=rows if "rows" in asked else None,
            top=top if "top" in asked else None,
            alignment=self.alignment if "alignment" in asked else None,
            # Hard gives its entropy unasked, beside the log-probability that needs it.
            entropy=self.entropy if "entropy" in asked or self.log_probability is not None else None,
            mass=self.mass if "mass" in asked else None,
        )
        if look.gradient or not everything.gradient:
            return found
        quiet = found.map(Tensor.detach)
        return quiet.but(
            output=self.output,
            log_probability=self.log_probability,
            entropy=quiet.entropy if self.log_probability is None else self.entropy,
        )


def _short(field: Tensor | Top) -> str:
    """A tensor by its shape and dtype: what a reader of a long result wants first."""
    if isinstance(field, Top):
        return f"Top(weights={_short(field.weights)}, keys={_short(field.keys)})"
    return f"{tuple(field.shape)} {str(field.dtype).removeprefix('torch.')}"
