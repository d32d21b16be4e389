"""Settings: the configuration of a run; read from TOML, validated, merged and compared."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.untrusted import read_limited

__all__ = [
    "Clash",
    "LENGTHS",
    "Section",
    "Training",
    "build",
    "check_names",
    "differences",
    "merged",
    "override",
    "parse_toml",
    "read_toml",
    "to_toml",
    "without_length",
]

Part = Annotated[float, Field(ge=0, lt=1)]
Whole = Annotated[int, Field(ge=1, le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]

LENGTHS = ("steps", "epochs", "minutes")
"""The settings for the length of a run, of which at most one is given."""

LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")

Model = TypeVar("Model", bound=BaseModel)


class Clash(ValueError):
    """Settings of one section that contradict each other: the problem, and what was expected."""

    def __init__(self, problem: str, expected: str):
        super().__init__(problem)
        self.expected = expected


class Section(BaseModel):
    """One table of the configuration: unknown keys and values of a wrong type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Training(Section):
    """Training settings, for any task.

    steps, epochs, minutes: length of the run, at most one of them; by default a number of epochs that
    depends on the data. minutes become a number of steps once the speed is known, so that the learning rate
    depends on the step alone.
    tokens: batch size in tokens per process, padding included. accumulate: batches per step.
    rate: highest learning rate. beta: beta2 of AdamW. clip: maximum gradient norm (0 disables clipping).
    smoothing: label smoothing. guided: weight of the guided-alignment loss. ema: decay of the moving average
    of the weights (0 disables it).
    precision: "tf32" is float32 with TF32 matrix products; "auto" is bfloat16 on GPUs that support it.
    capture: use one CUDA graph per batch length; "auto" does so for recurrent models on GPUs.
    keep: number of checkpoints to keep. best: the score that selects the best checkpoint. patience: number
    of evaluations without a better score after which training stops.

    >>> Training(steps=100, rate=1e-3).schedule
    'cosine'
    """

    steps: Whole | None = None
    epochs: Positive | None = None
    minutes: Positive | None = None
    tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    accumulate: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    rate: Positive = 1e-3
    schedule: Literal["constant", "cosine", "inverse-root"] = "cosine"
    warm_up: Annotated[int, Field(ge=0, le=2**63 - 1)] = 200
    weight_decay: Weight = 0.01
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.98
    clip: Annotated[float, Field(ge=0)] = 1.0  # inf disables clipping, as 0 does
    smoothing: Part = 0.1
    word_dropout: Part = 0.0
    guided: Weight = 0.0
    ema: Part = 0.0
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    compile: bool = False
    capture: Literal[True, False, "auto"] = "auto"
    evaluate_every: Whole | None = None
    save_every: Whole | None = None
    log_every: Whole = 50
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = 2
    best: Literal["loss", "bleu", "chrf", "exact"] = "bleu"
    patience: Whole | None = None
    tensorboard: bool = False

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if sum(getattr(self, name) is not None for name in LENGTHS) > 1:
            raise ValueError(f"one of {', '.join(LENGTHS)}")
        return self


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; raise DataError with the line of a syntax error."""
    try:
        content = read_limited(path, "config", named=True)
    except FileNotFoundError:
        raise DataError(message(str(path), "there is no such file")) from None
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    return parse_toml(content, path)


def parse_toml(content: bytes, path: str | Path) -> dict[str, Any]:
    """Parse TOML; path names the file in errors."""
    try:
        text = content.decode("utf-8")
        if LONG_KEY.search(text):  # tomllib takes quadratic time for it
            raise ValueError("a key has more than 64 parts")
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(message(str(path), f"is not UTF-8 at byte {error.start + 1}")) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of too many digits
        problem = "too many levels of nesting" if isinstance(error, RecursionError) else str(error)
        hint = "the format is TOML: [section] and key = value lines, strings in quotes"
        raise DataError(message(str(path), problem, hint=hint)) from None


def to_toml(content: Mapping[str, Any]) -> str:
    """Return settings as TOML; values that are None are left out.

    >>> print(to_toml({"seed": 1, "data": {"source": ["a.ko"], "tsv": None}}).strip())
    seed = 1
    <BLANKLINE>
    [data]
    source = [
        "a.ko",
    ]
    """
    import tomli_w

    def without_none(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}

    return tomli_w.dumps(without_none(content))


def override(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `--set a.b=c` assignments into nested settings. A value that is not valid TOML is a string.

    >>> override(["training.rate=0.001", "model.name=luong", "data.joint=true"])
    {'training': {'rate': 0.001}, 'model': {'name': 'luong'}, 'data': {'joint': True}}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            problem, hint = "this is not a setting", "--set training.rate=0.001"
            raise ArgumentError(message(f"--set {assignment}", problem, expected="a.b=value", hint=hint))
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # also for integers of thousands of digits
            value = text
        place = settings
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ArgumentError(message(f"--set {assignment}", f"{key} has a value already"))
        place[keys[-1]] = value
    return settings


def merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings; later ones override earlier ones, and None values are ignored.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "b": None}})
    {'a': {'b': 1, 'c': 3}}
    """
    result = dict(first)
    for other in others:
        for key, value in other.items():
            if isinstance(value, Mapping):
                below = result.get(key)
                result[key] = merged(below if isinstance(below, Mapping) else {}, value)
            elif value is not None:
                result[key] = value
    return result


def without_length(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `before` without the length of training, if the settings `given` set a length.

    >>> without_length({"training": {"steps": 9, "rate": 0.1}}, {"training": {"minutes": 2.0}})
    {'training': {'rate': 0.1}}
    """
    training = given.get("training") or {}
    if not isinstance(training, Mapping) or all(training.get(name) is None for name in LENGTHS):
        return dict(before)
    others = {name: value for name, value in before.get("training", {}).items() if name not in LENGTHS}
    return {**before, "training": others}


def build(kind: type[Model], content: Mapping[str, Any], place: str) -> Model:
    """Validate nested values and return an instance of `kind`. Errors name the key and suggest a known one.

    place: where the values come from, for errors.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        keys = [
            str(key) for key in first["loc"] if "[" not in str(key)
        ]  # such as list[int], one of several types
        if first["type"] == "extra_forbidden":
            raise _unknown(kind, keys, place) from None
        problem = f"{'.'.join(keys) or 'the configuration'} is {_short(first.get('input'))}"
        if first["type"] == "missing":
            problem = f"{'.'.join(keys)} is missing"
        elif first["type"] == "value_error":
            problem = f"the settings in [{'.'.join(keys)}] contradict each other"
        expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if isinstance(clash := first.get("ctx", {}).get("error"), Clash):
            problem, expected = f"[{'.'.join(keys)}]: {clash}", clash.expected
        hint = ""
        if first["type"] == "list_type":
            expected, hint = "a list", f"{'.'.join(keys)}={_listed(first.get('input'))}"
        raise ArgumentError(message(place, problem, expected=expected, hint=hint)) from None


def check_names(kind: type[BaseModel], content: Mapping[str, Any], place: str) -> None:
    """Raise UnknownName for keys that `kind` does not have; values and missing keys are not checked.

    place: where the keys come from, for errors.
    """
    try:
        kind.model_validate(content)
    except ValidationError as error:
        for each in error.errors():
            if each["type"] == "extra_forbidden":
                raise _unknown(kind, [str(key) for key in each["loc"]], place) from None


def _unknown(kind: type[BaseModel], keys: list[str], place: str) -> UnknownName:
    inside = f" in [{'.'.join(keys[:-1])}]" if keys[:-1] else ""
    known = _section(kind, keys[:-1]).model_fields
    guess = "" if inside else _inside_a_section(kind, keys[-1])
    where = inside if place == "the settings" else f"{inside} in {place}"
    return UnknownName(f"setting{where}:" if where else "setting", keys[-1], known, guess=guess)


def _inside_a_section(kind: type[BaseModel], name: str) -> str:
    """The full name of a setting that is given without its section: "training.rate"; "" if there is none."""
    for key in kind.model_fields:
        section = _section(kind, [key])
        if isinstance(section, type) and issubclass(section, BaseModel) and name in section.model_fields:
            return f"{key}.{name}"
    return ""


def _listed(value: Any) -> str:
    """The value as a TOML list, for a hint."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
    whole = all(isinstance(part, str) and part.isdecimal() for part in parts)
    return f"[{','.join(map(str, parts) if whole else map(json.dumps, parts))}]"


def _section(kind: type[BaseModel], keys: list[str]) -> type[BaseModel]:
    for key in keys:
        field = kind.model_fields.get(key)
        if field is None or not isinstance(field.annotation, type):
            break
        kind = field.annotation
    return kind


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def differences(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> list[str]:
    """Compare nested settings; return one line per difference.

    >>> differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2, "d": "x"})
    ['a.b: 1 -> 3', "d: not set -> 'x'"]
    """
    lines = []
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key), after.get(key)
        name = f"{above}{key}"
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            lines += differences(old or {}, new or {}, f"{name}.")
        elif old != new:
            shown = ["not set" if value is None else _short(value) for value in (old, new)]
            lines.append(f"{name}: {shown[0]} -> {shown[1]}")
    return lines
