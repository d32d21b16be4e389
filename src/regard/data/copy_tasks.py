"""Tasks that repeat vectors of bits: copy, repeat copy and priority sort (Graves et al. 2014)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.data.tape_batch import TapeBatch
from regard.data.tape_task import (
    LARGEST_SIZE,
    Sizes,
    TapeTask,
    empty,
    random_bits,
    read_count,
    read_fields,
    read_vectors,
)
from regard.errors import DataError, message, printable

__all__ = ["Copy", "PrioritySort", "RepeatCopy"]


@dataclass
class Copy(TapeTask):
    """Copy (section 4.1): after a delimiter, output the input sequence of random vectors.

    width: number of bits of a vector. length: range of the number of vectors in training.
    """

    width: int = 8
    length: tuple[int, int] = (1, 20)
    name: ClassVar[str] = "copy"
    fields: ClassVar[tuple[str, ...]] = ("vectors",)

    def __post_init__(self) -> None:
        self.ranges = {"length": self.length}
        self.longer = ({"length": 3 * self.length[1]}, {"length": 6 * self.length[1]})

    @property
    def input_size(self) -> int:
        return self.width + 1

    @property
    def target_size(self) -> int:
        return self.width

    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        return self.laid_out(random_bits((count, sizes["length"], self.width), generator))

    def laid_out(self, vectors_BLW: Tensor) -> TapeBatch:
        """Return the batch. First come L vectors and a delimiter as inputs, then L steps without inputs.

        The targets of the last L steps are the vectors.
        """
        batch, length, width = vectors_BLW.shape
        inputs, targets, scored = empty(batch, 2 * length + 1, self.input_size, width)
        inputs[:, :length, :width] = vectors_BLW
        inputs[:, length, width] = 1.0
        targets[:, length + 1 :] = vectors_BLW
        scored[:, length + 1 :] = True
        return TapeBatch(inputs, targets, scored)

    def given(self, fields: Mapping[str, Any], place: str) -> tuple[TapeBatch, Sizes]:
        (vectors,) = read_fields(fields, self.fields, place)
        vectors_BLW = read_vectors(vectors, self.width, place, "vectors")
        return self.laid_out(vectors_BLW), {"length": vectors_BLW.shape[1]}


@dataclass
class RepeatCopy(TapeTask):
    """Repeat copy (section 4.2): output the sequence of vectors several times, then an end marker.

    The number of repeats is an input, normalised by the mean and standard deviation of the training range.

    width: number of bits of a vector.
    length: range of the number of vectors in training.
    repeats: range of the number of repeats in training.
    """

    width: int = 8
    length: tuple[int, int] = (1, 10)
    repeats: tuple[int, int] = (1, 10)
    name: ClassVar[str] = "repeat-copy"
    fields: ClassVar[tuple[str, ...]] = ("vectors", "repeats")

    def __post_init__(self) -> None:
        self.ranges = {"length": self.length, "repeats": self.repeats}
        most = self.length[1], self.repeats[1]
        self.longer = (
            {"length": 2 * most[0], "repeats": most[1]},
            {"length": most[0], "repeats": 2 * most[1]},
        )

    @property
    def input_size(self) -> int:
        return self.width + 2

    @property
    def target_size(self) -> int:
        return self.width + 1

    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        return self.laid_out(random_bits((count, sizes["length"], self.width), generator), sizes["repeats"])

    def laid_out(self, vectors_BLW: Tensor, repeats: int) -> TapeBatch:
        """Return the batch: the vectors, a delimiter with the number of repeats, and the steps to answer."""
        batch, length, width = vectors_BLW.shape
        low, high = self.repeats
        # Standard deviation of a discrete uniform distribution.
        deviation = max(((high - low + 1) ** 2 - 1) / 12, 1.0) ** 0.5
        begin = length + 1
        inputs, targets, scored = empty(batch, begin + repeats * length + 1, self.input_size, width + 1)
        inputs[:, :length, :width] = vectors_BLW
        inputs[:, length, width] = 1.0
        inputs[:, length, width + 1] = (repeats - (low + high) / 2) / deviation
        targets[:, begin:-1, :width] = vectors_BLW.repeat(1, repeats, 1)
        targets[:, -1, width] = 1.0
        scored[:, begin:] = True
        return TapeBatch(inputs, targets, scored)

    def given(self, fields: Mapping[str, Any], place: str) -> tuple[TapeBatch, Sizes]:
        vectors, repeats = read_fields(fields, self.fields, place)
        vectors_BLW = read_vectors(vectors, self.width, place, "vectors")
        count = read_count(repeats, place, "repeats")
        if count * vectors_BLW.shape[1] > LARGEST_SIZE:
            problem = f"the answer has {count * vectors_BLW.shape[1]:,} vectors"
            raise DataError(message(place, problem, expected=f"at most {LARGEST_SIZE:,}"))
        return self.laid_out(vectors_BLW, count), {"length": vectors_BLW.shape[1], "repeats": count}


@dataclass
class PrioritySort(TapeTask):
    """Priority sort (section 4.5): output vectors in the order of their priorities, highest first.

    The input is vectors, each with a priority. The targets are the vectors with the highest priorities: 4/5
    of all vectors, rounded down, but at least one. For example, 16 of 20 vectors.

    width: number of bits of a vector. length: range of the number of vectors in training.
    """

    width: int = 8
    length: tuple[int, int] = (20, 20)
    name: ClassVar[str] = "priority-sort"
    fields: ClassVar[tuple[str, ...]] = ("vectors", "priorities")

    def __post_init__(self) -> None:
        self.ranges = {"length": self.length}
        self.longer = ({"length": self.length[1] + self.length[1] // 2},)

    @property
    def input_size(self) -> int:
        return self.width + 2

    @property
    def target_size(self) -> int:
        return self.width

    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        vectors = random_bits((count, sizes["length"], self.width), generator)
        return self.laid_out(vectors, torch.rand(count, sizes["length"], generator=generator) * 2 - 1)

    def laid_out(self, vectors_BLW: Tensor, priorities_BL: Tensor) -> TapeBatch:
        """Return the batch: the vectors with their priorities, a delimiter, and the steps to answer."""
        batch, length, width = vectors_BLW.shape
        answers = max(length * 4 // 5, 1)
        inputs, targets, scored = empty(batch, length + 1 + answers, self.input_size, width)
        inputs[:, :length, :width] = vectors_BLW
        inputs[:, :length, width] = priorities_BL
        inputs[:, length, width + 1] = 1.0
        order = priorities_BL.argsort(dim=1, descending=True, stable=True)[:, :answers]
        targets[:, length + 1 :] = vectors_BLW.gather(1, order[..., None].expand(-1, -1, width))
        scored[:, length + 1 :] = True
        return TapeBatch(inputs, targets, scored)

    def given(self, fields: Mapping[str, Any], place: str) -> tuple[TapeBatch, Sizes]:
        vectors, priorities = read_fields(fields, self.fields, place)
        vectors_BLW = read_vectors(vectors, self.width, place, "vectors")
        numbers = priorities if isinstance(priorities, list) else []
        if len(numbers) != vectors_BLW.shape[1] or any(
            isinstance(each, bool) or not isinstance(each, int | float) or not -1 <= each <= 1
            for each in numbers
        ):
            expected = f"{vectors_BLW.shape[1]} numbers from -1 to 1, one for each vector"
            raise DataError(
                message(place, f"priorities is {printable(str(priorities))[:80]!r}", expected=expected)
            )
        ordered = torch.tensor([[float(each) for each in numbers]])
        return self.laid_out(vectors_BLW, ordered), {"length": len(numbers)}
