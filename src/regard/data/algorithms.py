"""Algorithmic tasks: sequences of symbols to copy, reverse or sort, which a model that works soon learns."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.data.batch import EOS, Batch
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["TASKS", "algorithm_batch"]

FIRST = EOS + 1
"""The number of the first symbol, after the special tokens."""

TASKS: dict[str, Callable[[list[int]], list[int]]] = {
    "copy": list,
    "reverse": lambda symbols: symbols[::-1],
    "sort": sorted,
}
"""Every task by its name, as a function from a source to its target. To add one: one line."""


def algorithm_batch(
    name: str,
    count: int,
    length: int,
    symbols: int,
    generator: torch.Generator | None = None,
    *,
    shortest: int | None = None,
) -> Batch:
    """Draw a batch of sequences and what a task makes of them.

    name: a task in TASKS. count: the rows. length: the symbols of each; with `shortest`, a number drawn from
    shortest to length for each. symbols: how many kinds there are, numbered from 4 on, so that a model needs
    a vocabulary of symbols + 4. generator: on the CPU, torch's own unless given.

    >>> import torch
    >>> batch = algorithm_batch("reverse", 2, length=5, symbols=9, generator=torch.Generator().manual_seed(0))
    >>> batch.source.shape, batch.labels[:, :-1].equal(batch.source[:, :-1].flip(1))
    (torch.Size([2, 6]), True)
    """
    if name not in TASKS:
        raise UnknownName("task", name, TASKS)
    shortest = length if shortest is None else shortest
    if count < 1 or symbols < 1 or not 0 <= shortest <= length:
        problem = f"count is {count}, symbols {symbols}, and the lengths {shortest} to {length}"
        expected = "one row, one symbol, and lengths from 0 up, the shortest first"
        raise ArgumentError(message("algorithm_batch()", problem, expected=expected))
    drawn = torch.randint(FIRST, FIRST + symbols, (count, length), generator=generator).tolist()
    lengths = torch.randint(shortest, length + 1, (count,), generator=generator).tolist()
    sources = [row[:end] for row, end in zip(drawn, lengths, strict=True)]
    return Batch.collate(sources, [TASKS[name](source) for source in sources])
