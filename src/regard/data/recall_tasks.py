"""Tasks that look something up: associative recall, overwrite and dynamic n-grams (Graves et al. 2014)."""

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
    read_bits,
    read_count,
    read_fields,
    read_vectors,
)
from regard.errors import ArgumentError, DataError, message, printable

__all__ = ["AssociativeRecall", "DynamicNGrams", "Overwrite"]


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
        self.ranges = {"length": self.length}
        self.longer = ({"length": 2 * self.length[1]}, {"length": 3 * self.length[1]})

    @property
    def input_size(self) -> int:
        return self.width + 2

    @property
    def target_size(self) -> int:
        return self.width

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

    def given(self, fields: Mapping[str, Any], place: str) -> tuple[TapeBatch, Sizes]:
        items, query = read_fields(fields, self.fields, place)
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
        self.ranges, longer = {"length": self.length}, {"length": 2 * self.length[1]}
        if self.changes is not None:
            self.ranges["changes"] = self.changes
            longer["changes"] = 2 * self.changes[1]
        self.longer = (longer,)

    @property
    def input_size(self) -> int:
        return 2 * self.width + 2

    @property
    def target_size(self) -> int:
        return self.width

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

    def given(self, fields: Mapping[str, Any], place: str) -> tuple[TapeBatch, Sizes]:
        writes, queries = read_fields(fields, self.fields, place)
        if (
            not isinstance(writes, list)
            or not writes
            or any(not isinstance(each, list) or len(each) != 2 for each in writes)
        ):
            expected = 'a list of pairs of a key and a value, such as [["010111", "110001"]]'
            raise DataError(message(place, "writes is not a list of pairs", expected=expected))
        keys, values = (
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
        return self.laid_out(keys, values, asked), sizes


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

    def given(self, fields: Mapping[str, Any], place: str) -> tuple[TapeBatch, Sizes]:
        (text,) = read_fields(fields, self.fields, place)
        if not isinstance(text, str | list) or not self.order <= len(text) <= LARGEST_SIZE:
            problem = f"bits is {printable(str(text))[:80]!r}"
            raise DataError(
                message(place, problem, expected=f"a text of {self.order:,} to {LARGEST_SIZE:,} bits")
            )
        values = read_bits(text, len(text), place, "bits")
        return self.laid_out(torch.tensor([values])), {"length": len(values)}
