"""The settings that every run has, as in config.toml: task, seed, data, model, training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from regard.errors import ArgumentError, message
from regard.training.settings import Clash, Section, Training

__all__ = ["ModelSettings", "RunSettings", "check_seeds"]

LARGEST = {"layers": 1000, "heads": 10_000}
LARGEST_OTHER = 1_000_000
"""The largest permitted values of numeric model options. LARGEST has the values for some names. For all other
names, the value is LARGEST_OTHER."""


class ModelSettings(Section):
    """The section [model] of config.toml: the name of the model, and its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

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


class RunSettings(Section):
    """All settings of a run. A task declares its own sections in a subclass.

    task: the name of the task, such as "translation", or the task class as "package.module:Class".
    seed: the random seed of a run of one seed.
    seeds: the random seeds of a run of several seeds. It is a list, or a number n for the seeds 0 to n - 1.
        For each seed, a model is trained in its own folder.
    init_from: the folder of another run. This run starts from the weights of the other run.
    """

    task: str
    seed: Seed = 0
    seeds: Annotated[list[Seed] | None, BeforeValidator(_listed_seeds)] = None
    init_from: str | None = None
    data: Section
    model: ModelSettings
    training: Training = Field(default_factory=Training)
    evaluation: Section = Field(default_factory=Section)

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
