"""TapeTask, the base class of the algorithmic tasks; functions that read sequences written by users."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.data.tape_batch import TapeBatch
from regard.errors import ArgumentError, DataError, UnknownName, message, printable

__all__ = [
    "LARGEST_SIZE",
    "Sizes",
    "TapeTask",
    "empty",
    "random_bits",
    "read_bits",
    "read_count",
    "read_vectors",
]

Sizes = dict[str, int]
"""The sizes of a sequence by name, such as {"length": 20}."""

LARGEST_SIZE = 10_000
"""The largest size of a sequence, such as its length or its number of repeats."""


class TapeTask(ABC):
    """Base class of the algorithmic tasks.

    input_size: X, the size of an input vector.
    target_size: Y, the number of bits that a model outputs at a step.
    ranges: name of each size -> (smallest, largest) in training.
    longer: the sizes with which generalisation is measured. They are longer than in training.
    """

    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]
    """Names of the fields of the JSON object in which a user writes a sequence."""
    input_size: int
    target_size: int
    ranges: dict[str, tuple[int, int]]
    longer: tuple[Sizes, ...]

    @abstractmethod
    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        """Draw `count` random sequences of these sizes."""

    def given(self, fields: Mapping[str, Any], place: str) -> tuple[TapeBatch, Sizes]:
        """Return a batch with the sequence that a user wrote as a JSON object, and the sizes of the sequence.

        Raises DataError if a field is missing, unknown or invalid.

        fields: the fields of the JSON object.
        place: where the object comes from, such as file and line, for error messages.
        """
        for each in fields:
            if each not in self.fields:
                problem = f"unknown field {printable(each)[:80]!r}"
                raise DataError(message(place, problem, expected=f"the fields {', '.join(self.fields)}"))
        for each in self.fields:
            if each not in fields:
                problem = f"the field {each!r} is missing"
                raise DataError(message(place, problem, expected=f"the fields {', '.join(self.fields)}"))
        return self.read([fields[each] for each in self.fields], place)

    @abstractmethod
    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        """Return the same as given(). `values` are the values of `fields`, in this order."""

    def slots(self, sizes: Mapping[str, int]) -> int:
        """Return how many slots a tape needs at least for a sequence of these sizes."""
        return sizes["length"]

    def sizes(self, generator: torch.Generator) -> Sizes:
        """Draw the sizes of a sequence, uniformly from the training range."""
        return {
            name: int(torch.randint(low, high + 1, (), generator=generator))
            for name, (low, high) in self.ranges.items()
        }

    @property
    def longest(self) -> Sizes:
        """The largest value of each size of the sequences in training, such as {"length": 20}."""
        return {name: high for name, (_, high) in self.ranges.items()}

    def steps(self, sizes: Mapping[str, int]) -> int:
        """Return the number of steps of a sequence of these sizes."""
        return self.draw(1, sizes, torch.Generator().manual_seed(0)).steps

    def check_sizes(self, sizes: Mapping[str, int], place: str) -> None:
        """Raise ArgumentError if a size is unknown, too small or too large."""
        for name, value in sizes.items():
            if name not in self.ranges:
                raise UnknownName(f"size of the task {self.name} in {place}:", name, self.ranges)
            least = self.least(name)
            if not least <= value <= LARGEST_SIZE:
                expected = f"{least:,} to {LARGEST_SIZE:,}"
                raise ArgumentError(message(place, f"{name} is {value}", expected=expected))

    def least(self, name: str) -> int:
        """Return the smallest possible value of a size."""
        return 1


def random_bits(count: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return random bits as float32."""
    return torch.randint(0, 2, tuple(count), generator=generator).float()


def empty(batch: int, steps: int, inputs: int, targets: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs, targets and scored steps of a batch, filled with zeros."""
    return (
        torch.zeros(batch, steps, inputs),
        torch.zeros(batch, steps, targets),
        torch.zeros(batch, steps, dtype=torch.bool),
    )


def read_bits(value: Any, width: int, place: str, name: str) -> list[float]:
    """Read a vector of bits: a text such as "10110", or a list of 0 and 1."""
    values = list(value) if isinstance(value, str | list | tuple) else []
    if len(values) != width or any(each not in ("0", "1", 0, 1) for each in values):
        problem = f"{name} has the invalid vector {printable(str(value))[:80]!r}"
        raise DataError(message(place, problem, expected=f"{width} bits, each 0 or 1"))
    return [float(each) for each in values]


def read_vectors(value: Any, width: int, place: str, name: str) -> Tensor:
    """Read a list of one or more vectors of bits; return (1, L, width)."""
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not value:
        expected = f"a list of one or more vectors of {width} bits"
        empty_list = isinstance(value, list | tuple)
        problem = f"{name} has no vectors" if empty_list else f"{name} is {printable(str(value))[:80]}"
        raise DataError(message(place, problem, expected=expected))
    if len(value) > LARGEST_SIZE:
        raise DataError(
            message(place, f"{name} has {len(value):,} vectors", expected=f"at most {LARGEST_SIZE:,} vectors")
        )
    return torch.tensor([[read_bits(each, width, place, name) for each in value]])


def read_count(value: Any, place: str, name: str, least: int = 1, most: int = LARGEST_SIZE) -> int:
    """Read a whole number."""
    if type(value) is not int or not least <= value <= most:
        problem = f"{name} is {printable(str(value))[:80]!r}"
        raise DataError(message(place, problem, expected=f"a whole number, {least:,} to {most:,}"))
    return value
