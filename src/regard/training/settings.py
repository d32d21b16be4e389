"""Settings: what a run is made with, read from TOML, checked by name and kind, and compared."""

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
"""The ways to say how long is trained."""

LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")

Made = TypeVar("Made", bound=BaseModel)


class Clash(ValueError):
    """Settings of one section that do not go together: the problem in words, and what was expected."""

    def __init__(self, problem: str, expected: str):
        super().__init__(problem)
        self.expected = expected


class Section(BaseModel):
    """One table of a configuration: unknown keys and values of another kind are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Training(Section):
    """How a model is trained, whatever it is.

    steps, epochs, minutes: how long; the one of them that is given, or a number of steps that suits the data.
    minutes become a number of steps once the speed is known, so that the rate is a function of the step
    alone. tokens: of a batch and process, padding counted. accumulate: batches that make up one step.
    precision: tf32 is float32 with coarser matrix products, on GPUs; auto is bfloat16 on those that have it.
    capture: whether a step is captured in a CUDA graph, one for each length that batches are padded to; auto
    does so where the model is recurrent and the device a GPU.

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
    clip: Annotated[float, Field(ge=0)] = 1.0  # inf is no clipping, as 0 is
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
    """The content of a TOML file that the user named, or an error that says which line is wrong."""
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
            raise ValueError("a key of more than 64 parts")
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(message(str(path), f"is not UTF-8 at byte {error.start + 1}")) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of too many digits
        problem = "too many levels of nesting" if isinstance(error, RecursionError) else str(error)
        hint = "it is TOML: [section] lines, key = value lines, text in quotes"
        raise DataError(message(str(path), problem, hint=hint)) from None


def to_toml(content: Mapping[str, Any]) -> str:
    """Settings as TOML; what is None is left out.

    >>> print(to_toml({"seed": 1, "data": {"source": ["a.ko"], "tsv": None}}).strip())
    seed = 1
    <BLANKLINE>
    [data]
    source = [
        "a.ko",
    ]
    """
    import tomli_w

    def there(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: there(inner) for key, inner in value.items() if inner is not None}

    return tomli_w.dumps(there(content))


def override(assignments: Iterable[str]) -> dict[str, Any]:
    """The settings that `--set a.b=c` gives: a value is TOML where it can be read so, else text.

    >>> override(["training.rate=0.001", "model.name=luong", "data.joint=true"])
    {'training': {'rate': 0.001}, 'model': {'name': 'luong'}, 'data': {'joint': True}}
    """
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            problem, hint = "this is no setting", "--set training.rate=0.001"
            raise ArgumentError(message(f"--set {assignment}", problem, expected="a.b=value", hint=hint))
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # also for integers of thousands of digits
            value = text
        place = found
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ArgumentError(message(f"--set {assignment}", f"{key} was given a value before"))
        place[keys[-1]] = value
    return found


def merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, those of a later one over those of an earlier one; None says nothing.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "b": None}})
    {'a': {'b': 1, 'c': 3}}
    """
    whole = dict(first)
    for other in others:
        for key, value in other.items():
            if isinstance(value, Mapping):
                below = whole.get(key)
                whole[key] = merged(below if isinstance(below, Mapping) else {}, value)
            elif value is not None:
                whole[key] = value
    return whole


def without_length(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without how long is trained, where others that come over them say that in any way.

    >>> without_length({"training": {"steps": 9, "rate": 0.1}}, {"training": {"minutes": 2.0}})
    {'training': {'rate': 0.1}}
    """
    said = given.get("training") or {}
    if not isinstance(said, Mapping) or all(said.get(name) is None for name in LENGTHS):
        return dict(before)
    kept = {name: value for name, value in before.get("training", {}).items() if name not in LENGTHS}
    return {**before, "training": kept}


def build(kind: type[Made], content: Mapping[str, Any], place: str) -> Made:
    """Settings of this kind from nested values; an error names the key, its section and the nearest known.

    place: where the values come from, for the error.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        keys = [str(key) for key in first["loc"] if "[" not in str(key)]  # list[int], of several kinds
        if first["type"] == "extra_forbidden":
            raise _unknown(kind, keys, place) from None
        problem = f"{'.'.join(keys) or 'the whole'} is {_short(first.get('input'))}"
        if first["type"] == "missing":
            problem = f"{'.'.join(keys)} is not given"
        elif first["type"] == "value_error":
            problem = f"what [{'.'.join(keys)}] says does not go together"
        expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if isinstance(clash := first.get("ctx", {}).get("error"), Clash):
            problem, expected = f"[{'.'.join(keys)}]: {clash}", clash.expected
        hint = ""
        if first["type"] == "list_type":
            expected, hint = "a list", f"{'.'.join(keys)}={_listed(first.get('input'))}"
        raise ArgumentError(message(place, problem, expected=expected, hint=hint)) from None


def check_names(kind: type[BaseModel], content: Mapping[str, Any], place: str) -> None:
    """Refuse names that no setting of this kind has; the values, and what is missing, are let be.

    place: where they come from, for the error.
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
    """The full name of a setting that was given without its section: "training.rate"; "" if there is none."""
    for key in kind.model_fields:
        section = _section(kind, [key])
        if isinstance(section, type) and issubclass(section, BaseModel) and name in section.model_fields:
            return f"{key}.{name}"
    return ""


def _listed(value: Any) -> str:
    """A value that should have been a list, as one."""
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
    """What is not the same in two nested settings, a line for each.

    >>> differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2, "d": "x"})
    ['a.b: 1 -> 3', "d: not set -> 'x'"]
    """
    found = []
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key), after.get(key)
        name = f"{above}{key}"
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            found += differences(old or {}, new or {}, f"{name}.")
        elif old != new:
            shown = ["not set" if value is None else _short(value) for value in (old, new)]
            found.append(f"{name}: {shown[0]} -> {shown[1]}")
    return found
