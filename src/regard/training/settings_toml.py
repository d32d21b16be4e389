"""Settings in TOML: read and write config.toml and recipes, and parse the values of --set."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, DataError, message, printable
from regard.files.untrusted import read_limited
from regard.training.setting_names import named_tables

LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")

LINE = re.compile(r"\(at line (\d+)")
"""The line of a syntax error, in the message of tomllib."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read settings from a TOML file.

    Raises DataError if the file cannot be read. For a syntax error, the message says in which line it is.
    """
    try:
        content = read_limited(path, "config", named=True)
    except FileNotFoundError:
        folder, hint = Path(path).parent, ""
        if folder.name == "recipes" and not folder.exists():
            hint = "the recipes are in the repository of Regard, not in the installed package"
        raise DataError(message(str(path), "there is no such file", hint=hint)) from None
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    return parse_toml(content, path)


def parse_toml(content: bytes, path: str | Path) -> dict[str, Any]:
    """Parse settings in TOML.

    content: the content of the file.
    path: the path of the file, for error messages.
    """
    try:
        text = content.decode("utf-8")
        if LONG_KEY.search(text):  # tomllib is slow for keys with many parts (a.b.c...): quadratic time
            raise ValueError("a key has more than 64 parts")
        settings = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(message(str(path), f"is not UTF-8 at byte {error.start + 1}")) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: invalid TOML, or a number with too many digits
        problem = "too many levels of nesting" if isinstance(error, RecursionError) else str(error)
        hint = "write the file in TOML: lines [section] and key = value, each key once, strings in quotes"
        if place := LINE.search(problem):
            line = text.split("\n")[int(place[1]) - 1].strip()
            problem = f"{problem}: {printable(line[:60])}"
        if Path(path).suffix in (".yaml", ".yml"):
            hint = f"YAML is not read; {hint}"
        raise DataError(message(str(path), problem, hint=hint)) from None
    return named_tables(settings)


def to_toml(content: Mapping[str, Any]) -> str:
    """Return settings as TOML, without the values that are None.

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
    """Parse the values of the option --set, such as "training.steps=9", and return them as nested settings.

    A value is parsed as TOML. If it is not valid TOML, it is a string.

    >>> override(["training.learning_rate=0.001", "model.name=luong", "data.joint=true"])
    {'training': {'learning_rate': 0.001}, 'model': {'name': 'luong'}, 'data': {'joint': True}}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = [key.strip() for key in name.split(".")]
        if not equals or not all(keys):
            problem, hint = (
                "this is not a setting of the form name=value",
                "--set training.learning_rate=0.001",
            )
            raise ArgumentError(message(f"--set {assignment}", problem, expected="a.b=value", hint=hint))
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # ValueError also for integers of thousands of digits
            value = text
        place = settings
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ArgumentError(message(f"--set {assignment}", f"{key} has a value already"))
        place[keys[-1]] = value
    return named_tables(settings)
