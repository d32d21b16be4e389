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

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.attention import attention
from regard.data.batch import PAD, Batch
from regard.data.batch_rows import BatchRows
from regard.errors import ArgumentError, message
from regard.memory import Memory

__all__ = ["Encoded", "Model", "State", "all_modules", "attend", "in_eval_mode", "words"]

_eval_modes: dict[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = {}
"""The models for which in_eval_mode() is active. The values are the number of open `with` blocks of the
model, and the earlier mode (training or eval) of each of its modules."""

_eval_lock = threading.Lock()


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

    def reorder(self, index: Tensor) -> Encoded:
        """Alias of select(), for code written for earlier versions: select sources by index (B',)."""
        return self.select(index)


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

    def reorder(self, index: Tensor) -> State:
        """Alias of select(), for code written for earlier versions: select rows by index (rows',)."""
        return self.select(index)


class Model(nn.Module):
    """Base class of encoder-decoder models; subclasses implement encode, start and step.

    Instead of step(), a subclass can implement features() and output_layer().

    source_size, target_size: vocabulary sizes.
    source, target: the tables of the token embeddings. A language model has the attribute `embedding`
        instead.
    longest_source, longest_target: maximum number of tokens including EOS. None: no limit.
    small_steps: whether the model launches small kernels for each token, as recurrent models do. In training
        on CUDA, batches are then padded to fewer lengths, because a CUDA graph is captured for each.
    auto_precision: the precision of training with training.precision = "auto" on GPUs that support bfloat16:
        "tf32" for models that were faster in it and trained as well, otherwise "bfloat16".
    steps_use_position: whether the result of step() depends on State.position, or the state has `past`. If
        False, the search runs on preallocated tensors (see regard.fast.search).
    int8_steps: whether beam search and greedy search on a CPU compute the matrix products of the decoder with
        int8 weights. Only for models with their own decoder in regard.fast.search.
    """

    source_size: int
    target_size: int
    source: nn.Embedding
    target: nn.Embedding
    longest_source: int | None = None
    longest_target: int | None = None
    small_steps: bool = False
    auto_precision: str = "bfloat16"
    steps_use_position: bool = True
    int8_steps: bool = False

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode a batch of sources.

        source: (B, S), token ids, padded at the end.
        lengths: (B,), number of tokens of each source.
        """
        raise TypeError(f"{type(self).__name__} does not implement encode()")

    def start(self, encoded: Encoded) -> State:
        """Return the decoder state before the first target token, with one row for each source."""
        raise TypeError(f"{type(self).__name__} does not implement start()")

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        """Let the decoder read the next n tokens; return the state after them and the logits (rows, n, V).

        state: the decoder state before these tokens. It has one or more rows for each source.
        tokens: (rows, n), the token ids, for each row of the state.
        """
        layer = self.output_layer()
        if layer is None:
            raise TypeError(f"{type(self).__name__} does not implement step()")
        after, features = self.features(state, tokens, encoded)
        return after, layer(features)

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        """Like step(), but return the input of output_layer(), (rows, n, M), instead of the logits."""
        raise TypeError(f"{type(self).__name__} does not implement features()")

    def output_layer(self) -> nn.Module | None:
        """Return the layer that computes the logits from features(); None if there is no such layer."""
        return None

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits (B, T, V) of all target positions (teacher forcing)."""
        encoded = self.encode(batch.source, batch.source_lengths)
        return self.step(self.start(encoded), batch.inputs, encoded)[1]

    def batch_features(self, batch: Batch) -> Tensor:
        """Like forward(), but return the input of output_layer(), (B, T, M), instead of the logits."""
        encoded = self.encode(batch.source, batch.source_lengths)
        return self.features(self.start(encoded), batch.inputs, encoded)[1]

    @classmethod
    @functools.cache
    def separates_output(cls) -> bool:
        """Whether output_layer() after batch_features() computes the same as forward().

        It is False for a class that overrides only forward() or step() of a class with features().
        """

        def owner(name: str) -> type:
            return next(each for each in cls.__mro__ if name in vars(each))

        pairs = (("features", "step"), ("batch_features", "forward"))
        same = all(issubclass(owner(mine), owner(theirs)) for mine, theirs in pairs)
        return same and owner("output_layer") is not Model


def attend(query: Tensor, memory: Memory, **options: Any) -> Attended:
    """Attend from K beams of each source to the memory of this source, without copying the memory.

    query: (B K, n, D). Row r attends to sequence r // K of the memory.
    memory: keys and values of B sequences.
    options: other arguments of attention(). `start` is the position of the first of the n queries.

    Returns an Attended with output (B K, n, E). The K beams of a source become K n queries of one attention()
    call. So the weights that record() returns have shape (B, K n, S).
    """
    rows, tokens, width = query.shape
    batch = memory.key.shape[0]
    if rows % max(batch, 1):
        raise ArgumentError(
            message(
                "step()",
                f"the state has {rows} rows, but {batch} sources are encoded",
                expected="a multiple of the number of sources",
            )
        )
    beams = rows // max(batch, 1) or 1
    attended = attention(query.reshape(batch, -1, width), memory, beams=beams, **options)
    return attended.but(output=attended.output.reshape(rows, tokens, -1))


def words(size: int, width: int, deviation: float = 1.0) -> nn.Embedding:
    """Create an embedding table (size, width). The embedding of PAD is 0.

    deviation: standard deviation of the normal distribution from which the other embeddings are sampled.
    """
    table = nn.Embedding(size, width, padding_idx=PAD)
    with torch.no_grad():
        table.weight.normal_(std=deviation)[PAD] = 0
    return table


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return a model and all its submodules. Faster than model.modules(), which also computes names."""
    found: list[nn.Module | None] = [model]
    for module in found:  # the list grows while it is read
        if module is not None:
            children = module.__dict__["_modules"]
            if children:
                found.extend(children.values())
    return [each for each in dict.fromkeys(found) if each is not None]


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Context manager that puts a model in eval mode. At the end, each module gets its previous mode back.

    Several threads can be inside the context manager for the same model. Then the last thread that leaves it
    restores the modes.
    """
    with _eval_lock:
        changes = model in _eval_modes or any(each.training for each in all_modules(model))
        if changes:
            users, modes = _eval_modes.get(model, (0, [(each, each.training) for each in model.modules()]))
            _eval_modes[model] = users + 1, modes
            model.eval()
    if not changes:  # the frequent case, in which nothing has to be restored
        yield
        return
    try:
        yield
    finally:
        with _eval_lock:
            users, modes = _eval_modes.pop(model)
            if users > 1:
                _eval_modes[model] = users - 1, modes
            else:
                for module, training in modes:
                    module.training = training
