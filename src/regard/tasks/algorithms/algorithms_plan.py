"""Choose the number of training steps and the optimizer settings of an algorithms run; measure its speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.runs.run_task import Plan, RunTask, sizes_of
from regard.tasks.algorithms.algorithms_data import SequenceSource
from regard.training.budget import EVALUATION_PART, RESERVED
from regard.training.distributed import Processes
from regard.training.settings import build, merged
from regard.training.step_speed import StepTimer

__all__ = ["plan_algorithms"]

STEPS = {
    "copy": 20_000,
    "repeat-copy": 30_000,
    "associative-recall": 30_000,
    "n-grams": 30_000,
    "priority-sort": 30_000,
    "overwrite": 20_000,
}
"""The default number of training steps, for each task."""

BETA2 = {"associative-recall": 0.999, "overwrite": 0.999}
"""The default of training.beta2 for tasks in which the model has to look up a query. With this value, these
tasks converge in fewer steps. For other tasks, the value makes training less stable."""


def plan_algorithms(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: SequenceSource,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set.

    task: the class of the task.
    given: the settings that the user has set.
    corpus: generates the training sequences.
    device: the device on which the training speed is measured.
    processes: the training processes, one for each device.
    timed: whether to measure the training speed, to estimate the training time. If the length of the run is
        set in minutes, the speed is always measured.
    """
    training, chosen_values = given.get("training", {}), dict[str, Any]()
    if corpus.task.name in BETA2 and training.get("beta2") is None:
        chosen_values["beta2"] = BETA2[corpus.task.name]
    minutes, steps = training.get("minutes"), training.get("steps")
    if minutes is None and steps is None and training.get("epochs") is None:
        steps = STEPS[corpus.task.name]
        chosen_values["steps"] = steps
    settings = merged(given, {"training": chosen_values})
    chosen = build(task.settings_type, settings, "the settings")
    size, rate = chosen.training.batch_size, chosen.training.learning_rate
    speed = None
    if timed or minutes is not None:
        torch.manual_seed(0)
        model = task.build_model(chosen.model, sizes_of(corpus))
        built = task(model, corpus, chosen, Processes(), device)
        with TemporaryDirectory() as scratch:
            timer = StepTimer(built, chosen.training, torch.device(device), Path(scratch))
            measured = timer.tokens_per_second() if processes.first else 0.0
        speed = processes.share(measured) * processes.world
    per_step = sum(built_bits(corpus, number) for number in range(20)) / 20 * (size or 1)
    if minutes is not None and speed is not None:
        steps = 60 * minutes * (1 - EVALUATION_PART - RESERVED) * speed / per_step
    elif steps is None:
        steps = training["epochs"] * corpus.data.epoch_batches
    seconds = None if speed is None else steps * per_step / speed / (1 - EVALUATION_PART - RESERVED)
    text = f"plan: batches of {size:,} sequences, learning rate {rate:g}, about {steps:,.0f} steps"
    return Plan(settings, text, steps / corpus.data.epoch_batches, seconds)


def built_bits(corpus: SequenceSource, number: int) -> int:
    """Return the number of scored bits (bits that count in the loss) of one sequence of a training batch.

    number: the number of the batch, counted from the start of the run.
    """
    return corpus.batch(0, number, 1).scored_bits
