"""The settings that every run has, as in config.toml: task, seed, data, model, training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from regard.training.settings import Clash, Section, Training

__all__ = ["ModelSettings", "RunSettings"]

LARGEST = {"layers": 1000, "heads": 10_000}
LARGEST_OTHER = 1_000_000
"""The largest values of numeric model options: those named here, and all others."""


class ModelSettings(Section):
    """The name of the model, and its options."""

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
    """Yield the names and values of numeric model options, also of nested tables."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield name, value


class RunSettings(Section):
    """All settings of a run; a task declares its own sections in a subclass.

    task: the name of the task, or package.module:Class. init_from: the folder of the run whose weights it
    starts from.
    """

    task: str
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    init_from: str | None = None
    data: Section
    model: ModelSettings
    training: Training = Field(default_factory=Training)
    evaluation: Section = Field(default_factory=Section)
