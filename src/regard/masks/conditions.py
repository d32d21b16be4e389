"""Questions: the part of a mask that no kernel knows by name and that can only be asked.

They form a small tree, so that a mask made by `|` and `~` can still be moved to a device, taken in another
order, and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from regard.masks.mask import Mask

__all__ = ["All", "Asked", "Either", "Not", "Question"]


class Question:
    """sees(batch, head, i, j, row): may query i, row `row` of the call, see key j?"""

    masks: tuple[Mask, ...] = ()

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        """The answer for index tensors that broadcast."""
        raise TypeError(f"{type(self).__name__} has no answer")

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Question:
        """The same question with its masks moved and its batch taken in another order."""
        return self

    def parts(self) -> Iterator[Mask]:
        """The masks this question is made of."""
        yield from self.masks


@dataclass(frozen=True, eq=False, repr=False)
class Asked(Question):
    """A function of (batch, head, query position, key position), given by the user."""

    may_see: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    order: Tensor | None = None

    def __repr__(self) -> str:
        return f"where({getattr(self.may_see, '__name__', '...')})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        return self.may_see(batch if self.order is None else self.order[batch], head, i, j)

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Asked:
        if order is None:
            return self
        return replace(self, order=order if self.order is None else self.order[order])


@dataclass(frozen=True, eq=False, repr=False)
class Made(Question):
    """A question made of masks."""

    masks: tuple[Mask, ...]

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Made:
        return type(self)(tuple(move(mask) for mask in self.masks))


class Either(Made):
    """One mask or another."""

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.masks))})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        first, second = (mask.sees(batch, head, i, j, row) for mask in self.masks)
        return first | second


class All(Made):
    """Several masks at once, where the normal form has no room for their parts."""

    def __repr__(self) -> str:
        return " & ".join(map(repr, self.masks))

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        seen = self.masks[0].sees(batch, head, i, j, row)
        for mask in self.masks[1:]:
            seen = seen & mask.sees(batch, head, i, j, row)
        return seen


class Not(Made):
    """Where a mask does not hold."""

    def __repr__(self) -> str:
        return f"~({self.masks[0]!r})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        return ~self.masks[0].sees(batch, head, i, j, row)
