"""Choose the batch size, learning rate and number of epochs of a captioning run; measure its speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.runs.run_task import Plan, RunTask
from regard.tasks.captioning.captioning_data import CaptionCorpus
from regard.training.budget import EVALUATION_PART, RESERVED, epochs_text
from regard.training.distributed import Processes
from regard.training.settings import BATCHES, build, merged
from regard.training.step_speed import StepTimer

__all__ = ["encoder_defaults", "plan_captioning"]

BATCH_SIZE = 64
"""Default number of captions in one optimizer step, summed over all processes and accumulated batches."""

EPOCHS, MIN_STEPS, MAX_STEPS = 10, 1000, 30_000
"""The length of a run if no minutes, steps or epochs are set: EPOCHS epochs, but at least MIN_STEPS and at
most MAX_STEPS optimizer steps."""

WARMUP_PART, MOST_WARMUP = 0.05, 200
"""Default length of the warm-up: its fraction of all steps, and its maximum number of steps."""

RATE, TUNING_RATE = 2e-3, 3e-4
"""Default learning rates: of a new model, and of a model that starts from the weights of another run."""

CELLS = 8
"""By default, the convolutional encoder has so many stages that the feature map has at most CELLS x CELLS
cells. Each stage halves the height and width of the map."""


def encoder_defaults(model: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return default model settings for an image size: the number of stages of the convolutional encoder.

    model: the model settings so far. If they name another image encoder, the result is empty.
    size: width and height of the images in pixels.

    >>> encoder_defaults({}, 64), encoder_defaults({"image_encoder": "other"}, 64)
    ({'encoder_options': {'stages': 3}}, {})
    """
    if model.get("image_encoder", "convolutional") != "convolutional":
        return {}
    stages = 1
    while size > CELLS * 2**stages:
        stages += 1
    return {"encoder_options": {"stages": stages}}


def plan_captioning(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: CaptionCorpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Return the settings of a run with batch size, learning rate, warm-up and number of epochs filled in.

    The result is the same in all processes.

    task: the task class.
    given: the settings known so far; they are not changed.
    corpus: the encoded captions and the images.
    device: the device to train on, for example "cuda".
    processes: the processes of distributed training.
    timed: measure the speed, to predict the duration, even if the length of the run is given in steps or
        epochs. If it is given in minutes, the speed is always measured.
    """
    training = given.get("training", {})
    group = processes.world * training.get("accumulation_steps", 1)
    rate = RATE if given.get("init_from") is None else TUNING_RATE
    batch: dict[str, Any] = {"learning_rate": rate}
    if all(training.get(name) is None for name in BATCHES):
        batch["batch_size"] = max(BATCH_SIZE // group, 1)
    settings = merged(given, {"training": batch}, given)
    tokens, minutes, speed = _epoch_tokens(corpus), training.get("minutes"), None
    if timed or minutes is not None:
        measured = _speed(task, settings, corpus, device) if processes.first else 0.0
        speed = processes.share(measured) * processes.world
    epoch = _epoch_steps(task, settings, corpus) / group
    length: dict[str, Any] = {}
    if minutes is not None and speed is not None:
        epochs = 60 * minutes * (1 - EVALUATION_PART - RESERVED) * speed / tokens
    elif training.get("steps") is not None:
        epochs = training["steps"] / epoch
    elif training.get("epochs") is not None:
        epochs = training["epochs"]
    else:
        epochs = min(max(EPOCHS, MIN_STEPS / epoch), MAX_STEPS / epoch)
        length = {"epochs": float(round(epochs, 2))}
    warmup = int(min(max(WARMUP_PART * epochs * epoch, 1), MOST_WARMUP))
    settings = merged(settings, {"training": {**length, "warmup_steps": warmup}}, given)
    seconds = None if speed is None else epochs * tokens / speed / (1 - EVALUATION_PART - RESERVED)
    return Plan(settings, _sentence(settings, epochs), epochs, seconds)


def _epoch_tokens(corpus: CaptionCorpus) -> int:
    """Return the number of tokens that the model predicts in one epoch, including one EOS per caption."""
    return int(corpus.train.captions.offsets[-1]) + len(corpus.train)


def _epoch_steps(task: type[RunTask], settings: Mapping[str, Any], corpus: CaptionCorpus) -> int:
    with torch.device("meta"):  # len_epoch() needs no weights, so they use no memory
        return _built(task, settings, corpus, "cpu").len_epoch(0)


def _speed(task: type[RunTask], settings: Mapping[str, Any], corpus: CaptionCorpus, device: str) -> float:
    """Measure the training speed of one process, in target tokens per second."""
    built = _built(task, settings, corpus, device)
    with TemporaryDirectory() as scratch:
        timer = StepTimer(built, built.settings.training, torch.device(device), Path(scratch))
        return timer.tokens_per_second()


def _built(task: type[RunTask], settings: Mapping[str, Any], corpus: CaptionCorpus, device: str) -> RunTask:
    chosen = build(task.settings_type, settings, "the settings")
    torch.manual_seed(0)
    model = task.build_model(chosen.model, task.sizes(corpus))
    return task(model, corpus, chosen, Processes(), device)


def _sentence(settings: Mapping[str, Any], epochs: float) -> str:
    training = settings["training"]
    batch = f"{training['batch_size']:,} captions" if training.get("batch_size") else ""
    batch = batch or f"{training['batch_tokens']:,} tokens"
    return (
        f"plan: batches of {batch}, learning rate {training['learning_rate']:g}, about {epochs_text(epochs)}"
    )
