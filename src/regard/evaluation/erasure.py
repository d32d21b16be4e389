"""Erasure: compute the log-probability of a target word after some source words are removed.

There are two ways to remove a source word:

hidden   its keys are masked in the cross-attention of the target word; information about the word that the
         encoder has passed to other positions remains
unknown  its tokens are replaced by UNK before the encoder, so that no information about it remains

One such computation is a Trial. Many trials are computed in one batch.
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
from regard.models.base import Model, in_eval_mode
from regard.roles import CROSS
from regard.sites import scope

__all__ = ["Pair", "Trial", "saliencies", "word_scores"]

CELLS, LOGITS = 2**16, 2**22
"""Maximum number of attention scores (target tokens times source tokens), and of logits, in a batch."""

_cudnn_lock = threading.Lock()


@dataclass(frozen=True)
class Pair:
    """The token ids of a source and of a target sentence, each ending in EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """One evaluation of a target word with some source tokens removed.

    pair: the index of the sentence pair.
    rows: the positions of the tokens of the target word.
    hidden: the positions of the source tokens whose keys are masked.
    unknown: the positions of the source tokens that are replaced by UNK.
    """

    pair: int
    rows: tuple[int, ...]
    hidden: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """The number of target tokens up to the end of the word; the model does not need later tokens."""
        return max(self.rows) + 1


def word_scores(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> NDArray[numpy.float64]:
    """Return the log-probability of the target word of each trial, with shape (trials,)."""
    log_probabilities = numpy.zeros(len(trials))
    with in_eval_mode(model), torch.no_grad():
        for indices in _batches(model, pairs, trials):
            chosen = [trials[index] for index in indices]
            batch, hidden_BTS = _collated(model, pairs, chosen)
            with scope(edit=_HideKeys(hidden_BTS), at=CROSS):
                scores_BT = _token_scores(model, batch)
            word_scores_B = torch.where(_word_rows(chosen, scores_BT), scores_BT, 0.0).sum(-1)
            log_probabilities[indices] = word_scores_B.double().cpu().numpy()
    return log_probabilities


def saliencies(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> list[NDArray[numpy.float64]]:
    """Return |gradient x input| of each source token, as an array of shape (S,) for each trial.

    This is the gradient of the log-probability of the target word with respect to the embedding of a source
    token, multiplied by the embedding, summed over the width, as an absolute value. To first order, it is the
    change of the log-probability if the embedding were 0.
    """
    table = getattr(model, "source", None)
    if not isinstance(table, nn.Embedding):
        problem = f"{type(model).__name__} has no source embedding"
        raise ArgumentError(message("saliencies()", problem, expected="an nn.Embedding as model.source"))
    by_trial: dict[int, NDArray[numpy.float64]] = {}
    for indices in _batches(model, pairs, trials):
        chosen = [trials[index] for index in indices]
        batch, _ = _collated(model, pairs, chosen)
        with (
            in_eval_mode(model),
            torch.enable_grad(),
            _embedding_leaf(table) as embedded,
            _without_cudnn(batch.source.device),
        ):
            scores_BT = _token_scores(model, batch)
            total = torch.where(_word_rows(chosen, scores_BT), scores_BT, 0.0).sum()
            (gradient_BSM,) = torch.autograd.grad(total, embedded[0])
        product_BS = (gradient_BSM * embedded[0].detach()).sum(-1).abs().double().cpu().numpy()
        for row, index in enumerate(indices):
            by_trial[index] = product_BS[row, : len(pairs[trials[index].pair].source)]
    return [by_trial[index] for index in range(len(trials))]


class _HideKeys:
    """An `edit` function for scope(): masks keys in an attention call. hidden_BTS: True where masked."""

    def __init__(self, hidden_BTS: Tensor):
        self.visible_BTS = ~hidden_BTS
        self.any = bool(hidden_BTS.any())

    def __call__(self, call: Call) -> Call:
        if not self.any:
            return call
        rows_BTS = self.visible_BTS.index_select(1, call.positions)
        return replace(call, mask=call.mask & Mask(table=rows_BTS[:, None]))


def _token_scores(model: Model, batch: Batch) -> Tensor:
    """Return the log-probability of each target token, (B, T)."""
    logits_BTV = model.forward(batch).float()
    return logits_BTV.gather(-1, batch.labels[..., None])[..., 0] - logits_BTV.logsumexp(-1)


def _word_rows(trials: Sequence[Trial], like_BT: Tensor) -> Tensor:
    """Return a bool tensor (B, T), True at the tokens of the target word of each trial."""
    rows_BT = torch.zeros(like_BT.shape, dtype=torch.bool)
    for row, trial in enumerate(trials):
        rows_BT[row, list(trial.rows)] = True
    return rows_BT.to(like_BT.device)


def _collated(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> tuple[Batch, Tensor]:
    """Return a batch with a row for each trial, and a bool tensor (B, T, S), True where a key is hidden.

    Each target is cut after the last token of the target word.
    """
    sources, targets = [], []
    for trial in trials:
        pair = pairs[trial.pair]
        unknown = set(trial.unknown)
        sources.append([UNK if place in unknown else token for place, token in enumerate(pair.source)])
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
    """Yield batches of trial indices, largest trials first, so that trials of similar size share a batch."""

    def size(index: int) -> tuple[int, int]:
        return trials[index].length, len(pairs[trials[index].pair].source)

    indices: list[int] = []
    widest = 0
    for index in sorted(range(len(trials)), key=size, reverse=True):
        widest = max(widest, size(index)[1])
        rows = size(indices[0] if indices else index)[0] * (len(indices) + 1)
        if indices and (rows * widest > CELLS or rows * model.target_size > LOGITS):
            yield indices
            indices, widest = [], size(index)[1]
        indices.append(index)
    if indices:
        yield indices


@contextmanager
def _without_cudnn(device: torch.device) -> Iterator[None]:
    """Disable cuDNN on CUDA, because cuDNN has no backward pass for recurrent layers in eval mode.

    The setting applies to the whole process, so a lock lets only one thread change it at a time.
    """
    if device.type != "cuda":
        yield
        return
    with _cudnn_lock, torch.backends.cudnn.flags(enabled=False):
        yield


@contextmanager
def _embedding_leaf(table: nn.Embedding) -> Iterator[list[Tensor]]:
    """Make the source embeddings of the next forward pass a leaf tensor that requires grad.

    The source embeddings are the first output of `table` in this thread. After the forward pass, the yielded
    list contains the leaf.
    """
    leaves: list[Tensor] = []
    thread = threading.get_ident()

    def detach_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if leaves or threading.get_ident() != thread:
            return output
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    handle = table.register_forward_hook(detach_output)
    try:
        yield leaves
    finally:
        handle.remove()


def ended(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens with EOS appended."""
    return (*tokens, EOS)
