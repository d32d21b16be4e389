"""Time and peak memory of one training step of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from regard.compare.layer_costs import median_seconds, peak_memory
from regard.compare.random_sentences import random_batch
from regard.compare.study_context import StudyContext
from regard.models import build_model
from regard.training.losses import cross_entropy

__all__ = ["step_cost"]

VOCABULARY, WORDS, TOKENS = 2000, 16, 2048
"""Vocabulary size, sentence length and batch size in tokens of the step that is measured."""

REPETITIONS = 3


def step_cost(context: StudyContext, model: Mapping[str, Any]) -> dict[str, list[float]]:
    """Measure a training step (forward and backward) of an untrained model on random sentences.

    model: the settings [model].

    Returns the seconds and the peak memory in bytes of each repetition.
    """
    device, options = context.cache.device, context.options

    def measure() -> dict[str, list[float]]:
        before = torch.get_num_threads()
        torch.set_num_threads(options.threads or before)
        try:
            return _measured(model, device)
        finally:
            torch.set_num_threads(before)

    about = {"model": dict(model), "device": device, "threads": options.threads, "tokens": TOKENS}
    result: dict[str, list[float]] = context.cache.measured(None, "step-cost", about, measure)
    return result


def _measured(model: Mapping[str, Any], device: str) -> dict[str, list[float]]:
    torch.manual_seed(0)
    options = {name: value for name, value in model.items() if name != "name"}
    built = build_model(model["name"], VOCABULARY, VOCABULARY, **options).to(device)
    batch = random_batch(0, TOKENS // WORDS, WORDS, VOCABULARY).to(device)

    def step() -> None:
        built.zero_grad(set_to_none=True)
        cross_entropy(built(batch), batch.labels)[0].backward()

    step()  # memory is allocated and kernels are compiled in the first step
    return {
        "seconds": [median_seconds(step, device, 3) for _ in range(REPETITIONS)],
        "bytes": [float(peak_memory(step, device)) for _ in range(REPETITIONS)],
    }
