"""Choose the model size, batch size, learning rate and length of a classification run; measure its speed.

The rules were fitted to short trainings on the Stanford Sentiment Treebank and on SICK.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.runs.run_task import Plan, RunTask
from regard.tasks.classification.classification_data import LabelledCorpus
from regard.training.budget import EVALUATION_PART, RESERVED, epochs_text
from regard.training.distributed import Processes
from regard.training.settings import BATCHES, build, merged
from regard.training.step_speed import StepTimer

__all__ = ["plan_classification"]

BATCH_SIZE = 32
"""Default number of texts in one optimizer step, summed over all processes and accumulated batches."""

EPOCHS, MIN_STEPS, MAX_STEPS = 10, 400, 30_000
"""The length of a run if no minutes, steps or epochs are set: EPOCHS epochs, but at least MIN_STEPS and at
most MAX_STEPS optimizer steps."""

WARMUP_PART, MOST_WARMUP = 0.05, 200
"""The warm-up takes the fraction WARMUP_PART of all steps, but at most MOST_WARMUP steps."""

WIDTH = 128
"""The default width of recurrent models (size of their states). A Transformer has its own default size."""

RECURRENT = {False: (0.3, 4e-3), True: (0.2, 2e-3)}
"""Whether the texts are pairs -> (dropout, learning rate at width WIDTH) of a recurrent model."""

TRANSFORMER_RATE, TUNING_RATE = 1e-3, 3e-4
"""Learning rates. TRANSFORMER_RATE: for a Transformer with random initial weights. TUNING_RATE: for any model
that starts from the weights of another run."""


def plan_classification(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: LabelledCorpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set. All processes get the same plan.

    task: the task class.
    given: the settings that are known so far; they are not changed.
    corpus: the training data.
    device: the device to train on, for example "cuda".
    processes: the processes of distributed training.
    timed: measure the training speed even if the length of the run is set in steps or epochs. If it is set in
        minutes, the speed is always measured.
    """
    training, texts = given.get("training", {}), len(corpus.train)
    group = processes.world * training.get("accumulation_steps", 1)
    model, rate = _model_and_rate(given)
    batch: dict[str, Any] = {"learning_rate": rate}
    if all(training.get(name) is None for name in BATCHES):
        batch["batch_size"] = max(BATCH_SIZE // group, 1)
    settings = merged(given, {"model": model, "training": batch}, given)
    minutes, speed = training.get("minutes"), None
    if timed or minutes is not None:
        measured = texts_per_second(task, settings, corpus, device) if processes.first else 0.0
        speed = processes.share(measured) * processes.world
    epoch = _epoch_steps(task, settings, corpus, group)
    length: dict[str, Any] = {}
    if minutes is not None and speed is not None:
        epochs = 60 * minutes * (1 - EVALUATION_PART - RESERVED) * speed / texts
    elif training.get("steps") is not None:
        epochs = training["steps"] / epoch
    elif training.get("epochs") is not None:
        epochs = training["epochs"]
    else:
        epochs = min(max(EPOCHS, MIN_STEPS / epoch), MAX_STEPS / epoch)
        length = {"epochs": float(round(epochs, 2))}
    warmup = int(min(max(WARMUP_PART * epochs * epoch, 1), MOST_WARMUP))
    settings = merged(settings, {"training": {**length, "warmup_steps": warmup}}, given)
    seconds = None if speed is None else epochs * texts / speed / (1 - EVALUATION_PART - RESERVED)
    return Plan(settings, _sentence(settings, epochs), epochs, seconds)


def _model_and_rate(given: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the default options of the model as a dict, and the learning rate.

    The options do not depend on what the user has set; the caller overrides them with the user's options. The
    learning rate does: it is chosen for the width that the user has set (32 in the example), or else for the
    default width.

    >>> _model_and_rate({"model": {"name": "gru", "width": 32}})
    ({'width': 128, 'dropout': 0.3}, 0.008)
    """
    model = given.get("model", {})
    if given.get("init_from") is not None:
        return {}, TUNING_RATE
    if model.get("name") == "transformer":
        return {}, TRANSFORMER_RATE
    dropout, rate = RECURRENT[bool(model.get("pairs"))]
    rate *= (WIDTH / max(model.get("width", WIDTH), 1)) ** 0.5
    return {"width": WIDTH, "dropout": dropout}, float(f"{rate:.2g}")


def texts_per_second(
    task: type[RunTask], settings: Mapping[str, Any], corpus: LabelledCorpus, device: str
) -> float:
    """Measure the training speed of one process, in texts per second."""
    built = _built(task, settings, corpus, device)
    with TemporaryDirectory() as scratch:
        timer = StepTimer(built, built.settings.training, torch.device(device), Path(scratch))
        return timer.tokens_per_second()


def _epoch_steps(
    task: type[RunTask], settings: Mapping[str, Any], corpus: LabelledCorpus, group: int
) -> float:
    """Return the number of optimizer steps of an epoch. group: number of batches of one optimizer step."""
    with torch.device("meta"):  # no memory for the weights: len_epoch() does not need them
        return _built(task, settings, corpus, "cpu").len_epoch(0) / group


def _built(task: type[RunTask], settings: Mapping[str, Any], corpus: LabelledCorpus, device: str) -> RunTask:
    chosen = build(task.settings_type, settings, "the settings")
    torch.manual_seed(0)
    model = task.build_model(chosen.model, task.sizes(corpus))
    return task(model, corpus, chosen, Processes(), device)


def _sentence(settings: Mapping[str, Any], epochs: float) -> str:
    training = settings["training"]
    batch = f"{training['batch_size']:,} texts" if training.get("batch_size") else ""
    batch = batch or f"{training['batch_tokens']:,} tokens"
    rate = f"learning rate {training['learning_rate']:g}"
    width = f"width {settings['model']['width']}, " if settings.get("model", {}).get("width") else ""
    return f"plan: {width}batches of {batch}, {rate}, about {epochs_text(epochs)}"
