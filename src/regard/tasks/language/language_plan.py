"""Choose the window, batch size, model size and learning rate of a language model run.

Only settings that the user has not set are chosen. The choices depend on the amount of text, the model, the
device and the length of the run. If the length is set in minutes, the training speed is measured first.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.runs.run_task import Plan, RunTask, sizes_of
from regard.tasks.language.language_data import TextCorpus
from regard.tasks.language.language_settings import is_recurrent
from regard.training.budget import EPOCHS, EVALUATION_PART, MAX_STEPS, MIN_STEPS, RESERVED, epochs_text
from regard.training.distributed import Processes
from regard.training.settings import build, merged
from regard.training.step_speed import StepTimer

__all__ = ["plan_language"]

STREAMS, WINDOW = 20, 35
"""The batches of a recurrent model that reads a continuous text. The text is divided into STREAMS parts
(streams), which are read in parallel. A batch has WINDOW tokens of each stream. The model starts a batch from
its state after the previous batch.

Zaremba et al. (2015) use the same numbers.
"""

TRANSFORMER_WINDOW = 128
"""Number of tokens that a Transformer reads at once (its window)."""

WINDOWS = 4
"""Minimum number of windows in a stream (one of the parallel parts of the text). If a text is too short for
this, it is divided into fewer than STREAMS streams."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
"""Batch size in tokens on each kind of device, for models that start each batch from an empty state."""

STEPS, LEAST_STREAMS, LEAST_TOKENS = 800, 5, 512
"""In a short run, batches are smaller, so that the run has STEPS steps.

The minimum of a batch is LEAST_STREAMS streams (parallel parts of the text). If the text is not read in
streams, the minimum is LEAST_TOKENS tokens.
"""

SIZE_OPTIONS = ("width", "size", "layers", "depth", "embedding", "inner", "heads")
"""Options that determine the size of a model. If the user sets one of them, the plan chooses no size."""

RECURRENT_SIZES = {0: {"width": 128, "depth": 1}, 2_000_000: {"width": 256}, 20_000_000: {"width": 512}}
TRANSFORMER_SIZES = {
    0: {"width": 128, "layers": 2, "heads": 4, "inner": 512},
    2_000_000: {"width": 256, "layers": 4, "heads": 4, "inner": 1024},
    20_000_000: {"width": 512, "layers": 6, "heads": 8, "inner": 2048},
}
"""The default sizes of a recurrent model and of a Transformer. A size is chosen if the run trains on at least
as many tokens as its key says. The last size is only used on CUDA devices."""

TUNING_RATE = 3e-4
"""The learning rate of a run that starts from the weights of another run."""

Options = dict[str, Any]
Speed = Callable[[Options], float]
"""A function speed(settings) that measures the training speed with these settings, in tokens per second."""


def plan_language(
    task: type[RunTask],
    settings: Mapping[str, Any],
    corpus: TextCorpus,
    device: str,
    processes: Processes,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set. All processes get the same plan.

    task: the task class.
    settings: the settings of the user.
    corpus: the training data.
    device: the device to train on, for example "cuda".
    processes: the processes of distributed training.
    timed: whether to measure the training speed if the length of the run is set in steps or epochs.
    """
    shared: dict[str, Any] = {}
    if processes.first:
        kind = torch.device(device).type

        def speed(known: Options) -> float:
            return processes.world * _speed(task, known, corpus, device)

        shared = asdict(choose(settings, corpus.train.token_count, kind, processes.world, speed, timed))
    return Plan(**processes.share(shared))


def with_batches(settings: Mapping[str, Any], tokens: int, device: str = "cpu") -> Options:
    """Return the settings with window, streams and batch size filled in, if the user has not set them.

    settings: the settings of the user.
    tokens: number of tokens of the training text.
    device: the kind of device: cpu, cuda or mps.

    The examples below are for a recurrent model that reads a continuous text. The text is divided into
    streams, which are read in parallel. In the first example, a batch has 35 tokens of each of the 20
    streams, so batch_tokens is 700:

    >>> with_batches({"data": {}}, tokens=900_000)
    {'data': {'window': 35, 'streams': 20}, 'training': {'batch_tokens': 700}}
    >>> with_batches({"data": {}, "training": {"batch_size": 8}}, tokens=900_000)["data"]
    {'window': 35, 'streams': 8}
    """
    data, training = settings.get("data", {}), settings.get("training", {})
    continuous = data.get("layout", "continuous") == "continuous"
    recurrent = is_recurrent(settings.get("model", {}).get("name", "lstm"))
    rows, budget = training.get("batch_size"), training.get("batch_tokens")
    filled: Options = {}
    if continuous:
        filled["window"] = data.get("window") or min(WINDOW if recurrent else TRANSFORMER_WINDOW, tokens)
    if continuous and recurrent:
        fitting = max(min(STREAMS, tokens // (WINDOWS * filled["window"])), 1)
        filled["streams"] = (
            data.get("streams") or rows or (max(budget // filled["window"], 1) if budget else fitting)
        )
    usual = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
    if "streams" in filled:
        usual = filled["window"] * filled["streams"]
    batch = {} if rows is not None or budget is not None else {"batch_tokens": usual}
    return merged({}, {"data": filled, "training": batch}, settings)


def choose(
    settings: Mapping[str, Any], tokens: int, device: str, processes: int, speed: Speed, timed: bool = False
) -> Plan:
    """Choose the batch size, the size of the model, the dropout and the learning rate of a run.

    settings: the settings of the user.
    tokens: number of tokens of an epoch.
    device: the kind of device: cpu, cuda or mps.
    processes: number of processes.
    speed: a function that measures the training speed with given settings, in tokens per second. It is called
        if the length of the run is set in minutes, or if `timed` is True.
    timed: whether to measure the speed if the length of the run is set in steps or epochs.

    >>> plan = choose({"data": {}, "training": {"epochs": 10}}, 900_000, "cpu", 1, lambda settings: 1e4)
    >>> plan.settings["model"]
    {'width': 256, 'dropout': 0.35, 'tie': True}
    """
    settings, user = with_batches(settings, tokens, device), settings
    model, training = settings.get("model", {}), settings["training"]
    recurrent = is_recurrent(model.get("name", "lstm"))
    sizes = RECURRENT_SIZES if recurrent else TRANSFORMER_SIZES
    fixed = any(model.get(name) is not None for name in SIZE_OPTIONS)
    group = processes * training.get("accumulation_steps", 1)
    measured: float | None = None
    if training.get("minutes") is not None:
        seconds = 60 * training["minutes"] * (1 - EVALUATION_PART - RESERVED)
        size: Options = {}
        for least, option in ({0: {}} if fixed else sizes).items():
            if least and (seconds * (measured or 0.0) < least or (least > 2_000_000 and device != "cuda")):
                break
            timing = speed(merged(settings, {"model": option}))
            if least and seconds * timing < least:  # too few tokens for a model of this size
                break
            size, measured = option, timing
        total = seconds * (measured or 0.0)
    else:
        total = _tokens_of(training, tokens, _batch(settings, tokens) * group)
        enough = [each for least, each in sizes.items() if total >= least]
        size = {} if fixed else enough[-1 if device == "cuda" else min(len(enough), 2) - 1]
    if training.get("steps") is None and not _has_batch(user):
        settings = merged(settings, smaller_batches(settings, total / group))
    batch = _batch(settings, tokens) * group
    steps, epochs = total / batch, total / tokens
    chosen: Options = {**size, "dropout": _dropout(epochs, recurrent)}
    if recurrent and model.get("embedding") in (None, model.get("width", size.get("width"))):
        chosen["tie"] = True
    rate = TUNING_RATE if settings.get("init_from") else _rate(recurrent, {**size, **model}, batch, steps)
    warmup_steps = int(min(max(steps / 20, 20), 100 if recurrent else 400))
    usual = {"model": chosen, "training": {"learning_rate": rate, "warmup_steps": warmup_steps}}
    # With init_from, the model options come from the other run, so the plan chooses none.
    complete = merged(settings, {**usual, "model": {}} if settings.get("init_from") else usual, settings)
    if timed and measured is None:
        measured = speed(complete)
    duration = None if measured is None else total / measured / (1 - EVALUATION_PART - RESERVED)
    return Plan(complete, _sentence(complete, total, tokens, measured), epochs, duration)


def smaller_batches(settings: Mapping[str, Any], total: float) -> Options:
    """Return the batch settings, with smaller batches for a short run, so that it has about STEPS steps.

    Batches have a minimum size, so a very short run has fewer steps.

    settings: the result of with_batches().
    total: number of tokens to train on, divided by the number of batches per training step. A step has
        several batches with several processes or with gradient accumulation.

    >>> known = with_batches({"data": {}}, tokens=900_000)
    >>> smaller_batches(known, 210_000), smaller_batches(known, 10**7)["data"]
    ({'data': {'streams': 7}, 'training': {'batch_tokens': 245}}, {'streams': 20})
    """
    data, training = settings["data"], settings["training"]
    if data.get("streams"):
        window, streams = data["window"], data["streams"]
        streams = max(min(streams, int(total / STEPS / window)), min(streams, LEAST_STREAMS))
        return {"data": {"streams": streams}, "training": {"batch_tokens": streams * window}}
    budget = training["batch_tokens"]
    return {"training": {"batch_tokens": max(min(budget, int(total / STEPS)), min(budget, LEAST_TOKENS))}}


def _has_batch(settings: Mapping[str, Any]) -> bool:
    """Return whether the user has set training.batch_tokens, training.batch_size or data.streams."""
    training = settings.get("training", {})
    fixed = training.get("batch_tokens"), training.get("batch_size"), settings["data"].get("streams")
    return any(each is not None for each in fixed)


def _batch(settings: Mapping[str, Any], tokens: int) -> int:
    """Return the number of tokens of one batch in one process, at most `tokens`.

    tokens: number of tokens of the training text.

    >>> _batch({"data": {"window": 128}, "training": {"batch_size": 32}}, tokens=300)
    300
    """
    training, data = settings["training"], settings["data"]
    size = training.get("batch_tokens")
    if training.get("batch_size") is not None:
        size = training["batch_size"] * (data.get("window") or TRANSFORMER_WINDOW)
    return max(min(size, tokens), 1)


def _tokens_of(training: Mapping[str, Any], tokens: int, batch: int) -> float:
    """Return how many tokens a run trains on in total, if its length is not set in minutes.

    tokens: number of tokens of an epoch.
    batch: number of tokens of a training step.
    """
    if training.get("steps") is not None:
        return training["steps"] * batch
    if training.get("epochs") is not None:
        return training["epochs"] * tokens
    return min(max(EPOCHS * tokens, MIN_STEPS * batch), MAX_STEPS * batch)


def _dropout(epochs: float, recurrent: bool) -> float:
    """Return the dropout for a run. It is 0 for at most one epoch, and grows with the number of epochs.

    recurrent: whether the model is recurrent. Other models have less dropout.

    >>> [_dropout(epochs, True) for epochs in (0.5, 2, 30)], _dropout(30, False)
    ([0.0, 0.1, 0.5], 0.3)
    """
    dropout = min(0.1 * math.log2(max(epochs, 1.0)), 0.5)
    return round(20 * (dropout if recurrent else 0.6 * dropout)) / 20


def _rate(recurrent: bool, model: Mapping[str, Any], batch: int, steps: float) -> float:
    """Return the peak learning rate: lower for wide models and long runs, higher for large batches."""
    width = model.get("width") or 256
    highest, power = (8e-3, 0.5) if recurrent else (3.5e-3, 1.0)
    rate = highest * (128 / width) ** power * (batch / 1024) ** 0.25
    return float(f"{min(rate * min(1.0, 1000 / max(steps, 1.0)) ** 0.25, highest):.2g}")


def _sentence(settings: Mapping[str, Any], total: float, tokens: int, speed: float | None) -> str:
    """Describe the chosen settings, the amount of training and the speed in one sentence, for the log.

    total: number of tokens to train on, in all epochs together.
    tokens: number of tokens of the training text.
    speed: training speed in tokens per second, or None if it was not measured.
    """
    model, training, data = settings["model"], settings["training"], settings["data"]
    size = ", ".join(f"{name} {model[name]}" for name in ("size", "width", "layers") if model.get(name))
    batch = f"batches of {min(training.get('batch_tokens') or 0, tokens):,} tokens"
    if data.get("streams"):
        streams = f"{data['streams']:,} stream{'s' * (data['streams'] != 1)}"
        batch = f"batches of {streams} of {data['window']:,} tokens"
    elif training.get("batch_size") is not None:
        batch = f"batches of {training['batch_size']:,} row{'s' * (training['batch_size'] != 1)}"
    name = model.get("name", "lstm")
    parts = [f"{name} with {size}" if size else name, f"dropout {model.get('dropout', 0):g}", batch]
    text = f"{', '.join(parts)}, learning rate {training['learning_rate']:g}"
    amount = f"about {total:,.0f} tokens ({epochs_text(total / tokens)})"
    return f"{text}: for {amount}" + ("" if speed is None else f" at {speed:,.0f} tokens/s")


def _speed(task: type[RunTask], known: Mapping[str, Any], corpus: TextCorpus, device: str) -> float:
    """Build the model of the settings `known`, and measure its training speed in tokens per second."""
    nested = merged({"training": {"learning_rate": 1e-4}}, known)
    settings = build(task.settings_type, nested, "the settings")
    torch.manual_seed(0)
    model = task.build_model(settings.model, sizes_of(corpus))
    place = torch.device(device)
    built = task(model, corpus, settings, Processes(), place.type)
    with TemporaryDirectory() as scratch:
        speed = StepTimer(built, settings.training, place, Path(scratch)).tokens_per_second()
    del built, model
    gc.collect()
    return speed
