"""Conditions: masks that are not one of the named parts (causal, lengths, ...) and must be evaluated.

They are user functions and combinations of masks by `|`, `&` and `~`, kept as a small tree, so that such a
mask can still be moved to a device, reordered along the batch, and checked.
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
        """Whether query position i, which is row `row` of the call, may see key j.

        All arguments are index tensors that broadcast; returns a bool tensor.
        """
        raise TypeError(f"{type(self).__name__} does not implement sees()")

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Condition:
        """Return the condition with `move` applied to its masks and its batch reordered by `order`."""
        return self

    def parts(self) -> Iterator[Mask]:
        """Iterate over the masks that this condition combines."""
        yield from self.masks


@dataclass(frozen=True, eq=False, repr=False)
class Predicate(Condition):
    """A user function of (batch, head, query position, key position)."""

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
    """True where either of two masks is."""

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.masks))})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        first, second = (mask.sees(batch, head, i, j, row) for mask in self.masks)
        return first | second


class And(Combined):
    """True where all masks are, for parts that the normal form cannot merge, such as two documents()."""

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
