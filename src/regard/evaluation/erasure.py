"""Erasing: what a model thinks of a target word when some of the source is taken away, many trials at once.

There are two ways to take a source word away. Hidden, its key is masked at the cross sites while the target
word is said; what the encoder carried of it into its neighbours stays. Unknown, its token is UNK from the
start, and nothing of it is left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.call import Call
from regard.data.batch import BOS, EOS, UNK, Batch
from regard.errors import ArgumentError, message
from regard.masks.mask import Mask
from regard.models.base import Model
from regard.models.eval_mode import in_eval_mode
from regard.sites import scope

__all__ = ["CROSS", "Pair", "Trial", "saliencies", "word_scores"]

CROSS = "*cross"
"""The sites at which a decoder looks at its source."""

CELLS, LOGITS = 2**16, 2**22
"""How many pairs of a row and a key, and how many logits, a batch of trials may have."""

_cudnn_lock = threading.Lock()


@dataclass(frozen=True)
class Pair:
    """A source and a target as tokens, EOS at the end of both."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """A target word, by the rows of its tokens, said without some tokens of the source.

    pair: its number. hidden, unknown: places in the source.
    """

    pair: int
    rows: tuple[int, ...]
    hidden: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """How many rows of the target must be read."""
        return max(self.rows) + 1


def word_scores(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> NDArray[numpy.float64]:
    """The log-probability of the target word of each trial, (trials,)."""
    found = numpy.zeros(len(trials))
    with in_eval_mode(model), torch.no_grad():
        for some in _batches(model, pairs, trials):
            batch, hidden_BTS = _collated(model, pairs, [trials[each] for each in some])
            with scope(edit=_Hiding(hidden_BTS), at=CROSS):
                scores_BT = _scores(model, batch)
            rows_BT = _rows([trials[each] for each in some], scores_BT)
            found[some] = torch.where(rows_BT, scores_BT, 0.0).sum(-1).double().cpu().numpy()
    return found


def saliencies(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> list[NDArray[numpy.float64]]:
    """How much each source token matters to the word of each trial: |gradient x input|, (S,) each.

    The gradient of the log-probability by the embedding of a token, times that embedding, summed over its
    width: the change to first order if the embedding were 0.
    """
    table = getattr(model, "source", None)
    if not isinstance(table, nn.Embedding):
        problem = f"{type(model).__name__} has no embeddings of its source to take gradients by"
        raise ArgumentError(message("saliencies()", problem, expected="an nn.Embedding as model.source"))
    found: dict[int, NDArray[numpy.float64]] = {}
    for some in _batches(model, pairs, trials):
        chosen = [trials[each] for each in some]
        batch, _ = _collated(model, pairs, chosen)
        with (
            in_eval_mode(model),
            torch.enable_grad(),
            _leaf(table) as embedded,
            _without_cudnn(batch.source.device),
        ):
            scores_BT = _scores(model, batch)
            total = torch.where(_rows(chosen, scores_BT), scores_BT, 0.0).sum()
            (gradient_BSM,) = torch.autograd.grad(total, embedded[0])
        product_BS = (gradient_BSM * embedded[0].detach()).sum(-1).abs().double().cpu().numpy()
        for row, each in enumerate(some):
            found[each] = product_BS[row, : len(pairs[trials[each].pair].source)]
    return [found[each] for each in range(len(trials))]


class _Hiding:
    """The edit that hides, from each row of each sequence, what its trial hides."""

    def __init__(self, hidden_BTS: Tensor):
        self.seen_BTS = ~hidden_BTS
        self.any = bool(hidden_BTS.any())

    def __call__(self, call: Call) -> Call:
        if not self.any:
            return call
        rows_BTS = self.seen_BTS.index_select(1, call.positions)
        return replace(call, mask=call.mask & Mask(table=rows_BTS[:, None]))


def _scores(model: Model, batch: Batch) -> Tensor:
    """The log-probability of each token of the targets, (B, T)."""
    logits_BTV = model.forward(batch).float()
    return logits_BTV.gather(-1, batch.labels[..., None])[..., 0] - logits_BTV.logsumexp(-1)


def _rows(trials: Sequence[Trial], like_BT: Tensor) -> Tensor:
    """Which rows belong to the word of each trial, (B, T)."""
    rows_BT = torch.zeros(like_BT.shape, dtype=torch.bool)
    for row, trial in enumerate(trials):
        rows_BT[row, list(trial.rows)] = True
    return rows_BT.to(like_BT.device)


def _collated(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> tuple[Batch, Tensor]:
    """The trials as a batch, targets no longer than they must be; and what is hidden, (B, T, S)."""
    sources, targets = [], []
    for trial in trials:
        pair = pairs[trial.pair]
        gone = set(trial.unknown)
        sources.append([UNK if place in gone else token for place, token in enumerate(pair.source)])
        targets.append([BOS, *pair.target[: trial.length]])
    device = next(model.parameters()).device
    batch = Batch(
        _padded(sources),
        torch.tensor([len(each) for each in sources]),
        _padded(targets),
        torch.tensor([len(each) - 1 for each in targets]),
        torch.arange(len(trials)),
    ).to(device)
    hidden_BTS = torch.zeros(*batch.labels.shape, batch.source.shape[1], dtype=torch.bool)
    for row, trial in enumerate(trials):
        if trial.hidden:
            hidden_BTS[row, torch.tensor(trial.rows)[:, None], torch.tensor(trial.hidden)] = True
    return batch, hidden_BTS.to(device)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True)  # PAD is 0


def _batches(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> Iterator[list[int]]:
    """The numbers of trials that are run together: those of like size, the largest first."""

    def size(number: int) -> tuple[int, int]:
        return trials[number].length, len(pairs[trials[number].pair].source)

    some: list[int] = []
    widest = 0
    for number in sorted(range(len(trials)), key=size, reverse=True):
        widest = max(widest, size(number)[1])
        rows = size(some[0] if some else number)[0] * (len(some) + 1)
        if some and (rows * widest > CELLS or rows * model.target_size > LOGITS):
            yield some
            some, widest = [], size(number)[1]
        some.append(number)
    if some:
        yield some


@contextmanager
def _without_cudnn(device: torch.device) -> Iterator[None]:
    """Turn cuDNN off: it has no backward pass for recurrent layers in eval mode.

    The setting belongs to the process, so one thread at a time changes it.
    """
    if device.type != "cuda":
        yield
        return
    with _cudnn_lock, torch.backends.cudnn.flags(enabled=False):
        yield


@contextmanager
def _leaf(table: nn.Embedding) -> Iterator[list[Tensor]]:
    """Make the first output of the table in this thread, the embedded source, a leaf to take gradients by."""
    given: list[Tensor] = []
    thread = threading.get_ident()

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if given or threading.get_ident() != thread:
            return output
        given.append(output.detach().requires_grad_())
        return given[0]

    handle = table.register_forward_hook(keep)
    try:
        yield given
    finally:
        handle.remove()


def ended(tokens: Sequence[int]) -> tuple[int, ...]:
    """Tokens with EOS after them."""
    return (*tokens, EOS)
