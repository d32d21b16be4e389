"""Estimate how long the trainings of a comparison take, from a few training steps of each model."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from regard.compare.comparison_options import Options
from regard.compare.study import PlannedRun
from regard.data.batch import Batch
from regard.models import build_model
from regard.training.losses import cross_entropy

__all__ = ["estimated_seconds", "run_seconds"]

VOCABULARY, WORDS = 2000, 10
"""Vocabulary size and sentence length of the batches that are timed."""

FIRST = 4
"""The first token id that is not a special token."""

STARTING = {"cpu": 8.0}
"""Seconds that a training takes before its first step and after its last one; 20 on other devices."""

STEPS = 5
"""Number of steps that are timed. The first one is slow; on a busy machine, others may be slow too."""

ENOUGH = 20.0
"""Seconds for timing models. After that, a model gets the mean time of the timed models of the same name."""


def run_seconds(runs: Sequence[PlannedRun], device: str) -> list[float]:
    """Estimate the duration of each training in seconds. Each distinct model is timed once."""
    keys = [json.dumps(run.settings["model"], sort_keys=True, default=str) for run in runs]
    names = {key: str(run.settings["model"]["name"]) for key, run in zip(keys, runs, strict=True)}
    timed: dict[str, float] = {}
    began = time.monotonic()
    for run, key in zip(runs, keys, strict=True):
        known = {names[each] for each in timed}
        if key in timed or (names[key] in known and time.monotonic() > began + ENOUGH):
            continue
        tokens = run.settings["training"].get("batch_tokens") or 2048
        timed[key] = _step_seconds(run.settings["model"], tokens, device)
    means = {
        name: statistics.fmean(seconds for key, seconds in timed.items() if names[key] == name)
        for name in set(names.values())
    }
    result = []
    for run, key in zip(runs, keys, strict=True):
        step, training = timed.get(key, means[names[key]]), run.settings["training"]
        steps = training.get("steps") or 60 * float(training.get("minutes") or 10) / step
        result.append(steps * step + STARTING.get(device, 20.0))
    return result


def estimated_seconds(seconds: Sequence[float], options: Options, device: str) -> float:
    """Estimate the duration of all trainings, given that of each, with options.jobs of them at a time."""
    at_once = min(options.jobs, len(seconds))
    return sum(seconds) / (min(at_once, os.cpu_count() or 1) if device == "cpu" else at_once)


def _step_seconds(model: Mapping[str, Any], tokens: int, device: str) -> float:
    """Return the duration of one training step, forward and backward: the shortest after the first one."""
    options = {name: value for name, value in model.items() if name != "name"}
    built = build_model(model["name"], VOCABULARY, VOCABULARY, **options).to(device)
    generator = torch.Generator().manual_seed(0)
    rows = max(tokens // WORDS, 1)
    ids = torch.randint(FIRST, VOCABULARY, (2, rows, WORDS - 1), generator=generator).tolist()
    batch = Batch.collate(*ids).to(device)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        cross_entropy(built(batch), batch.labels)[0].backward()
        seconds.append(_synchronised(device) - start)
    return min(seconds[1:])


def _synchronised(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()
