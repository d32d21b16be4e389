"""Command-line options of `regard train` for files of stories: --jsonl and --valid-jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import ArgumentError, message

__all__ = ["OWN_OPTIONS", "story_files"]

OWN_OPTIONS = ("jsonl", "valid_jsonl")
"""The options of `regard train` that story_files() reads."""


def story_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of section [data] for the options --jsonl and --valid-jsonl of `regard train`.

    options: the values of all command-line options. Only "jsonl" and "valid_jsonl" are used.

    >>> story_files({"jsonl": ["own.jsonl"]})
    {'train_file': ['own.jsonl'], 'format': 'jsonl'}
    """
    names = {"jsonl": "train_file", "valid_jsonl": "valid_file"}
    data = {name: options[option] for option, name in names.items() if options.get(option)}
    if not data:
        return {}
    for name in data:
        if options.get(name):
            option = name.replace("_", "-")
            problem = f"--{option} and --{option.replace('train-file', 'jsonl').replace('file', 'jsonl')}"
            expected = "one of them"
            raise ArgumentError(message("regard train", f"{problem} cannot be combined", expected=expected))
    return data | {"format": "jsonl"}
