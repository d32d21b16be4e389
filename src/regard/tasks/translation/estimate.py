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
from regard.data.data_report import Report
from regard.runs.devices import choose_device
from regard.runs.run_folder import check_data
from regard.tasks.translation.plan import Plan
from regard.tasks.translation.resolve_settings import resolve_settings
from regard.tasks.translation.speed_trial import epoch_tokens, plan_run
from regard.tasks.translation.train_run import Machine, build_from, ready_to_begin, set_threads
from regard.tasks.translation.translation_data import TOKENIZERS, Corpus
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.tasks.translation.translation_task import TranslationTask
from regard.training.budget import total_steps
from regard.training.distributed import Processes
from regard.training.settings import build

__all__ = ["Estimate", "estimate"]


LINES = 10_000
"""Lines that the tokenizers of an estimate are learned from: enough to know how long sentences are."""


@dataclass(frozen=True)
class Estimate:
    """What a run would be: its settings, data, size, memory and duration.

    notes: the data report and the plan. epoch: number of batches per epoch. steps: number of steps, an
    estimate for minutes; None if such a run is resumed. memory: bytes at the largest batch: weights,
    gradients, optimizer state and activations. seconds: duration of the run; None if it is resumed.
    """

    settings: TranslationSettings
    notes: tuple[str | Report, ...]
    parameters: int
    vocabulary: tuple[int, int]
    epoch: int
    steps: int | None
    memory: int
    seconds: float | None


def estimate(
    given: Mapping[str, Any],
    folder: str | Path,
    *,
    resume: bool = False,
    change: bool = False,
    machine: Machine | None = None,
) -> Estimate:
    """Read the data, learn small tokenizers, measure the speed, and plan the run; nothing of it is kept.

    given, folder, resume, change, machine: as train_translation() takes them; the same errors are raised.
    """
    machine, folder = machine or Machine(), Path(folder)
    device = choose_device(machine.device)
    begun = ready_to_begin(folder, resume, given)
    run = resolve_settings(given, folder if begun else None, change=change)
    if begun and not change:
        check_data(folder, run.split.fingerprints)
    with TemporaryDirectory() as scratch:
        tokens = folder if begun else run.settings.init_from
        if tokens is not None:
            for name in TOKENIZERS:
                load_tokenizer(Path(tokens) / name).save(Path(scratch) / name)
        place = Path(scratch)
        corpus = Corpus.made(run.split, run.settings.data, place, place / "cache", lines=LINES)
        settings, plan = run.settings, None
        if run.incomplete is not None:
            set_threads(machine, folder, device, Processes())
            plan = plan_run(run.incomplete, corpus, device, Processes(), timed=True)
            settings = build(TranslationSettings, plan.settings, "the settings")
        model = build_from(settings, corpus)
        task = TranslationTask(model, corpus, settings, Processes())
        parameters = sum(each.numel() for each in model.parameters())
        copies = 4 + bool(settings.training.ema)  # weights, gradients, two moments, and an average
        return Estimate(
            settings,
            (*run.split.said, *corpus.said, *((plan.text,) if plan else ())),
            parameters,
            (corpus.source.size, corpus.target.size),
            task.len_epoch(0),
            total_steps(settings.training, task.len_epoch(0)) or _forecast(task, plan),
            4 * parameters * copies + _saved(task),
            None if plan is None else plan.seconds,
        )


def _forecast(task: TranslationTask, plan: Plan | None) -> int | None:
    """How many steps fit into the minutes of a plan; None for a run that is resumed."""
    if plan is None:
        return None
    return round(
        plan.tokens / epoch_tokens(task.corpus) * task.len_epoch(0) / task.settings.training.accumulate
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
