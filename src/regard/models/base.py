"""The interface of all encoder-decoder models: encode, start, step, forward.

    encode(source, lengths) -> Encoded             encode the source, once
    start(encoded) -> State                        return the decoder state before the first token
    step(state, tokens, encoded) -> State, logits  read the next n tokens of each row (one, several or all)
    forward(batch) -> logits                       read all tokens at once (teacher forcing)

A model whose logits come from a linear layer implements features() and output_layer() instead of step(). Then
training computes the loss without a tensor of all logits.

Search, scoring and recording use only this interface. Modules store nothing between calls. A state may have K
rows for each encoded source, as in beam search. Then row r of the state attends to source r // K, and the K
rows share the memory of the source without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import PAD, Batch, BatchRows
from regard.layers.source_attention import attend
from regard.memory import Memory

__all__ = ["Encoded", "Model", "State", "attend", "words"]


@dataclass(frozen=True, eq=False)
class Encoded(BatchRows):
    """An encoded batch of sources.

    lengths: source lengths, (B,).
    memories: one Memory for each cross-attention layer, with B sequences each.
    first: the initial recurrent state of the decoder, as tensors (B, ...); empty for a Transformer.

    >>> import regard, torch
    >>> encoded = Encoded(torch.tensor([3, 2]), (regard.prepare(torch.randn(2, 3, 4)),))
    >>> encoded.select(torch.tensor([1])).memories[0].key.shape  # only the second source
    torch.Size([1, 3, 4])
    """

    lengths: Tensor
    memories: tuple[Memory, ...] = ()
    first: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, eq=False)
class State(BatchRows):
    """The decoder state. step() takes a state and returns the next one; no module stores a state.

    position: number of tokens read so far.
    hidden: recurrent state, tensors of shape (rows, ...). Each row is one target sequence.
    past: self-attention cache (keys and values), one Memory per decoder layer.

    >>> import torch
    >>> state = State(hidden=(torch.tensor([[1.0], [2.0]]),))
    >>> state.select(torch.tensor([1, 1, 0])).hidden[0].flatten()  # row 1 twice, then row 0
    tensor([2., 2., 1.])
    """

    position: int = 0
    hidden: tuple[Tensor, ...] = ()
    past: tuple[Memory, ...] = ()


class Model(nn.Module):
    """Base class of encoder-decoder models; subclasses implement encode() and step().

    Instead of step(), a subclass can implement features() and output_layer(). If the initial state is more
    than Encoded.first, it also implements start().

    source_size, target_size: vocabulary sizes.
    source, target: the tables of the token embeddings. A language model has the attribute `embedding`
        instead.
    longest_source, longest_target: maximum number of tokens including EOS. None: no limit.
    int8_steps: whether searches on a CPU use int8 weights, see load(precision="int8").
    steps_use_position: whether the result of step() depends on State.position, or the state has `past`. If
        not, a search runs on preallocated tensors.
    """

    source_size: int
    target_size: int
    source: nn.Embedding
    target: nn.Embedding
    longest_source: int | None = None
    longest_target: int | None = None
    int8_steps: bool = False
    steps_use_position: bool = True

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode a batch of sources.

        source: (B, S), token ids, padded at the end.
        lengths: (B,), number of tokens of each source.
        """
        raise TypeError(f"{type(self).__name__} does not implement encode()")

    def start(self, encoded: Encoded) -> State:
        """Return the decoder state before the first target token, with one row for each source."""
        return State(hidden=encoded.first)

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        """Let the decoder read the next n tokens; return the state after them and the logits (rows, n, V).

        state: the decoder state before these tokens. It has one or more rows for each source.
        tokens: (rows, n), the token ids, for each row of the state.
        """
        after, features = self.features(state, tokens, encoded)
        return after, self.output_layer()(features)

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        """Like step(), but return the input of output_layer(), (rows, n, M), instead of the logits."""
        raise TypeError(f"{type(self).__name__} does not implement step(), or features()")

    def output_layer(self) -> Any:
        """Return the layer that computes the logits from features(); None if there is no such layer."""
        return None

    def first_step(self, batch: Batch) -> tuple[State, Tensor, Encoded]:
        """Return the arguments of step() with which it reads all target tokens at once (teacher forcing)."""
        encoded = self.encode(batch.source, batch.source_lengths)
        return self.start(encoded), batch.inputs, encoded

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits (B, T, V) of all target positions (teacher forcing)."""
        return self.step(*self.first_step(batch))[1]


def words(size: int, width: int, deviation: float = 1.0) -> nn.Embedding:
    """Create an embedding table (size, width). The embedding of PAD is 0.

    deviation: standard deviation of the normal distribution from which the other embeddings are sampled.
    """
    table = nn.Embedding(size, width, padding_idx=PAD)
    with torch.no_grad():
        table.weight.normal_(std=deviation)[PAD] = 0
    return table
