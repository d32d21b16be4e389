"""The settings that every run has, as in config.toml: task, seed, data, model, training and evaluation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from regard.errors import ArgumentError, message, printable
from regard.training.command_options import CHOSEN, TRAINING, CommandOption
from regard.training.settings import Clash, Section, Training

LARGEST = {"layers": 1000, "decoder_layers": 1000, "depth": 1000, "heads": 10_000}
LARGEST_OTHER = 1_000_000
"""The largest permitted values of numeric model options. LARGEST has the values for some names. For all other
names, the value is LARGEST_OTHER."""


def _checked_dropout(value: float) -> float:
    """Return the value of --dropout. Raise ArgumentError unless it is a probability below 1."""
    if not 0 <= value < 1:
        expected = "a number that is at least 0 and below 1"
        raise ArgumentError(message(f"--dropout {value:g}", "invalid value", expected=expected))
    return value


class ModelSettings(Section):
    """The section [model] of config.toml: the name of the model, and its options.

    `regard train` has options for the name and for some options of the model, in command_options:

    name: model. Translation: seq2seq, bahdanau, luong, lstmn or transformer. Language models and
        classification: lstm, gru, lstmn or transformer. Captioning: captioner. Answering: end-to-end or
        supervised. Algorithms: ntm, lstm or gru.
    width: width of the model (hidden size).
    dropout: dropout probability.
    score: score function of the attention: dot, scaled_dot, general, additive, concat, cosine or location.
    select: selection of the attention: softmax, sparsemax, entmax, gate, linear, straight-through, or hard
        (with --estimator); for captioning also none.
    position: position scheme of a Transformer: sinusoidal, learned, noise, rotary, relative, t5, alibi or
        none.
    readout: readout of the model luong: attentional, affine, or latent (latent alignment: the exact sum over
        the attended word, without input feeding).
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    command_options: ClassVar[tuple[CommandOption, ...]] = (
        CommandOption("--width", kind=int, shown_default=CHOSEN, least=1),
        CommandOption("--dropout", kind=float, shown_default=CHOSEN, parse=_checked_dropout),
        CommandOption("--score", shown_default="the default of the model"),
        CommandOption("--select", shown_default="softmax"),
        CommandOption("--position", shown_default="the default of the model"),
        CommandOption("--readout", shown_default="attentional"),
    )

    name: Annotated[str, CommandOption("--model")]

    @model_validator(mode="after")
    def _bounded(self) -> ModelSettings:
        for name, value in _numbers(self.options):
            limit = LARGEST.get(name, LARGEST_OTHER)
            if not abs(value) <= limit:
                raise Clash(f"{name} is {value}", f"a number, at most {limit:,}")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options of the model, without its name."""
        return dict(self.model_extra or {})


def _numbers(options: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each numeric model option, including options in nested TOML tables."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield name, value


Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]

MOST_SEEDS = 1000
"""The largest number of seeds that one run trains."""


def _listed_seeds(value: Any) -> Any:
    """Convert the setting `seeds` to a list of seeds. A number n becomes the seeds 0 to n - 1.

    Raise Clash if there is no seed, if there are more than MOST_SEEDS seeds, or if two seeds are equal.

    >>> _listed_seeds(3), _listed_seeds([7, 9])
    ([0, 1, 2], [7, 9])
    """
    count = value if type(value) is int else len(value) if isinstance(value, list) else 1
    if not 1 <= count <= MOST_SEEDS:
        raise Clash(f"{count} seeds", f"1 to {MOST_SEEDS:,} seeds")
    if isinstance(value, list) and (equal := [each for each in value if value.count(each) > 1]):
        raise Clash(f"the seed {equal[0]} is given twice", "different seeds")
    return list(range(value)) if type(value) is int else value


def _parsed_seeds(text: str) -> int | list[int]:
    """Return the value of --seeds: the number of seeds, or a list of seeds.

    >>> _parsed_seeds("5"), _parsed_seeds("1,2,3")
    (5, [1, 2, 3])
    """
    parts = [part.strip() for part in text.split(",")]
    parts = parts[:-1] if len(parts) > 1 and not parts[-1] else parts
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
        expected = "the number of seeds, such as 5, or a list of seeds, such as 1,2,3"
        raise ArgumentError(
            message("--seeds", f"the value {printable(text)[:40]!r} is invalid", expected=expected)
        )
    return [int(part) for part in parts] if "," in text else int(text)


class RunSettings(Section):
    """All settings of a run. A task declares its own sections in a subclass.

    task: task: translation, language, classification, captioning, answering, algorithms, or
        package.module:Class for a task of your own.
    seed: random seed.
    seeds: train N seeds (0 to N - 1), or the seeds of a list such as 1,2,3. Each seed is an ordinary run in
        the folder seed-0, seed-1, ... of --output. Cannot be combined with --minutes.
    init_from: start from the weights and tokenizers of this run folder.
    """

    fixed: ClassVar[tuple[str, ...]] = ("task", "model")
    """Prefixes of the settings that cannot change when a run is resumed with --change, such as "model."."""
    for_outputs: ClassVar[tuple[str, ...]] = ("task", "model")
    """Prefixes of the settings that affect the outputs of a trained run, such as "model."."""
    paths: ClassVar[tuple[str, ...]] = ("train_file", "valid_file")
    """Names of the settings in [data] whose values are paths. They are saved as absolute paths in
    config.toml, and nowhere else."""
    always_shown: ClassVar[tuple[str, ...]] = ()
    """The data settings that `regard show` prints even if they have their default value."""
    no_data_hint: ClassVar[str] = "set the training data in [data]"
    """The hint in the error message if a new run has no training data."""
    next_command: ClassVar[str] = "regard show {run}"
    """The command that `regard train` suggests after training. {run} is replaced by the run folder."""

    task: Annotated[str, CommandOption("--task", default="translation")]
    seed: Annotated[Seed, CommandOption("--seed", panel=TRAINING)] = 0
    seeds: Annotated[
        list[Seed] | None,
        BeforeValidator(_listed_seeds),
        CommandOption("--seeds", metavar="N", parse=_parsed_seeds, panel=TRAINING),
    ] = None
    init_from: Annotated[str | None, CommandOption("--init-from", metavar="RUN", kind=Path)] = None
    data: Section
    model: ModelSettings
    training: Training = Field(default_factory=Training)
    evaluation: Section = Field(default_factory=Section)

    @classmethod
    def data_options(cls, options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Convert options of `regard train` that name data files to settings in [data].

        By default, nothing is converted.

        options: the value of each option, or None if it is not used. The keys are the names of the options
            with _ instead of -, such as "train_file".

        Returns the names of the converted options, and the resulting settings in [data].
        """
        return (), {}

    @classmethod
    def fixed_data(cls) -> tuple[str, ...]:
        """Return the settings in [data] that a run with --init-from copies from the other run."""
        return tuple(name.removeprefix("data.") for name in cls.fixed if name.startswith("data."))

    @classmethod
    def check_resumed(cls, folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Raise an error if the new settings of a resumed run contradict the settings at its start.

        By default, nothing is checked.

        before: the settings at the start of the run.
        settings: the new settings.
        """

    @classmethod
    def without_folders(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with the file names in place of paths, to show them or to share the run.

        settings: nested as in config.toml.
        """
        data = dict(settings.get("data") or {})
        for name in cls.paths:
            if isinstance(data.get(name), str):
                data[name] = os.path.basename(data[name])
            elif isinstance(data.get(name), list | tuple):
                data[name] = [os.path.basename(path) for path in data[name] if isinstance(path, str)]
        whole = {**settings, "data": data}
        if isinstance(settings.get("init_from"), str):
            whole["init_from"] = os.path.basename(settings["init_from"])
        return whole

    def describe_quality(self, scores: Mapping[str, float], corpus: Any = None) -> str:
        """Return a sentence for the user about a trained model whose scores are poor, otherwise "".

        The default is "": no scores count as poor.

        scores: the scores of its checkpoint, the result of Task.evaluate().
        corpus: the result of RunTask.encode_data(), for advice. None: no advice.
        """
        return ""

    @model_validator(mode="before")
    @classmethod
    def _without_stack(cls, values: Any) -> Any:
        """Leave out `stack`, which runs of several seeds had in earlier versions."""
        left = ("stack",) if "seeds" in values else ()
        return {name: each for name, each in values.items() if name not in left}

    @model_serializer(mode="wrap")
    def _without_seeds(self, handler: Any) -> dict[str, Any]:
        """Return the settings to save, without settings that the run does not use.

        A run of one seed does not use `seeds`. A run of several seeds does not use `seed`.
        """
        values: dict[str, Any] = handler(self)
        unused = "seeds" if self.seeds is None else "seed"
        return {name: value for name, value in values.items() if name != unused}


def check_seeds(settings: RunSettings) -> None:
    """Raise ArgumentError if a run with several seeds has a setting that needs a single seed."""
    if settings.seeds is None:
        return
    problem = hint = ""
    if "seed" in settings.model_fields_set:
        problem, hint = "seed and seeds are both set", "set only one of them"
    elif settings.training.minutes is not None:
        problem = "minutes cannot be combined with several seeds: the step count would depend on the speed"
        hint = "set the length by --steps or --epochs"
    if problem:
        raise ArgumentError(message("--seeds", problem, hint=hint))
