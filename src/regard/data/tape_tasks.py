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
from torch.nn.functional import pad

from regard.data.batch import EOS, Batch, TapeBatch
from regard.errors import ArgumentError, DataError, UnknownName, message, printable

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
        for each in (*fields, *self.fields):
            if (each in fields) != (each in self.fields):
                shown = repr(printable(each)[:80])
                problem = f"unknown field {shown}" if each in fields else f"the field {shown} is missing"
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


def answered(inputs_BLX: Tensor, answers_BAY: Tensor) -> TapeBatch:
    """Return sequences of L inputs, then A steps without inputs, at which the answers are scored."""
    inputs = pad(inputs_BLX, (0, 0, 0, answers_BAY.shape[1]))
    targets = pad(answers_BAY, (0, 0, inputs_BLX.shape[1], 0))
    scored = torch.arange(inputs.shape[1]) >= inputs_BLX.shape[1]
    return TapeBatch(inputs, targets, scored.repeat(len(inputs), 1))


def invalid(place: str, name: str, value: Any, expected: str) -> DataError:
    """Return the error for a field with an invalid value."""
    return DataError(message(place, f"{name} is {printable(str(value))[:80]!r}", expected=expected))


def read_bits(value: Any, width: int, place: str, name: str) -> list[float]:
    """Read a vector of bits: a text such as "10110", or a list of 0 and 1."""
    values = list(value) if isinstance(value, str | list) else []
    if len(values) != width or any(each not in ("0", "1", 0, 1) for each in values):
        raise invalid(place, f"a vector of {name}", value, f"{width} bits, each 0 or 1")
    return [float(each) for each in values]


def read_vectors(value: Any, width: int, place: str, name: str) -> Tensor:
    """Read a list of one or more vectors of bits; return (1, L, width)."""
    values = value.split() if isinstance(value, str) else value
    if not isinstance(values, list) or not 0 < len(values) <= LARGEST_SIZE:
        raise invalid(place, name, value, f"a list of 1 to {LARGEST_SIZE:,} vectors of {width} bits")
    return torch.tensor([[read_bits(each, width, place, name) for each in values]])


def read_count(value: Any, place: str, name: str, most: int = LARGEST_SIZE) -> int:
    """Read a whole number."""
    if type(value) is not int or not 1 <= value <= most:
        raise invalid(place, name, value, f"a whole number, 1 to {most:,}")
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
        """Return the batch: L vectors and a delimiter, then the vectors as answers."""
        inputs = pad(vectors_BLW, (0, 1, 0, 1))
        inputs[:, -1, -1] = 1.0
        return answered(inputs, vectors_BLW)

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        vectors_BLW = read_vectors(values[0], self.width, place, "vectors")
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
        length, repeats = self.length[1], self.repeats[1]
        self.longer = (
            {"length": 2 * length, "repeats": repeats},
            {"length": length, "repeats": 2 * repeats},
        )

    def draw(self, count: int, sizes: Mapping[str, int], generator: torch.Generator) -> TapeBatch:
        return self.laid_out(random_bits((count, sizes["length"], self.width), generator), sizes["repeats"])

    def laid_out(self, vectors_BLW: Tensor, repeats: int) -> TapeBatch:
        """Return the batch: the vectors, a delimiter with the number of repeats, and the answers."""
        low, high = self.repeats
        # Standard deviation of a discrete uniform distribution.
        deviation = max(((high - low + 1) ** 2 - 1) / 12, 1.0) ** 0.5
        inputs = pad(vectors_BLW, (0, 2, 0, 1))
        inputs[:, -1, -2] = 1.0
        inputs[:, -1, -1] = (repeats - (low + high) / 2) / deviation
        answers = pad(vectors_BLW.repeat(1, repeats, 1), (0, 1, 0, 1))
        answers[:, -1, -1] = 1.0
        return answered(inputs, answers)

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        vectors_BLW = read_vectors(values[0], self.width, place, "vectors")
        length = vectors_BLW.shape[1]
        repeats = read_count(values[1], place, "repeats", LARGEST_SIZE // length)
        return self.laid_out(vectors_BLW, repeats), {"length": length, "repeats": repeats}


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
        """Return the batch: the vectors with their priorities, a delimiter, and the sorted vectors."""
        length, width = vectors_BLW.shape[1:]
        inputs = pad(torch.cat((vectors_BLW, priorities_BL[..., None]), 2), (0, 1, 0, 1))
        inputs[:, -1, -1] = 1.0
        order = priorities_BL.argsort(dim=1, descending=True, stable=True)[:, : max(length * 4 // 5, 1)]
        return answered(inputs, vectors_BLW.gather(1, order[..., None].expand(-1, -1, width)))

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        vectors_BLW = read_vectors(values[0], self.width, place, "vectors")
        numbers = values[1] if isinstance(values[1], list) else []
        valid = all(type(each) in (int, float) and -1 <= each <= 1 for each in numbers)
        if len(numbers) != vectors_BLW.shape[1] or not valid:
            expected = f"{vectors_BLW.shape[1]} numbers from -1 to 1, one for each vector"
            raise invalid(place, "priorities", values[1], expected)
        return self.laid_out(vectors_BLW, torch.tensor([numbers]).float()), {"length": len(numbers)}


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
        """Return the batch: the items, the query item, and the item after it as answer.

        There is an item delimiter before each item, and a query delimiter before and after the query item.

        items_BLVW: L items of V vectors for each sequence.
        query_B: the index of the query item of each sequence.
        """
        rows = torch.arange(len(items_BLVW))
        listed = pad(items_BLVW, (0, 2, 1, 0))
        listed[:, :, 0, -2] = 1.0
        asked = pad(items_BLVW[rows, query_B], (0, 2, 1, 1))
        asked[:, [0, -1], -1] = 1.0
        return answered(torch.cat((listed.flatten(1, 2), asked), 1), items_BLVW[rows, query_B + 1])

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        items, query = values
        if not isinstance(items, list) or not 2 <= len(items) <= LARGEST_SIZE:
            raise invalid(place, "items", items, "a list of two or more items")
        read = [read_vectors(item, self.width, place, "items") for item in items]
        if any(each.shape[1] != self.vectors for each in read):
            raise invalid(place, "items", items, f"{self.vectors} vectors for each item")
        number = read_count(query, place, "query", len(items) - 1)
        return self.laid_out(torch.stack(read, 1), torch.tensor([number - 1])), {"length": len(items)}


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
        self.ranges = {"length": self.length} | ({"changes": self.changes} if self.changes else {})
        self.longer = ({name: 2 * high for name, (_, high) in self.ranges.items()},)

    def least(self, name: str) -> int:
        return 0 if name == "changes" else 1

    def check_sizes(self, sizes: Mapping[str, int], place: str) -> None:
        super().check_sizes(sizes, place)
        keys = 2**self.width
        if sizes.get("length", 1) > keys:
            problem = f"length is {sizes['length']}, but a key of {self.width} bits has {keys} values"
            raise ArgumentError(message(place, problem, expected=f"a length of at most {keys}"))

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
        steps = writes + 2 * queries_BQW.shape[1]
        inputs = torch.zeros(batch, steps, self.input_size)
        targets, scored = torch.zeros(batch, steps, width), torch.zeros(batch, steps, dtype=torch.bool)
        inputs[:, :writes, : 2 * width] = torch.cat((keys_BLW, values_BLW), 2)
        inputs[:, :writes, 2 * width] = 1.0
        inputs[:, writes::2, :width] = queries_BQW
        inputs[:, writes::2, 2 * width + 1] = 1.0
        equal_BQL = (queries_BQW[:, :, None] == keys_BLW[:, None]).all(-1)
        last_BQ = (equal_BQL * torch.arange(1, writes + 1)).argmax(-1)
        targets[:, writes + 1 :: 2] = values_BLW.gather(1, last_BQ[..., None].expand(-1, -1, width))
        scored[:, writes + 1 :: 2] = True
        return TapeBatch(inputs, targets, scored)

    def read(self, values: Sequence[Any], place: str) -> tuple[TapeBatch, Sizes]:
        writes, queries = values
        pairs = isinstance(writes, list) and all(isinstance(each, list) and len(each) == 2 for each in writes)
        if not pairs or not writes:
            expected = 'a list of pairs of a key and a value, such as [["010111", "110001"]]'
            raise invalid(place, "writes", writes, expected)
        keys, stored = (
            read_vectors([each[side] for each in writes], self.width, place, "writes") for side in (0, 1)
        )
        asked = read_vectors(queries, self.width, place, "queries")
        if not bool((asked[0, :, None] == keys[0]).all(-1).any(-1).all()):
            problem, expected = "a query is not the key of a write", "keys that occur in writes"
            raise DataError(message(place, problem, expected=expected))
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
    input_size = 1
    target_size = 1

    def __post_init__(self) -> None:
        self.ranges = {"length": self.length}
        self.longer = ({"length": 2 * self.length[1]},)

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
            raise invalid(place, "bits", text, f"a text of {self.order:,} to {LARGEST_SIZE:,} bits")
        return self.laid_out(torch.tensor([read_bits(text, len(text), place, "bits")])), {"length": len(text)}


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
