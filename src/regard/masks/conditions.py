"""Conditions: everything in a mask except its named parts, such as causal and lengths (see mask.py).

A condition is a user function, or a tree of masks that are combined with `|`, `&` and `~`. Because the tree
is stored, its masks can be moved to a device, reordered along the batch dimension, and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import ArgumentError, message

if TYPE_CHECKING:
    from regard.masks.mask import Mask

__all__ = ["And", "Condition", "Not", "Or", "Predicate"]


class Condition:
    """Base class of conditions. The method sees() returns which pairs of query and key are visible."""

    masks: tuple[Mask, ...] = ()

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        """Return a bool tensor: whether the query at position `i` may see the key at position `j`.

        All arguments are index tensors that broadcast.

        batch, head: index of the sequence, and index of the head.
        i, j: position of the query, and position of the key.
        row: index of the query in the call, from 0; i = row + start.
        """
        raise TypeError(f"{type(self).__name__} does not implement sees()")

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Condition:
        """Return a copy of this condition that is moved to a device or reordered along the batch dimension.

        move: a function that moves or reorders one mask. It is applied to every mask of this condition.
        order: the batch indices of the sequences to select, (B',). A user function (Predicate) needs them.
            None: the batch is not reordered.
        """
        return self

    def parts(self) -> Iterator[Mask]:
        """Iterate over the masks that this condition combines. A user function (Predicate) has none."""
        yield from self.masks


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Return whether a tensor of this shape broadcasts to the shape `to`."""
    sizes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, other) for size, other in sizes)


@dataclass(frozen=True, eq=False, repr=False)
class Predicate(Condition):
    """A condition that calls a user function, may_see(batch, head, query position, key position).

    order: the original batch index of each sequence, if the batch has been reordered; otherwise None.
    """

    may_see: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    order: Tensor | None = None

    def __repr__(self) -> str:
        return f"where({getattr(self.may_see, '__name__', '...')})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        seen = self.may_see(batch if self.order is None else self.order[batch], head, i, j)
        if isinstance(seen, bool):
            return seen
        if isinstance(seen, Tensor) and seen.dtype == torch.bool:
            shape = torch.broadcast_shapes(batch.shape, head.shape, i.shape, j.shape)
            if _broadcasts(seen.shape, shape):
                return seen
            problem = f"the function returned a tensor of shape {tuple(seen.shape)}"
            expected = f"a shape that broadcasts to that of the four indices, {tuple(shape)}"
            hint = "compute the result from the indices, e.g. table[query, key]"
            raise ArgumentError(message("where()", problem, expected=expected, hint=hint))
        kind = str(seen.dtype) if isinstance(seen, Tensor) else type(seen).__name__
        problem = f"the function returned {kind.removeprefix('torch.')}"
        expected = "a bool tensor, True where the query may see the key"
        raise ArgumentError(message("where()", problem, expected=expected, hint="compare: query >= key"))

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Predicate:
        if order is None:
            return self
        return replace(self, order=order if self.order is None else self.order[order])


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Condition):
    """Base class of conditions that combine masks, such as Or and And."""

    masks: tuple[Mask, ...]

    def moved(self, move: Callable[[Mask], Mask], order: Tensor | None) -> Combined:
        return type(self)(tuple(move(mask) for mask in self.masks))


class Or(Combined):
    """A condition that is True where at least one of its two masks is True. The operator `|` creates it."""

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.masks))})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        first, second = (mask.sees(batch, head, i, j, row) for mask in self.masks)
        return first | second


class And(Combined):
    """A condition that is True where all of its masks are True.

    The operator `&` creates it, if the masks cannot be merged into one Mask. An example are two documents().
    """

    def __repr__(self) -> str:
        return " & ".join(map(repr, self.masks))

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        seen = self.masks[0].sees(batch, head, i, j, row)
        for mask in self.masks[1:]:
            seen = seen & mask.sees(batch, head, i, j, row)
        return seen


class Not(Combined):
    """A condition that is True where its mask is False. The operator `~` creates it."""

    def __repr__(self) -> str:
        return f"~({self.masks[0]!r})"

    def sees(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, row: Tensor) -> Tensor:
        return ~self.masks[0].sees(batch, head, i, j, row)
