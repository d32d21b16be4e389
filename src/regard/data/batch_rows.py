"""BatchRows: the base class of batches and of other dataclasses whose tensors have one row per sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from regard.data.packed_tensors import buffer_of, parts_of
from regard.memory import Memory

__all__ = ["BatchRows"]


class BatchRows:
    """Base class of dataclasses of tensors with one row per sequence, for example of batches.

    The methods change all fields together: they move the tensors to a device, or select or repeat rows. The
    first dimension of every tensor, and of every regard.Memory (prepared keys and values), is the batch
    dimension. Tensors and memories may be in tuples and in other BatchRows. Values of other types, such as
    None or a bool, are the same for all rows and are not changed. So a subclass can add a field without
    further code.

    >>> import dataclasses, torch
    >>> @dataclasses.dataclass(frozen=True, eq=False)
    ... class Points(BatchRows):
    ...     x: torch.Tensor
    ...     y: torch.Tensor | None = None
    >>> points = Points(torch.tensor([1.0, 2.0, 3.0]))
    >>> points.select(torch.tensor([2, 0])).repeat(2).x
    tensor([3., 3., 1., 1.])
    """

    def to(self, device: torch.device | str) -> Self:
        """Return a copy with all tensors on `device`.

        If all tensors are parts of one buffer (packed_tensors.py), they are moved together.
        """
        tensors: list[Tensor] = []

        def listed(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        self._map(listed, lambda memory: memory)
        buffer = None if torch.device(device).type == "cpu" else buffer_of(tensors)
        if buffer is not None:
            moved = iter(parts_of(buffer.to(device, non_blocking=True), tensors))
            return self._map(lambda tensor: next(moved), lambda memory: memory.to(device))
        # A non-blocking copy to the CPU could be read before it is complete.
        non_blocking = torch.device(device).type != "cpu"
        return self._map(
            lambda tensor: tensor.to(device, non_blocking=non_blocking), lambda memory: memory.to(device)
        )

    def select(self, rows: Tensor | slice) -> Self:
        """Return a copy with only some rows.

        rows: the indices of the rows, (B',), in which an index may occur more than once; or a slice.
        """
        if isinstance(rows, slice):
            return self._map(
                lambda tensor: tensor[rows], lambda memory: memory.reorder(_rows_of(memory)[rows])
            )
        return self._map(
            lambda tensor: tensor.index_select(0, rows.to(tensor.device)),
            lambda memory: memory.reorder(rows.to(memory.key.device)),
        )

    def reorder(self, index: Tensor) -> Self:
        """Alias of select(), for code written for earlier versions."""
        return self.select(index)

    def repeat(self, count: int) -> Self:
        """Return a copy in which each row occurs `count` times, one after the other."""
        return self._map(
            lambda tensor: tensor.repeat_interleave(count, 0),
            lambda memory: memory.reorder(_rows_of(memory).repeat_interleave(count)),
        )

    def detach(self) -> Self:
        """Return a copy with detached tensors: no gradient flows back through them."""
        return self._map(Tensor.detach, Memory.detach)

    def add_rows(self, count: int) -> Self:
        """Return a copy with `count` rows of zeros appended to every tensor.

        If 0 is not the right value for a field, change the result with dataclasses.replace(). Raises
        TypeError if a field has a regard.Memory.
        """

        def refuse(memory: Memory) -> Memory:
            raise TypeError("add_rows() does not support a Memory")

        return self._map(
            lambda tensor: torch.cat((tensor, tensor.new_zeros(count, *tensor.shape[1:]))), refuse
        )

    def named_tensors(self) -> dict[str, Tensor]:
        """Return a dict from the name of a field to its tensor, which can be saved in a file.

        A number becomes a 0-dimensional tensor. Fields with values of other types are not in the dict.
        from_tensors() creates an object from the dict.
        """
        named = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        kinds = Tensor | bool | int | float
        return {name: torch.as_tensor(value) for name, value in named.items() if isinstance(value, kinds)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Create an object of this class from the result of named_tensors().

        Tensors whose name is not the name of a field are ignored. A 0-dimensional tensor becomes a number.
        """
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        values = {name: value if value.dim() else value.item() for name, value in tensors.items()}
        return cls(**{name: value for name, value in values.items() if name in known})

    def _map(self, change: Callable[[Tensor], Tensor], change_memory: Callable[[Memory], Memory]) -> Self:
        """Return a copy, with one function applied to every tensor and another one to every regard.Memory."""

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, Memory):
                return change_memory(value)
            if isinstance(value, BatchRows):
                return value._map(change, change_memory)
            if isinstance(value, tuple):
                parts = map(changed, value)
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            return value

        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return replace(self, **{name: changed(value) for name, value in values.items()})  # type: ignore[type-var]


def _rows_of(memory: Memory) -> Tensor:
    return torch.arange(len(memory.key), device=memory.key.device)
