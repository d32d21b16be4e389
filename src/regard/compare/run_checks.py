"""Check the runs of a comparison before the first training: widths, settings and models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from regard.compare.study import PlannedRun
from regard.errors import ArgumentError, message
from regard.models import build_model
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.settings import build

__all__ = ["check_runs", "checked_width", "checked_widths"]

SMALLEST, LARGEST = 4, 10_000
"""Bounds of the width of a model."""


def checked_width(value: object, option: str = "--width") -> int:
    """Return the width of the models, or raise ArgumentError if it is not a valid number."""
    if isinstance(value, bool) or not isinstance(value, int) or not SMALLEST <= value <= LARGEST:
        expected = f"an integer from {SMALLEST} to {LARGEST:,}"
        raise ArgumentError(message(option, f"the width is {value!r}", expected=expected))
    return value


def checked_widths(values: Iterable[object]) -> tuple[int, ...]:
    """Return the widths of --widths, each checked."""
    return tuple(checked_width(value, "--widths") for value in values)


def check_runs(runs: Sequence[PlannedRun]) -> None:
    """Raise ArgumentError if the settings or the model of a run are not valid."""
    known = set()
    for run in runs:
        build(TranslationSettings, run.settings, f"the settings of {run.label}")
        model = dict(run.settings["model"])
        key = json.dumps(model, sort_keys=True, default=str)
        if key in known:
            continue
        known.add(key)
        name, width, heads = model.pop("name"), model["width"], model.get("heads")
        if isinstance(heads, int) and heads > 0 and width % heads:
            problem = f"the width {width} is not a multiple of the {heads} heads of {run.label}"
            hint = f"use --width {-(-width // heads) * heads}, or leave out this model or study"
            raise ArgumentError(message("--width", problem, hint=hint))
        try:
            build_model(name, 8, 8, **model)
        except ArgumentError as error:
            text = error.message
            place = f"the model {run.label}"
            raise ArgumentError(
                message(place, text.problem, expected=text.expected, hint=text.hint)
            ) from None
