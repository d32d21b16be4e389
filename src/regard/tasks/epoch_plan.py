"""plan_epochs(): choose the batch size, warm-up and number of epochs of a run, and measure its speed.

Several tasks use this function. Their training sets are lists of examples: texts with labels, or images with
captions.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regard.runs.run_task import Plan, RunTask, on_meta_device, sizes_of
from regard.training.budget import EVALUATION_PART, RESERVED, epochs_text
from regard.training.distributed import Processes
from regard.training.settings import BATCHES, build, merged
from regard.training.step_speed import tokens_per_second

__all__ = ["EpochRules", "plan_epochs", "training_speed"]

WARMUP_PART, MOST_WARMUP = 0.05, 200
"""The warm-up takes the fraction WARMUP_PART of all steps, but at most MOST_WARMUP steps."""

TRAINING_PART = 1 - EVALUATION_PART - RESERVED
"""The fraction of the time of a run for training steps. Evaluations take the rest."""


@dataclass(frozen=True)
class EpochRules:
    """The default length of a run, and the default size of its batches.

    examples: the name of the training examples in messages, such as "texts".
    batch_size: number of examples per optimizer step, summed over all processes and accumulated batches.
    epochs, min_steps, max_steps: the run has this number of epochs, but at least min_steps and at most
        max_steps optimizer steps.
    """

    examples: str
    batch_size: int
    epochs: int = 10
    min_steps: int = 1000
    max_steps: int = 30_000


def plan_epochs(
    task: type[RunTask],
    given: Mapping[str, Any],
    chosen: Mapping[str, Any],
    rules: EpochRules,
    corpus: Any,
    device: str,
    processes: Processes,
    *,
    counted: int,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set. All processes get the same plan.

    given: the settings that the user has set.
    chosen: settings that the task has chosen, such as the learning rate. The settings in `given` have
        priority.
    counted: the sum of task.count(batch) over all batches of an epoch.
    timed: whether to measure the training speed if the length of the run is set in steps or epochs. If the
        length is set in minutes, the speed is always measured.
    """
    training = given.get("training", {})
    group = processes.world * training.get("accumulation_steps", 1)
    batch: dict[str, Any] = {}
    if all(training.get(name) is None for name in BATCHES):
        batch["batch_size"] = max(rules.batch_size // group, 1)
    settings = merged(given, chosen, {"training": batch}, given)
    minutes, speed = training.get("minutes"), None
    if timed or minutes is not None:
        measured = training_speed(task, settings, corpus, device) if processes.first else 0.0
        speed = processes.share(measured) * processes.world
    epoch = _epoch_steps(task, settings, corpus) / group
    length: dict[str, Any] = {}
    if minutes is not None and speed is not None:
        epochs = 60 * minutes * TRAINING_PART * speed / counted
    elif training.get("steps") is not None:
        epochs = training["steps"] / epoch
    elif training.get("epochs") is not None:
        epochs = training["epochs"]
    else:
        epochs = min(max(rules.epochs, rules.min_steps / epoch), rules.max_steps / epoch)
        length = {"epochs": float(round(epochs, 2))}
    warmup = int(min(max(WARMUP_PART * epochs * epoch, 1), MOST_WARMUP))
    settings = merged(settings, {"training": {**length, "warmup_steps": warmup}}, given)
    seconds = None if speed is None else epochs * counted / speed / TRAINING_PART
    return Plan(settings, _sentence(settings, rules.examples, epochs), epochs, seconds)


def training_speed(task: type[RunTask], settings: Mapping[str, Any], corpus: Any, device: str) -> float:
    """Train for a few steps, and return the speed of one process in the unit of task.count() per second.

    The model is discarded afterwards.
    """
    built = _built(task, settings, corpus, device)
    speed = tokens_per_second(built, built.settings.training, torch.device(device))
    del built
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    return speed


def _epoch_steps(task: type[RunTask], settings: Mapping[str, Any], corpus: Any) -> int:
    """Return the number of batches of the first epoch."""
    with on_meta_device():  # no memory for the weights, which len_epoch() does not need
        return _built(task, settings, corpus, "cpu").len_epoch(0)


def _built(task: type[RunTask], settings: Mapping[str, Any], corpus: Any, device: str) -> RunTask:
    complete = build(task.settings_type, settings, "the settings")
    torch.manual_seed(0)
    model = task.build_model(complete.model, sizes_of(corpus))
    return task(model, corpus, complete, Processes(), torch.device(device).type)


def _sentence(settings: Mapping[str, Any], examples: str, epochs: float) -> str:
    """Return the plan as a sentence for the log.

    >>> training = {"batch_size": 32, "learning_rate": 0.002}
    >>> _sentence({"model": {"width": 128}, "training": training}, "texts", 10.0)
    'plan: width 128, batches of 32 texts, learning rate 0.002, about 10 epochs'
    """
    training, width = settings["training"], settings.get("model", {}).get("width")
    batch = f"{training['batch_size']:,} {examples}" if training.get("batch_size") else ""
    batch = batch or f"{training['batch_tokens']:,} tokens"
    size = f"width {width}, " if width else ""
    rate = f"learning rate {training['learning_rate']:g}"
    return f"plan: {size}batches of {batch}, {rate}, about {epochs_text(epochs)}"
