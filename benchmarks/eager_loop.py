"""Random batches and losses for benchmarks/recurrent.py: Bahdanau's model in Regard and in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.data.batch import EOS, PAD, Batch
from regard.layers.recurrent import Hidden, Recurrent
from regard.models.bahdanau import Bahdanau
from regard.training.losses import cross_entropy
from regard.training.task import Evaluation, Loss, Task

__all__ = ["EMBEDDING", "ROWS", "WIDTH", "WORDS", "Learned", "batch_of", "eager_loss", "our_loss", "packed"]

WORDS, WIDTH, EMBEDDING, ROWS, SMOOTHING = 30_000, 1000, 620, 80, 0.1


def batch_of(length: int, seed: int, ragged: bool = False) -> Batch:
    """Return a batch of 80 random pairs of this length, EOS included; ragged: of random lengths up to it."""
    source = torch.Generator().manual_seed(seed)
    lengths = torch.full((2, ROWS), length - 1)
    if ragged:
        lengths = torch.randint(0, length, (2, ROWS), generator=source)
    rows = [
        [torch.randint(EOS + 1, WORDS, (size,), generator=source).tolist() for size in side.tolist()]
        for side in lengths
    ]
    return Batch.collate(*rows)


class Learned(Task):
    """A training task with a model and a loss, without data."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], tuple[Tensor, Tensor]]):
        self.model, self._loss = model, loss

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return iter(())

    def len_epoch(self, epoch: int) -> int:
        return 1

    def count(self, batch: Batch) -> int:
        return int(batch.target_lengths.sum())

    def loss(self, batch: Batch) -> Loss:
        total, plain = self._loss(batch)
        return Loss(total, {"loss": plain})

    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        return Evaluation({})


def eager_loss(model: Bahdanau, one_length: bool = False) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """Return the loss in plain PyTorch with the weights of the model: a Python loop over the target steps.

    one_length: whether all sentences have the same length, so that the lengths need not be read. Reading them
        on the host cannot be captured in a CUDA graph.
    """
    gru, cell, score, width = model.encoder.layers.layers, model.cell, model.score, model.width

    def encoded(embedded: Tensor, lengths: Tensor) -> Tensor:
        if one_length or embedded.shape[1] * len(lengths) == int(lengths.sum()):
            return gru(embedded)[0]
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=embedded.shape[1])[0]

    def loss(batch: Batch) -> tuple[Tensor, Tensor]:
        states = encoded(model.source(batch.source), batch.source_lengths)
        padding = torch.arange(states.shape[1], device=states.device) >= batch.source_lengths[:, None]
        keys = states @ score.key_weight
        state = torch.tanh(model.first(states[:, 0, width:]))
        embedded = model.target(batch.inputs)
        taken = cell.input(embedded)
        read = []
        for t in range(embedded.shape[1]):
            query = state @ score.query_weight
            scores = (torch.tanh(query[:, None] + keys) @ score.vector).masked_fill(padding, -torch.inf)
            context = (torch.softmax(scores, -1)[:, None].to(states.dtype) @ states)[:, 0]
            gates = taken[:, t] + cell.context(context)
            take, reset = torch.sigmoid(gates[:, : 2 * width] + cell.gate(state)).chunk(2, -1)
            new = torch.tanh(gates[:, 2 * width :] + cell.state(reset * state))
            state = (1 - take) * state + take * new
            read.append(torch.cat((state, context), -1))
        read_all = torch.cat((torch.stack(read, 1), embedded.to(state.dtype)), -1)
        pairs = model.readout.pairs(read_all).unflatten(-1, (-1, 2))
        logits = model.readout.output(pairs.amax(-1)).flatten(0, 1)
        labels = batch.labels.flatten()
        options: dict[str, Any] = {"ignore_index": PAD, "reduction": "sum"}
        total = functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING, **options)
        return total, total.detach()

    return loss


def our_loss(model: Bahdanau) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """Return the loss of Regard's translation task."""
    return lambda batch: cross_entropy(model(batch), batch.labels, SMOOTHING)


def packed(layers: Recurrent, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
    """Run the encoder on packed sequences, as Regard did before; copying the lengths synchronises."""
    sequences = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    states, last = layers.layers(sequences)
    return pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0], (last.transpose(0, 1),)
