"""Target: the base class of export targets; allow-lists of model options; results of the self-check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from torch import nn

from regard.data.tokenizers import Tokenizer
from regard.errors import ArgumentError, message
from regard.fast.hooks import contains_hooks
from regard.named_models.classifiers import CLASSIFIERS
from regard.named_models.language_models import LANGUAGE_MODELS
from regard.named_models.translation_models import MODELS
from regard.options.attention_options import model_arguments
from regard.options.transformer_options import Size

TASKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"translation": MODELS, "language": LANGUAGE_MODELS, "classification": CLASSIFIERS}
)
"""The tasks whose runs can be exported, and their models by name."""

OTHERWISE = "use --to safetensors, which writes every model"

SIZES = tuple(each.name for each in fields(Size))
"""The options of a Transformer that set fields of its Size."""


class ExportableRun(Protocol):
    """What an export reads of a loaded run, the result of regard.load()."""

    folder: Path
    settings: Any
    checkpoint: Any
    model: Any


@dataclass(frozen=True)
class Allowed:
    """Which values of one option of a model a target can compute.

    names: the permitted names, each with the parameters that may be set in a mapping, such as
        {"rotary": ("base",)}. None: every value is permitted.
    reason: why other values cannot be exported.
    nearest: the nearest setting that can be exported, such as "score=scaled_dot".
    """

    names: Mapping[str, tuple[str, ...]] | None = None
    reason: str = ""
    nearest: str = ""

    def refuses(self, value: Any) -> bool:
        """Return whether a value of the option, as in config.toml, cannot be exported."""
        if self.names is None:
            return False
        name, given = (
            (value.get("name"), set(value) - {"name"}) if isinstance(value, Mapping) else (value, set())
        )
        if isinstance(value, list | tuple):
            return bool(value)
        name = "none" if name is None else str(name).lower() if isinstance(name, bool) else name
        return name not in self.names or bool(given - set(self.names[name]))


ANY = Allowed()
"""Every value of the option can be exported."""


def only(*names: str, reason: str = "", nearest: str = "", **parameters: tuple[str, ...]) -> Allowed:
    """Return an Allowed with these names. parameters: name -> the parameters that a mapping may set.

    >>> only("softmax").refuses("sparsemax"), only(rotary=("base",)).refuses({"name": "rotary", "base": 1e4})
    (True, False)
    """
    return Allowed({**dict.fromkeys(names, ()), **parameters}, reason, nearest)


@dataclass(frozen=True)
class Difference:
    """An input for which the exported model gives another output.

    source: the input text.
    ours, theirs: the outputs of the run and of the exported model.
    by: how much the score of our output is above the score of theirs, both computed by the run.
    """

    source: str
    ours: str
    theirs: str
    by: float

    def __str__(self) -> str:
        outputs = f"  ours    {self.ours}\n  theirs  {self.theirs}"
        return f"{self.source}\n{outputs}\n  difference of scores {self.by:.4g}"


@dataclass(frozen=True)
class Check:
    """The result of the self-check: how many outputs of the exported model are equal to those of the run.

    what: what was compared, such as "translations of validation sentences".
    count: how many.
    differences: the inputs with different outputs.
    largest: the largest absolute difference of the compared numbers; None if none were compared.
    """

    what: str
    count: int
    differences: tuple[Difference, ...] = ()
    largest: float | None = None

    @property
    def equal(self) -> int:
        return self.count - len(self.differences)

    def __str__(self) -> str:
        largest = "" if self.largest is None else f"; largest difference {self.largest:.2g}"
        return f"{self.equal} of {self.count} equal ({self.what}{largest})"


@dataclass(frozen=True)
class Target(ABC):
    """An export target.

    name: its name on the command line.
    title: its name in text.
    extra: the extra that it needs; "" for none.
    packages: the packages to import, if they are installed.
    quantizations: the values of --quantization that it supports.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    extra: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()
    quantizations: ClassVar[tuple[str, ...]] = ()
    licences: ClassVar[tuple[str, ...]] = ()
    allowed: ClassVar[Mapping[tuple[str, str], Mapping[str, Allowed]]] = MappingProxyType({})
    """(task, name of the model) -> its options -> their permitted values. A model or an option that is not
    here cannot be exported."""
    any_model: ClassVar[bool] = False
    """Whether every model can be exported, with all options."""

    run: Any = field(repr=False)
    quantization: str | None = None

    def check(self) -> None:
        """Raise ArgumentError if the run cannot be exported to this target."""
        check_options(self)

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the exported model, with its tokenizers, to a new folder."""

    @abstractmethod
    def verify(self, folder: Path, texts: Sequence[str]) -> Check:
        """Load the exported model from its folder and compare its outputs with those of the run."""

    @abstractmethod
    def usage(self) -> str:
        """Return the lines of Python that load the exported model and run it, in the folder of the export."""

    def lost(self) -> tuple[str, ...]:
        """Return sentences about what the exported model does not have."""
        return ()


def check_options(target: Target) -> None:
    """Raise ArgumentError if the model of a run, or one of its options, is not on the list of a target."""
    run = target.run
    call, task, settings = f"export to {target.name}", run.settings.task, run.settings.model
    if task not in TASKS:
        problem = f"this is a run of the task {task!r}"
        raise ArgumentError(message(call, problem, expected=f"a run of one of the tasks {', '.join(TASKS)}"))
    if problem := _changed(run.model):
        raise ArgumentError(
            message(call, problem, hint="export the run as it was trained: regard export RUN")
        )
    if target.any_model:
        return
    allowed = target.allowed.get((task, settings.name))
    if allowed is None:
        known = " or ".join(name for of, name in target.allowed if of == task)
        problem = f"{target.title} has no model like {settings.name} ({task})"
        names = ", ".join(f"{name} ({of})" for of, name in target.allowed)
        hint = f"train with --model {known}" if known else OTHERWISE
        raise ArgumentError(message(call, problem, expected=f"one of: {names}", hint=hint))
    sizes = 1 if task == "language" else 2
    options = model_arguments(TASKS[task][settings.name], sizes) | settings.options
    refused, nearest = [], []
    for name, value in options.items():
        rule = ANY if name in SIZES else allowed.get(name)
        if rule is None or rule.refuses(value):
            reason = rule.reason if rule is not None and rule.reason else f"{target.title} cannot compute it"
            refused.append(f"{name} = {value!r} cannot be exported: {reason}")
            nearest += [rule.nearest] if rule is not None and rule.nearest else []
    if refused:
        hint = f"train with {', '.join(nearest)}" if nearest else OTHERWISE
        raise ArgumentError(message(call, "; ".join(refused), hint=hint))


def _changed(model: nn.Module) -> str:
    """Return why a model does not compute what its settings say, or ""."""
    if contains_hooks(model):
        return "the model has hooks, which an export would leave out"
    foreign = {
        type(each).__name__
        for each in model.modules()
        if not type(each).__module__.startswith(("regard.", "torch.nn."))
    }
    return f"the model has replaced layers: {', '.join(sorted(foreign))}" if foreign else ""


def compared(
    what: str,
    texts: Sequence[str],
    ours: Sequence[tuple[str, float]],
    theirs: Sequence[tuple[str, float]],
) -> Check:
    """Return the Check of pairs (output, score); both scores are computed by the run."""
    rows = zip(texts, ours, theirs, strict=True)
    different = [Difference(text, a[0], b[0], a[1] - b[1]) for text, a, b in rows if a[0] != b[0]]
    return Check(what, len(texts), tuple(different))


def side_tokenizers(run: Any) -> dict[str, Tokenizer]:
    """Return the tokenizers of a run by the names of their files in the run folder."""
    if hasattr(run, "source_tokenizer"):
        return {"source.tokenizer": run.source_tokenizer, "target.tokenizer": run.target_tokenizer}
    return {"text.tokenizer": run.tokenizer}
