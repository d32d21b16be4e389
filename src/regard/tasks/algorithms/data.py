"""The data of an algorithms run: generated batches, which depend on the random seed and the batch number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from regard.data.batch import TapeBatch
from regard.data.line_io import Lines, place_name
from regard.data.tape_tasks import Sizes, TapeTask
from regard.errors import DataError, message, printable
from regard.files.untrusted import parse_json
from regard.tasks.algorithms.settings import AlgorithmsData

SIZES_SEED, VALIDATION_SEED = 1, 2
"""The first argument of generator_of(): SIZES_SEED for the sizes of training batches, VALIDATION_SEED for
validation sequences. So the two use different random numbers."""

MIXED = 16
"""Number of batches that SequenceSource.mixed() returns. Each batch has random sizes, as in training."""


@dataclass(frozen=True, eq=False)
class SequenceSource:
    """Generates the training and validation sequences of an algorithmic task, such as copy.

    All sequences of a training batch have the same sizes, such as the length. The sizes depend only on the
    number of the batch, not on the seed. The bits of the sequences also depend on the seed of the run.

    data: settings: the task, and the smallest and largest sizes of its sequences.
    """

    data: AlgorithmsData

    @cached_property
    def task(self) -> TapeTask:
        return self.data.task()

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of the settings from which sequences are generated.

        When a run is resumed, the hash shows whether these settings have changed.
        """
        text = json.dumps(self.data.model_dump(), sort_keys=True)
        return {"generated": hashlib.sha256(text.encode()).hexdigest()}

    @property
    def notes(self) -> tuple[str, ...]:
        """One message for the log: the task, the range of the sequence sizes, and the vector sizes."""
        sizes = ", ".join(
            f"{name} {low}" if low == high else f"{name} {low} to {high}"
            for name, (low, high) in self.task.ranges.items()
        )
        vectors = f"vectors of {self.task.input_size} inputs and {self.task.target_size} answers"
        return (f"generated sequences of the task {self.task.name}: {sizes}; {vectors}",)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of inputs and of answers of a step."""
        return self.task.input_size, self.task.target_size

    def batch_sizes(self, number: int) -> Sizes:
        """Return the sizes of the sequences of a training batch, for example {"length": 12}.

        number: the number of the batch, counted from the start of the run.
        """
        return self.task.sizes(generator_of(SIZES_SEED, number))

    def batch(self, seed: int, number: int, count: int, rank: int = 0) -> TapeBatch:
        """Return a training batch of `count` sequences, all of the same sizes.

        seed: the random seed of the run.
        number: the number of the batch, counted from the start of the run.
        rank: the index of the training process. Each process gets different sequences.
        """
        return self.task.draw(count, self.batch_sizes(number), generator_of(seed, number, rank))

    def mixed(self, count: int) -> list[TapeBatch]:
        """Return `count` validation sequences whose sizes are random, as in training.

        Each batch of the result contains sequences of the same sizes.
        """
        drawn = [self.task.sizes(generator_of(VALIDATION_SEED, part)) for part in range(MIXED)]
        shares = [count * (part + 1) // MIXED - count * part // MIXED for part in range(MIXED)]
        return [
            self.task.draw(share, sizes, generator_of(VALIDATION_SEED, part, 1))
            for part, (sizes, share) in enumerate(zip(drawn, shares, strict=True))
            if share
        ]

    def fixed(self, count: int, sizes: Sizes) -> TapeBatch:
        """Return a batch of `count` validation sequences of the given sizes, for example {"length": 40}."""
        numbers = sizes.values()
        return self.task.draw(count, sizes, generator_of(VALIDATION_SEED, 0, *numbers))


def generator_of(*numbers: int) -> torch.Generator:
    """Return a random number generator whose seed is a hash of the given numbers."""
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def named_sizes(sizes: Sizes) -> str:
    """Return the sizes of a sequence as text.

    >>> named_sizes({"length": 10, "repeats": 20})
    'length 10, repeats 20'
    """
    return ", ".join(f"{name} {value:,}" for name, value in sizes.items())


def read_sequence(text: str, place: str) -> dict[str, Any]:
    """Return the fields of a sequence that is written as a JSON object.

    Raises DataError if the text is not a JSON object.

    text: the JSON text.
    place: where the text is from, for example "line 1", for error messages.

    >>> read_sequence('{"vectors": ["101"]}', "line 1")
    {'vectors': ['101']}
    """
    try:
        value = parse_json(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        problem = f"this is not JSON: {printable(str(error))[:200]}"
        raise DataError(message(place, problem, expected="a JSON object")) from None
    if not isinstance(value, dict):
        problem = f"this is a JSON {type(value).__name__}, not an object"
        raise DataError(message(place, problem, expected='a JSON object, such as {"vectors": [...]}'))
    return value


def sequences_in(lines: Lines) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a pair (place, fields) for each line that is not blank.

    place: the file and the line as text. For values of an option, it is the option; if there are several
        values, with the number of the value.
    fields: the JSON object of the line, for example {"vectors": ["101"]}.
    """
    for number, place in enumerate(lines.places, 1):
        part = Lines([place], option=lines.option, encoding=lines.encoding)
        name = place_name(place, lines.option)
        for text in part:
            if text.strip():
                where = f"{name}, line {part.read}"
                if isinstance(place, bytes):
                    where = name if len(lines.places) == 1 else f"{name}, value {number}"
                yield where, read_sequence(text, where)
