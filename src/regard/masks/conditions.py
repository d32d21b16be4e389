"""Conditions: everything in a mask besides its named parts (causal, lengths, ...; see mask.py).

A condition is a user function, or a tree of masks that are combined with `|`, `&` and `~`. The tree is kept,
so that the masks in it can still be moved to a device, reordered along the batch dimension, and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from regard.masks.mask import Mask

__all__ = ["And", "Condition", "Not", "Or", "Predicate"]


class Condition:
    """Base class: a boolean function of batch, head, query position, key position and row of the call."""

    masks: tuple[Mask, ...] = ()

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        """Return a bool tensor: whether the query at position `i` may see the key at position `j`.

        row: index of the query in the call, from 0. All arguments are index tensors that broadcast.
        """
        raise TypeError(f"{type(self).__name__} does not implement sees()")

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Condition:
        """Return the condition with `move` applied to the masks that it combines.

        order: the sequences to select from the batch, (B',); None keeps all. A user function needs it.
        """
        return self

    def parts(self) -> Iterator[Mask]:
        """Iterate over the masks that this condition combines."""
        yield from self.masks


@dataclass(frozen=True, eq=False, repr=False)
class Predicate(Condition):
    """A user function of (batch, head, query position, key position).

    order: after reordering, the original batch index of each sequence; None before.
    """

    may_see: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    order: Tensor | None = None

    def __repr__(self) -> str:
        return f"where({getattr(self.may_see, '__name__', '...')})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        return self.may_see(batch if self.order is None else self.order[batch], head, i, j)

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Predicate:
        if order is None:
            return self
        return replace(self, order=order if self.order is None else self.order[order])


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Condition):
    """Base class of conditions that combine masks."""

    masks: tuple[Mask, ...]

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Combined:
        return type(self)(tuple(move(mask) for mask in self.masks))


class Or(Combined):
    """True where at least one of two masks is True."""

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.masks))})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        first, second = (mask.sees(batch, head, i, j, row) for mask in self.masks)
        return first | second


class And(Combined):
    """True where all masks are True; used for parts that `&` cannot merge, such as two documents()."""

    def __repr__(self) -> str:
        return " & ".join(map(repr, self.masks))

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        seen = self.masks[0].sees(batch, head, i, j, row)
        for mask in self.masks[1:]:
            seen = seen & mask.sees(batch, head, i, j, row)
        return seen


class Not(Combined):
    """True where a mask is False."""

    def __repr__(self) -> str:
        return f"~({self.masks[0]!r})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        return ~self.masks[0].sees(batch, head, i, j, row)
