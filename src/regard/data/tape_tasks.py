"""The algorithmic tasks of Graves et al. 2014 (section 4), and `overwrite`, by name.

A task generates random sequences of a given size, and converts sequences written by users to tensors. It also
computes how many slots the tape needs for a sequence. To add a task, write its class and add one line to
TAPE_TASKS.

algorithm_batch() is for translation models: it copies, reverses or sorts a sequence of symbols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.data.batch import EOS, Batch, TapeBatch
from regard.errors import ArgumentError, DataError, UnknownName, message, printable

__all__ = [
    "AssociativeRecall",
    "Copy",
    "DynamicNGrams",
    "LARGEST_SIZE",
    "Overwrite",
    "PrioritySort",
    "RepeatCopy",
    "Sizes",
    "TAPE_TASKS",
    "TASKS",
    "TapeTask",
    "algorithm_batch",
    "build_tape_task",
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
        self.input_size, self.target_size = self.width + 1, self.width
        self.ranges = {"length": self.length}
        self.longer = ({"length": 3 * self.length[1]}, {"length": 6 * self.length[1]})

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

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        (vectors,) = values
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
        self.input_size, self.target_size = self.width + 2, self.width + 1
        self.ranges = {"length": self.length, "repeats": self.repeats}
        most = self.length[1], self.repeats[1]
        self.longer = (
            {"length": 2 * most[0], "repeats": most[1]},
            {"length": most[0], "repeats": 2 * most[1]},
        )

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

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        vectors, repeats = values
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
        self.input_size, self.target_size = self.width + 2, self.width
        self.ranges = {"length": self.length}
        self.longer = ({"length": self.length[1] + self.length[1] // 2},)

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

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        vectors, priorities = values
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


@dataclass
class AssociativeRecall(TapeTask):
    """Associative recall (section 4.3): given a list of items, output the item that follows a query item.

    width: number of bits of a vector.
    vectors: number of vectors of an item.
    length: range of the number of items in training.
    """

    width: int = 6
    vectors: int = 3
    length: tuple[int, int] = (2, 6)
    name: ClassVar[str] = "associative-recall"
    fields: ClassVar[tuple[str, ...]] = ("items", "query")

    def __post_init__(self) -> None:
        self.input_size, self.target_size = self.width + 2, self.width
        self.ranges = {"length": self.length}
        self.longer = ({"length": 2 * self.length[1]}, {"length": 3 * self.length[1]})

    def least(self, name: str) -> int:
        return 2

    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        items = random_bits((count, sizes["length"], self.vectors, self.width), generator)
        return self.laid_out(items, torch.randint(0, sizes["length"] - 1, (count,), generator=generator))

    def laid_out(self, items_BLVW: Tensor, query_B: Tensor) -> TapeBatch:
        """Return the batch: the items, the query item, and the steps to answer.

        There is an item delimiter before each item, and a query delimiter before and after the query item.

        items_BLVW: L items of V vectors for each sequence.
        query_B: the index of the query item of each sequence.
        """
        batch, length, vectors, width = items_BLVW.shape
        one, rows = vectors + 1, torch.arange(batch)
        end = length * one
        inputs, targets, scored = empty(batch, end + 2 + 2 * vectors, self.input_size, width)
        listed = inputs[:, :end].unflatten(1, (length, one))
        listed[:, :, 0, width] = 1.0
        listed[:, :, 1:, :width] = items_BLVW
        inputs[:, end, width + 1] = inputs[:, end + one, width + 1] = 1.0
        inputs[:, end + 1 : end + one, :width] = items_BLVW[rows, query_B]
        targets[:, end + one + 1 :] = items_BLVW[rows, query_B + 1]
        scored[:, end + one + 1 :] = True
        return TapeBatch(inputs, targets, scored)

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        items, query = values
        if not isinstance(items, list) or not 2 <= len(items) <= LARGEST_SIZE:
            raise DataError(
                message(place, "items is not a list of items", expected="a list of two or more items")
            )
        read = [read_vectors(item, self.width, place, "items") for item in items]
        if wrong := [each.shape[1] for each in read if each.shape[1] != self.vectors]:
            problem = f"an item has {wrong[0]} vectors"
            raise DataError(message(place, problem, expected=f"{self.vectors} vectors for each item"))
        number = read_count(query, place, "query", most=len(items) - 1)
        batch = self.laid_out(torch.stack(read, 1), torch.tensor([number - 1]))
        return batch, {"length": len(items)}


@dataclass
class Overwrite(TapeTask):
    """Overwrite: store values for keys, replace some of the values, and output the last value of each key.

    For example, after "Monday: dentist" and later "Monday: barber", the answer for "Monday" is "barber". A
    random sequence first writes a value for each of `length` different keys. Then it writes a new value for
    half of the keys, rounded up, or `changes` new values, each for a random key. Then it asks for every key
    once.

    width: number of bits of a key, and of a value.
    length: range of the number of keys in training.
    changes: range of the number of new values in training. None: half of the keys get one.
    """

    width: int = 6
    length: tuple[int, int] = (2, 5)
    changes: tuple[int, int] | None = None
    name: ClassVar[str] = "overwrite"
    fields: ClassVar[tuple[str, ...]] = ("writes", "queries")

    def __post_init__(self) -> None:
        self.input_size, self.target_size = 2 * self.width + 2, self.width
        self.ranges, longer = {"length": self.length}, {"length": 2 * self.length[1]}
        if self.changes is not None:
            self.ranges["changes"] = self.changes
            longer["changes"] = 2 * self.changes[1]
        self.longer = (longer,)

    def least(self, name: str) -> int:
        return 0 if name == "changes" else 1

    def check_sizes(self, sizes: Mapping[str, int], place: str) -> None:
        super().check_sizes(sizes, place)
        if sizes.get("length", 1) > 2**self.width:
            problem = (
                f"length is {sizes['length']}, but a key of {self.width} bits has {2**self.width} values"
            )
            raise ArgumentError(message(place, problem, expected=f"a length of at most {2**self.width}"))

    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        keys, width = sizes["length"], self.width
        codes = torch.rand(count, 2**width, generator=generator).argsort(1)[:, :keys]
        keys_BKW = ((codes[..., None] >> torch.arange(width)) & 1).float()
        first = torch.arange(keys).expand(count, -1)
        if self.changes is None:
            # Half of the keys (rounded up), in random order, get a new value.
            later = torch.rand(count, keys, generator=generator).argsort(1)[:, : (keys + 1) // 2]
        else:
            later = torch.randint(keys, (count, sizes["changes"]), generator=generator)
        written_BL = torch.cat((first, later), 1)
        values = random_bits((count, written_BL.shape[1], width), generator)
        asked = torch.rand(count, keys, generator=generator).argsort(1)
        rows = torch.arange(count)[:, None]
        return self.laid_out(keys_BKW[rows, written_BL], values, keys_BKW[rows, asked])

    def laid_out(self, keys_BLW: Tensor, values_BLW: Tensor, queries_BQW: Tensor) -> TapeBatch:
        """Return the batch: first the writes, then each query, with its answer at the next step.

        keys_BLW, values_BLW: the key and the value of each of L writes.
        queries_BQW: the keys of Q queries.
        """
        batch, writes, width = keys_BLW.shape
        queries = queries_BQW.shape[1]
        inputs, targets, scored = empty(batch, writes + 2 * queries, self.input_size, width)
        inputs[:, :writes, :width], inputs[:, :writes, width : 2 * width] = keys_BLW, values_BLW
        inputs[:, :writes, 2 * width] = 1.0
        inputs[:, writes::2, :width] = queries_BQW
        inputs[:, writes::2, 2 * width + 1] = 1.0
        equal_BQL = (queries_BQW[:, :, None] == keys_BLW[:, None]).all(-1)
        last_BQ = (equal_BQL * torch.arange(1, writes + 1)).argmax(-1)
        answers = values_BLW.gather(1, last_BQ[..., None].expand(-1, -1, width))
        targets[:, writes + 1 :: 2] = answers
        scored[:, writes + 1 :: 2] = True
        return TapeBatch(inputs, targets, scored)

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        writes, queries = values
        if (
            not isinstance(writes, list)
            or not writes
            or any(not isinstance(each, list) or len(each) != 2 for each in writes)
        ):
            expected = 'a list of pairs of a key and a value, such as [["010111", "110001"]]'
            raise DataError(message(place, "writes is not a list of pairs", expected=expected))
        keys, stored = (
            read_vectors([each[side] for each in writes], self.width, place, "writes") for side in (0, 1)
        )
        asked = read_vectors(queries, self.width, place, "queries")
        if not bool((asked[0, :, None] == keys[0]).all(-1).any(-1).all()):
            raise DataError(
                message(place, "a query is not the key of a write", expected="keys that occur in writes")
            )
        sizes = {"length": len({tuple(each) for each in keys[0].tolist()})}
        if self.changes is not None:
            sizes["changes"] = len(writes) - sizes["length"]
        return self.laid_out(keys, stored, asked), sizes


@dataclass
class DynamicNGrams(TapeTask):
    """Dynamic n-grams (section 4.4): predict the next bit of a sequence from a random n-gram distribution.

    Each of the 2^(n-1) contexts has its own probability of a 1, drawn from Beta(1/2, 1/2) for each sequence.
    The first n - 1 bits are not scored.

    order: n. length: number of bits in training.
    """

    order: int = 6
    length: tuple[int, int] = (200, 200)
    name: ClassVar[str] = "n-grams"
    fields: ClassVar[tuple[str, ...]] = ("bits",)

    def __post_init__(self) -> None:
        self.ranges = {"length": self.length}
        self.longer = ({"length": 2 * self.length[1]},)

    input_size = 1
    target_size = 1

    def least(self, name: str) -> int:
        return self.order

    def slots(self, sizes: Mapping[str, int]) -> int:
        return 1

    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        context = self.order - 1
        # cos^2 of a uniform angle has the distribution Beta(1/2, 1/2).
        chances = torch.cos(torch.rand(count, 2**context, generator=generator) * (torch.pi / 2)) ** 2
        drawn = torch.rand(count, sizes["length"], generator=generator)
        values = torch.empty(count, sizes["length"], dtype=torch.long)
        values[:, :context] = (drawn[:, :context] < 0.5).long()
        powers = 2 ** torch.arange(context - 1, -1, -1)
        index = (values[:, :context] * powers).sum(1)
        for t in range(context, sizes["length"]):
            values[:, t] = (drawn[:, t] < chances.gather(1, index[:, None])[:, 0]).long()
            index = (index * 2 + values[:, t]) % 2**context
        return self.laid_out(values.float())

    def laid_out(self, values_BL: Tensor) -> TapeBatch:
        """Return the batch. At step t, the input is bit t, and the target is bit t + 1."""
        scored = torch.zeros(len(values_BL), values_BL.shape[1] - 1, dtype=torch.bool)
        scored[:, self.order - 2 :] = True
        return TapeBatch(values_BL[:, :-1, None], values_BL[:, 1:, None], scored)

    def optimal_chances(self, batch: TapeBatch) -> Tensor:
        """Return the optimal Bayesian estimate of the probability that each target bit is 1, (B, T).

        P(1) = (N_1 + 1/2) / (N_1 + N_0 + 1)       (eq. 10 of the paper)

        N_1 and N_0: how many times the same context was followed by 1 and by 0 earlier in the sequence.
        At steps that are not scored, the result is 0.5.
        """
        context = self.order - 1
        bits_BL = torch.cat((batch.inputs[:, :, 0], batch.targets[:, -1:, 0]), 1).long()
        counts = torch.zeros(len(batch), 2**context, 2)
        chances, rows = torch.full(batch.scored.shape, 0.5), torch.arange(len(batch))
        for t in range(context, bits_BL.shape[1]):
            index = (bits_BL[:, t - context : t] * (2 ** torch.arange(context - 1, -1, -1))).sum(1)
            seen = counts[rows, index]
            chances[:, t - 1] = (seen[:, 1] + 0.5) / (seen.sum(1) + 1)
            counts[rows, index, bits_BL[:, t]] += 1
        return chances

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        (text,) = values
        if not isinstance(text, str | list) or not self.order <= len(text) <= LARGEST_SIZE:
            problem = f"bits is {printable(str(text))[:80]!r}"
            raise DataError(
                message(place, problem, expected=f"a text of {self.order:,} to {LARGEST_SIZE:,} bits")
            )
        values = read_bits(text, len(text), place, "bits")
        return self.laid_out(torch.tensor([values])), {"length": len(values)}


TAPE_TASKS: dict[str, type[TapeTask]] = {
    each.name: each for each in (Copy, RepeatCopy, AssociativeRecall, DynamicNGrams, PrioritySort, Overwrite)
}
"""Name of an algorithmic task -> its class."""


def build_tape_task(name: str, **options: Any) -> TapeTask:
    """Return an algorithmic task, such as copy.

    name: a name in TAPE_TASKS.
    options: arguments of the class of the task. An argument that is None is ignored.

    >>> build_tape_task("copy", length=(1, 5)).longest
    {'length': 5}
    """
    if name not in TAPE_TASKS:
        raise UnknownName("task", name, TAPE_TASKS)
    kind = TAPE_TASKS[name]
    known = tuple(each for each in kind.__dataclass_fields__)  # type: ignore[attr-defined]
    chosen = {option: value for option, value in options.items() if value is not None}
    for option in chosen:
        if option not in known:
            raise UnknownName(f"option of the task {name}:", option, known)
    for option, value in chosen.items():
        if isinstance(value, tuple | list):
            low, high = value
            least = 0 if option == "changes" else 1
            if not least <= low <= high <= LARGEST_SIZE:
                expected = f"two numbers, the smaller first, from {least} to {LARGEST_SIZE:,}"
                raise ArgumentError(
                    message(f"data.{option}", f"the range {low} to {high} is invalid", expected=expected)
                )
            chosen[option] = (low, high)
    task = kind(**chosen)
    for end in (0, 1):
        task.check_sizes({name: each[end] for name, each in task.ranges.items()}, "[data]")
    return task


FIRST = EOS + 1
"""The token id of the first symbol. The special tokens have smaller ids."""

TASKS: dict[str, Callable[[list[int]], list[int]]] = {
    "copy": list,
    "reverse": lambda symbols: symbols[::-1],
    "sort": sorted,
}
"""All tasks by name. Each function computes the target from the source, both lists of token ids."""


def algorithm_batch(
    name: str,
    count: int,
    length: int,
    symbols: int,
    generator: torch.Generator | None = None,
    *,
    shortest: int | None = None,
) -> Batch:
    """Return a batch of random sequences of symbols, with copied, reversed or sorted targets.

    name: the task: "copy", "reverse" or "sort".
    count: number of sequences (batch size).
    length: number of symbols in each sequence.
    symbols: number of different symbols; their token ids start at 4, so a model needs a vocabulary of
        symbols + 4 tokens.
    generator: a CPU generator; the default is torch's global generator.
    shortest: if set, each sequence has a random number of symbols from `shortest` to `length`.

    In the example, a row has 6 tokens: 5 symbols and EOS.

    >>> import torch
    >>> batch = algorithm_batch("reverse", 2, length=5, symbols=9, generator=torch.Generator().manual_seed(0))
    >>> batch.source.shape, batch.labels[:, :-1].equal(batch.source[:, :-1].flip(1))
    (torch.Size([2, 6]), True)
    """
    if name not in TASKS:
        raise UnknownName("task", name, TASKS)
    shortest = length if shortest is None else shortest
    if count < 1 or symbols < 1 or not 0 <= shortest <= length:
        problem = f"count is {count}, symbols is {symbols}, shortest is {shortest}, length is {length}"
        expected = "count >= 1, symbols >= 1 and 0 <= shortest <= length"
        raise ArgumentError(message("algorithm_batch()", problem, expected=expected))
    drawn = torch.randint(FIRST, FIRST + symbols, (count, length), generator=generator).tolist()
    lengths = torch.randint(shortest, length + 1, (count,), generator=generator).tolist()
    sources = [row[:end] for row, end in zip(drawn, lengths, strict=True)]
    return Batch.collate(sources, [TASKS[name](source) for source in sources])
