"""The options of a comparison, the models that can be compared, and the checks before the first training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.compare.study import PlannedRun, Variant
from regard.errors import ArgumentError, UnknownName, message
from regard.models import MODELS, build_model
from regard.tasks.translation.settings import Data, TranslationSettings, ways_named
from regard.training.settings import build, check_names, merged, without_alternatives
from regard.training.settings_toml import override

__all__ = ["COMPARED", "Options", "check_runs", "make_options", "model_options", "model_variant"]

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

QUICK_MODELS = ("seq2seq", "bahdanau")

WIDTH, TRAINING, SENTENCES = 128, {"steps": 2000, "batch_tokens": 2048}, 100
QUICK_WIDTH, QUICK_TRAINING, QUICK_SENTENCES = 96, {"steps": 800, "batch_tokens": 1024}, 60

NARROWEST, WIDEST = 4, 10_000
"""Bounds of the width of a model."""


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
        return self.models or (QUICK_MODELS if self.quick else tuple(COMPARED))

    @property
    def built_in(self) -> bool:
        """Whether the data are the built-in corpus, which has gold alignments and long test sentences."""
        return bool(self.data.get("built_in"))

    @property
    def seeds_untrained(self) -> tuple[int, ...]:
        """The seeds of measurements that need no training run: at least three."""
        return self.seeds if len(self.seeds) > 2 else (0, 1, 2)

    def run(self, variant: Variant, seed: int) -> PlannedRun:
        """Return the training run of a variant with one seed."""
        settings: dict[str, Any] = {
            "task": "translation",
            "seed": seed,
            "data": dict(self.data),
            "model": {"width": self.width},
            "training": dict(self.training),
            "evaluation": {"sentences": 100, "samples": 0},
        }
        own = {"model": variant.model, "training": variant.training}
        settings = merged(settings, self.settings, own)
        steps = settings["training"].get("steps")
        if steps is not None:  # evaluate once, at the end
            settings["training"] = {"evaluate_every": steps, **settings["training"]}
        inner = settings["model"]
        if inner.get("name") == "transformer" and "inner" not in inner:
            inner["inner"] = 4 * inner["width"]
        return PlannedRun(variant.label, seed, settings)


def make_options(
    models: Iterable[str] = (),
    seeds: int | Iterable[int] | None = None,
    quick: bool = False,
    settings: Mapping[str, Any] | None = None,
    sentences: int | None = None,
    widths: Iterable[object] = (),
    **others: Any,
) -> Options:
    """Check the arguments of compare(), and return them as Options. The others are passed on."""
    names = (models,) if isinstance(models, str) else tuple(models)
    for name in names:
        model_options(name)
    whole = merged({}, settings or {})
    check_names(TranslationSettings, whole, "the settings")
    seeds = 3 if seeds is None else seeds
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ArgumentError(message("compare()", f"seeds is {seeds!r}", expected="1 or more different seeds"))
    if others.get("jobs", 1) < 1:
        raise ArgumentError(message("compare()", f"jobs is {others['jobs']}", expected="1 or more"))
    data = dict(whole.get("data") or {})
    if not ways_named(data):
        data["built_in"] = "korean"
    build(Data, data, "regard compare")  # raise an error if they are not valid
    default = {"training": QUICK_TRAINING if quick else TRAINING}
    return Options(
        names,
        numbers,
        data,
        merged(without_alternatives(default, whole), whole).get("training", {}),
        _checked_width((whole.get("model") or {}).get("width", QUICK_WIDTH if quick else WIDTH), "--width"),
        quick,
        sentences=sentences or (QUICK_SENTENCES if quick else SENTENCES),
        settings={name: value for name, value in whole.items() if name not in ("data", "training", "seed")},
        widths=tuple(_checked_width(value, "--widths") for value in widths),
        **others,
    )


def _checked_width(value: object, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not NARROWEST <= value <= WIDEST:
        expected = f"an integer from {NARROWEST} to {WIDEST:,}"
        raise ArgumentError(message(option, f"the width is {value!r}", expected=expected))
    return value


def model_options(name: str) -> dict[str, Any]:
    """Return the settings [model] of a model in a comparison.

    name: a name in COMPARED or MODELS, or such a name followed by options: "luong:score=concat:cell=gru".

    >>> model_options("luong:score=concat")
    {'name': 'luong', 'score': 'concat'}
    """
    known, *assignments = name.split(":")
    if known not in COMPARED and known not in MODELS:
        raise UnknownName("model", known, (*COMPARED, *(each for each in MODELS if each not in COMPARED)))
    settings = dict(COMPARED.get(known, {"name": known}))
    try:
        settings |= override(assignments)
    except ArgumentError:
        problem = f"{name!r} is not a model with options"
        hint = "write the options after colons: luong:score=concat:cell=gru"
        raise ArgumentError(message("--models", problem, hint=hint)) from None
    build_model(
        source_size=8, target_size=8, **{"width": 8, **settings}
    )  # raise an error for an unknown option
    return settings


def model_variant(name: str) -> Variant:
    """Return the variant of a study that is a model of model_options()."""
    return Variant(name, model_options(name))


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
            text, place = error.message, f"the model {run.label}"
            raise ArgumentError(
                message(place, text.problem, expected=text.expected, hint=text.hint)
            ) from None
