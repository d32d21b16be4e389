"""The options of a comparison, and the models that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from regard.compare.study import PlannedRun
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.models import MODELS, build_model
from regard.tasks.translation.translation_checks import PATHS
from regard.training.settings import merged
from regard.training.settings_toml import override

__all__ = ["COMPARED", "DEFAULT_MODELS", "QUICK_MODELS", "Options", "fingerprints", "model_options"]

COMPARED: dict[str, dict[str, Any]] = {
    "seq2seq": {"name": "seq2seq"},
    "seq2seq-reversed": {"name": "seq2seq", "reverse": True},
    "bahdanau": {"name": "bahdanau"},
    "luong-dot": {"name": "luong", "score": "dot"},
    "luong-local-p": {"name": "luong", "view": "local-p"},
    "lstmn": {"name": "lstmn", "fusion": "deep"},
    "transformer": {"name": "transformer", "layers": 2, "heads": 4},
}
"""Name of a model in a comparison -> its settings [model]. The width is added to them."""

DEFAULT_MODELS = tuple(COMPARED)
QUICK_MODELS = ("seq2seq", "bahdanau")


@dataclass(frozen=True)
class Options:
    """The options of a comparison, which all studies share.

    models: names of the models to compare, see model_options(); empty for the default of each study.
    seeds: random seeds; each model is trained once for each seed.
    data: the settings [data] of the training runs.
    training: the settings [training] of the training runs.
    width: width of the models.
    quick: fewer models and smaller measurements.
    bins: upper bounds of the classes of source lengths, in words; empty to choose them.
    sentences: number of test sentences in each class of source lengths.
    device: cpu, cuda, mps or auto.
    threads: number of CPU threads; None to choose it.
    jobs: number of trainings at the same time.
    settings: other settings of all training runs, such as {"model": {"dropout": 0.2}}.
    widths: widths of the studies that compare widths; empty for half, one and two times `width`.
    """

    models: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    data: Mapping[str, Any] = field(default_factory=lambda: {"built_in": "korean"})
    training: Mapping[str, Any] = field(default_factory=dict)
    width: int = 128
    quick: bool = False
    bins: tuple[int, ...] = ()
    sentences: int = 60
    device: str = "auto"
    threads: int | None = None
    jobs: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = ()

    @property
    def widths_compared(self) -> tuple[int, ...]:
        """The widths of the studies that compare widths, in increasing order; `width` is one of them."""
        if self.quick and not self.widths:
            return (self.width,)
        return tuple(sorted({*(self.widths or (max(self.width // 2, 4), 2 * self.width)), self.width}))

    @property
    def compared(self) -> tuple[str, ...]:
        """The names of the models to compare."""
        return self.models or (QUICK_MODELS if self.quick else DEFAULT_MODELS)

    @property
    def built_in(self) -> bool:
        """Whether the data are the built-in corpus, which has gold alignments and long test sentences."""
        return bool(self.data.get("built_in"))

    def run(self, label: str, seed: int, *changes: Mapping[str, Any]) -> PlannedRun:
        """Return the training run of a model with one seed.

        label: its name in tables; a model for model_options() unless `changes` have the settings [model].
        changes: settings that differ from those of the other runs.
        """
        has_model = any("model" in change for change in changes)
        model = {} if has_model else model_options(label)
        settings: dict[str, Any] = {
            "task": "translation",
            "seed": seed,
            "data": dict(self.data),
            "model": {"width": self.width},
            "training": dict(self.training),
            "evaluation": {"sentences": 100, "samples": 0},
        }
        settings = merged(settings, self.settings, {"model": model}, *changes)
        steps = settings["training"].get("steps")
        if steps is not None:  # evaluate once, at the end
            settings["training"] = {"evaluate_every": steps, **settings["training"]}
        inner = settings["model"]
        if inner.get("name") == "transformer" and "inner" not in inner:
            inner["inner"] = 4 * inner["width"]
        return PlannedRun(label, seed, settings)

    def each(self, label: str, *changes: Mapping[str, Any]) -> list[PlannedRun]:
        """Return the training runs of a model, one for each seed."""
        return [self.run(label, seed, *changes) for seed in self.seeds]


def model_options(name: str) -> dict[str, Any]:
    """Return the settings [model] of a model in a comparison.

    name: a name in COMPARED or MODELS, or such a name followed by options: "luong:score=concat:cell=gru".

    >>> model_options("luong:score=concat")
    {'name': 'luong', 'score': 'concat'}
    """
    known, *assignments = name.split(":")
    if known in COMPARED:
        settings = dict(COMPARED[known])
    elif known in MODELS:
        settings = {"name": known}
    else:
        raise UnknownName("model", known, (*COMPARED, *(each for each in MODELS if each not in COMPARED)))
    try:
        settings |= override(assignments)
    except ArgumentError:
        problem = f"{name!r} is not a model with options"
        hint = "write the options after colons: luong:score=concat:cell=gru"
        raise ArgumentError(message("--models", problem, hint=hint)) from None
    options = {key: value for key, value in settings.items() if key != "name"}
    build_model(settings["name"], 8, 8, **{"width": 8, **options})  # raise an error for an unknown option
    return settings


def fingerprints(data: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of each data file of the settings [data], by its name."""
    paths = [str(path) for name in (*PATHS, "alignments") for path in data.get(name) or ()]
    return {path: _hash(path) for path in paths}


@cache
def _hash(path: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise DataError(message(shown(path), f"cannot be read: {error.strerror}")) from None
    return digest.hexdigest()
