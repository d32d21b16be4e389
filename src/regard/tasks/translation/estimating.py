"""Estimating: what a run would be, without training it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from regard.tasks.translation.corpus import Corpus
from regard.tasks.translation.running import build_from, settled
from regard.tasks.translation.settings import TranslationSettings
from regard.tasks.translation.task import TranslationTask
from regard.training.budget import total_steps
from regard.training.distributed import Processes

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True)
class Estimate:
    """What a run would be: its settings, data, size and memory.

    memory: bytes at the largest batch: weights, gradients, what the optimizer keeps, and activations.
    """

    settings: TranslationSettings
    said: tuple[str, ...]
    parameters: int
    vocabulary: tuple[int, int]
    epoch: int
    steps: int | None
    memory: int


def estimate(given: dict[str, Any], init_from: Path | None = None) -> Estimate:
    """Read the data, learn the tokenizers, and run the largest batch once; nothing of it is kept."""
    settings, split = settled(given, None, init_from, change=False)
    with TemporaryDirectory() as folder:
        corpus = Corpus.made(split, settings.data, Path(folder), Path(folder) / "cache")
        model = build_from(settings, corpus)
        task = TranslationTask(model, corpus, settings, Processes())
        parameters = sum(each.numel() for each in model.parameters())
        copies = 4 + bool(settings.training.ema)  # weights, gradients, two moments, and an average
        return Estimate(
            settings,
            split.said,
            parameters,
            (corpus.source.size, corpus.target.size),
            task.len_epoch(0),
            total_steps(settings.training, task.len_epoch(0)),
            4 * parameters * copies + _saved(task),
        )


def _saved(task: TranslationTask) -> int:
    """The bytes that the largest batch keeps between its forward and its backward pass."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    largest = max(task.batches(0), key=lambda batch: batch.source.numel() + batch.target.numel())
    task.model.train()
    weights = {each.untyped_storage().data_ptr() for each in task.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = task.loss(task.prepare(largest, "cpu"))
    del loss
    return sum(size for place, size in seen.items() if place not in weights)
