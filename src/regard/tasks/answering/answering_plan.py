"""Choose the width, batch size, learning rate and number of epochs of a memory network; measure its speed.

The rules come from short trainings on bAbI tasks with 1,000 questions each: on single tasks, and on all tasks
jointly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.runs.run_task import Plan, RunTask, sizes_of
from regard.tasks.answering.answering_data import StoryCorpus
from regard.training.budget import EVALUATION_PART, RESERVED, epochs_text
from regard.training.distributed import Processes
from regard.training.settings import build, merged
from regard.training.step_speed import StepTimer

__all__ = ["plan_answering"]

BATCH_SIZE = 32
"""Number of questions per optimizer step, summed over all processes and accumulated batches."""

EPOCHS, MIN_STEPS, MAX_STEPS = 60, 2500, 40_000
"""The default length of a run: EPOCHS epochs, but at least MIN_STEPS and at most MAX_STEPS steps."""

ONE_TASK, SEVERAL_TASKS = 20, 50
"""The embedding size for one task and for several tasks (Sukhbaatar et al. 2015, section 4.2)."""

LINEAR_PART = 1 / 3
"""The fraction of all epochs in which an end-to-end network has no softmax (linear start)."""

RATE, NORM = 0.01, 5.0
"""The learning rate of AdamW, and the norm that gradients are clipped to."""


def plan_answering(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: StoryCorpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set. All processes get the same plan.

    task: the class of the task.
    given: the settings that the user has set.
    corpus: the training data.
    device: the device on which the training speed is measured.
    processes: the training processes, one for each device.
    timed: whether to measure the training speed if the length of the run is set in steps or epochs. If the
        length is set in minutes, the speed is always measured.
    """
    training, questions = given.get("training", {}), len(corpus.train)
    group = processes.world * training.get("accumulation_steps", 1)
    model: dict[str, Any] = {"width": ONE_TASK if len(corpus.tasks) == 1 else SEVERAL_TASKS}
    if given.get("model", {}).get("name", "end-to-end") == "end-to-end":
        # As in the paper, all stories and sentences are padded to the size of the longest one.
        model["padding"] = [corpus.train.stories.shape[1], corpus.train.vectors.shape[1]]
    batch: dict[str, Any] = {"batch_size": max(BATCH_SIZE // group, 1)}
    if training.get("optimizer") != "sgd":
        batch |= {"learning_rate": RATE, "max_grad_norm": NORM}
    settings = merged({"model": model, "training": batch}, given)
    size = settings["training"]["batch_size"]
    minutes, speed = training.get("minutes"), None
    if timed or minutes is not None:
        measured = questions_per_second(task, settings, corpus, device) if processes.first else 0.0
        speed = processes.share(measured) * processes.world
    epoch = -(-questions // (size * group))
    length: dict[str, Any] = {}
    if minutes is not None and speed is not None:
        epochs = 60 * minutes * (1 - EVALUATION_PART - RESERVED) * speed / questions
    elif training.get("steps") is not None:
        epochs = training["steps"] / epoch
    elif training.get("epochs") is not None:
        epochs = training["epochs"]
    else:
        epochs = min(max(EPOCHS, MIN_STEPS / epoch), MAX_STEPS / epoch)
        length = {"epochs": float(round(epochs, 2))}
    if settings.get("model", {}).get("name", "end-to-end") == "end-to-end":
        length["linear_start"] = int(LINEAR_PART * epochs)
    length["warmup_steps"] = int(min(epochs * epoch / 20, 200))
    settings = merged({"training": length}, settings)
    seconds = None if speed is None else epochs * questions / speed / (1 - EVALUATION_PART - RESERVED)
    return Plan(settings, _sentence(settings, epochs), epochs, seconds)


def questions_per_second(
    task: type[RunTask], settings: Mapping[str, Any], corpus: StoryCorpus, device: str
) -> float:
    """Train for a few steps, and return the speed of one process in questions per second.

    The model is discarded afterwards.
    """
    chosen = build(task.settings_type, settings, "the settings")
    torch.manual_seed(0)
    model = task.build_model(chosen.model, sizes_of(corpus))
    built = task(model, corpus, chosen, Processes(), device)
    with TemporaryDirectory() as scratch:
        timer = StepTimer(built, chosen.training, torch.device(device), Path(scratch))
        return timer.tokens_per_second()


def _sentence(settings: Mapping[str, Any], epochs: float) -> str:
    training = settings["training"]
    start = training.get("linear_start")
    linear = f", the first {start} without softmax (linear start)" if start else ""
    rate = f"learning rate {training['learning_rate']:g}"
    width = f"width {settings['model']['width']}"
    batch = f"batches of {training['batch_size']:,} questions"
    return f"plan: {width}, {batch}, {rate}, about {epochs_text(epochs)}{linear}"
