"""Estimating: what a run would be, without training it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from regard.data import load_tokenizer
from regard.data.inspection import Report
from regard.tasks.run_folder import check_data
from regard.tasks.translation.corpus import TOKENIZERS, Corpus
from regard.tasks.translation.running import build_from, ready_to_begin
from regard.tasks.translation.settings import TranslationSettings
from regard.tasks.translation.settling import settled
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
    said: tuple[str | Report, ...]
    parameters: int
    vocabulary: tuple[int, int]
    epoch: int
    steps: int | None
    memory: int


def estimate(
    given: Mapping[str, Any], folder: str | Path, *, resume: bool = False, change: bool = False
) -> Estimate:
    """Read the data, learn the tokenizers, and run the largest batch once; nothing of it is kept.

    given, folder, resume, change: as train_translation() takes them; what it would refuse is refused.
    """
    begun = ready_to_begin(Path(folder), resume, given)
    settings, split = settled(given, Path(folder) if begun else None, change=change)
    if begun and not change:
        check_data(Path(folder), split.fingerprints)
    with TemporaryDirectory() as scratch:
        tokens = folder if begun else settings.init_from
        if tokens is not None:
            for name in TOKENIZERS:
                load_tokenizer(Path(tokens) / name).save(Path(scratch) / name)
        corpus = Corpus.made(split, settings.data, Path(scratch), Path(scratch) / "cache")
        model = build_from(settings, corpus)
        task = TranslationTask(model, corpus, settings, Processes())
        parameters = sum(each.numel() for each in model.parameters())
        copies = 4 + bool(settings.training.ema)  # weights, gradients, two moments, and an average
        return Estimate(
            settings,
            (*split.said, *corpus.said),
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

    largest = task.largest_batch()
    task.model.train()
    weights = {each.untyped_storage().data_ptr() for each in task.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = task.loss(task.prepare(largest, "cpu"))
    del loss
    return sum(size for place, size in seen.items() if place not in weights)
