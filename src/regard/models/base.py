"""The protocol that every model which decodes shares: encode, start, step, forward.

    encode(source, lengths) -> Encoded             the source as memories, made ready once
    start(encoded) -> State                        before the first token
    step(state, tokens, encoded) -> State, logits  tokens (rows, n): one, a forced prefix, or all of them
    forward(batch) -> logits                       step over all tokens at once: teacher forcing

Decoding, scoring and looking are written once against it. Nothing is kept in a module between calls. A state
may have K rows for each row of what was encoded, as beams do: row r reads memory row r // K, which is never
copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.attention import attention
from regard.data.batch import PAD, Batch
from regard.errors import ArgumentError, message
from regard.memory import Memory

__all__ = ["Encoded", "Model", "State", "at_least_one", "attend", "words"]


@dataclass(frozen=True, eq=False)
class Encoded:
    """What a source became: one memory for each place that reads it, and what the decoder starts from.

    lengths: (B,), of the sources. memories: each with B sequences. first: tensors (B, ...) to start from.

    >>> import regard, torch
    >>> encoded = Encoded(torch.tensor([3, 2]), (regard.prepare(torch.randn(2, 3, 4)),))
    >>> encoded.reorder(torch.tensor([1])).memories[0].key.shape
    torch.Size([1, 3, 4])
    """

    lengths: Tensor
    memories: tuple[Memory, ...] = ()
    first: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    def reorder(self, index: Tensor) -> Encoded:
        """The same for other sequences, or for fewer. index: (B',)."""
        return Encoded(
            self.lengths.index_select(0, index),
            tuple(memory.reorder(index) for memory in self.memories),
            tuple(tensor.index_select(0, index) for tensor in self.first),
        )


@dataclass(frozen=True, eq=False)
class State:
    """Where a decoder stands: passed to step() and returned by it, never kept in a module.

    position: how many tokens each row has read. hidden: tensors (rows, ...), the recurrence. past: what a
    decoder that attends to itself has read, a Memory for each layer.

    >>> import torch
    >>> state = State(hidden=(torch.tensor([[1.0], [2.0]]),))
    >>> state.reorder(torch.tensor([1, 1, 0])).hidden[0].flatten()
    tensor([2., 2., 1.])
    """

    position: int = 0
    hidden: tuple[Tensor, ...] = ()
    past: tuple[Memory, ...] = ()

    def reorder(self, index: Tensor) -> State:
        """The same with its rows taken in another order, some often, some never. index: (rows',)."""
        return replace(
            self,
            hidden=tuple(tensor.index_select(0, index) for tensor in self.hidden),
            past=tuple(memory.reorder(index) for memory in self.past),
        )


class Model(nn.Module):
    """A model that reads a source and says a target, token by token; a subclass gives encode, start, step.

    source_size, target_size: how many tokens each vocabulary has. longest_source, longest_target: how many
    tokens it can read and say, EOS counted; None where there is no end to it. small_steps: whether it is made
    of many small steps, one a word, as recurrent models are.
    """

    source_size: int
    target_size: int
    longest_source: int | None = None
    longest_target: int | None = None
    small_steps: bool = False

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Read sources (B, S) of these lengths (B,)."""
        raise TypeError(f"{type(self).__name__} does not say how it encodes")

    def start(self, encoded: Encoded) -> State:
        """The state before the first token, one row for each source."""
        raise TypeError(f"{type(self).__name__} does not say how it starts")

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        """Read tokens (rows, n) after those before; gives the state after them and logits (rows, n, V)."""
        raise TypeError(f"{type(self).__name__} does not say how it steps")

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B, T, V) of each token of the target, given the source and the tokens before it."""
        encoded = self.encode(batch.source, batch.source_lengths)
        return self.step(self.start(encoded), batch.inputs, encoded)[1]


def attend(query: Tensor, memory: Memory, **options: Any) -> Attended:
    """Attend with K rows of queries for each row of the memory: query (B K, n, D) -> output (B K, n, E).

    Row r reads memory row r // K; beams stand side by side as queries, so that the memory is not copied.
    What is seen by record() keeps them so: (B, K n, S). options: those of attention(); start: the position of
    the first of the n.
    """
    rows, tokens, width = query.shape
    batch = memory.key.shape[0]
    if rows % max(batch, 1):
        raise ArgumentError(
            message(
                "step()",
                f"{rows} rows cannot share {batch} memories alike",
                expected="a multiple of as many rows as were encoded",
            )
        )
    beams = rows // max(batch, 1) or 1
    attended = attention(query.reshape(batch, -1, width), memory, beams=beams, **options)
    return attended.but(output=attended.output.reshape(rows, tokens, -1))


def at_least_one(tokens: Tensor) -> Tensor:
    """Tokens (rows, n) as they are; raises where n is 0, for a recurrence must take a step."""
    if not tokens.shape[1]:
        problem = "there are no tokens to read: the batch has no targets"
        hint = "Batch.collate(sources, targets); to translate without them, regard.decoding.search()"
        raise ArgumentError(message("step()", problem, hint=hint))
    return tokens


def words(size: int, width: int, deviation: float = 1.0) -> nn.Embedding:
    """A vector for each word of a vocabulary, drawn with this standard deviation, and 0 for padding."""
    table = nn.Embedding(size, width, padding_idx=PAD)
    with torch.no_grad():
        table.weight.normal_(std=deviation)[PAD] = 0
    return table
