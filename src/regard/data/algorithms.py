"""Algorithmic tasks: copy, reverse or sort a sequence of symbols, as a quick test of a model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.data.batch import EOS, Batch
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["TASKS", "algorithm_batch"]

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
