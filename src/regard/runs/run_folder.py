"""Run folder: read, write and compare the settings (config.toml) and the hashes of the data (data.json)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, DataError, message, shell_word, shown
from regard.files.atomic_io import failed, replace
from regard.files.folder_lock import NAME as LOCK
from regard.files.untrusted import parse_json, read_limited
from regard.training.settings import differences
from regard.training.settings_toml import parse_toml, to_toml

__all__ = [
    "ALIGNMENT",
    "DATA",
    "check_data",
    "check_settings",
    "config_of",
    "fingerprints_of",
    "is_run",
    "made_folder",
    "write_config",
    "write_data",
]

CONFIG, DATA = "config.toml", "data.json"

ALIGNMENT = "alignment.json"
"""The file in which `regard align --choose` saves from which attention weights words are aligned."""

LISTED = 5
"""Maximum number of run folders that an error message lists."""


def is_run(folder: Path) -> bool:
    """Return whether the folder is a run folder: whether it has a config.toml. The file is not read."""
    return os.path.lexists(folder / CONFIG)


def config_of(folder: Path) -> dict[str, Any]:
    """Read the settings of a run from config.toml, as a dict with an entry for each section.

    Raise DataError if there is no config.toml, or if it is not valid TOML.
    """
    path = folder / CONFIG
    try:
        content = read_limited(path, "config")
    except (FileNotFoundError, NotADirectoryError):
        problem = "this is not a run folder: it has no config.toml"
        problem = problem if os.path.lexists(folder) else "no such folder"
        hint = "give a run folder, which regard train --output writes"
        if folder.is_file():
            problem = "this is a file, not a run folder"
            hint = f"give its folder: {shown(folder.parent)}" if is_run(folder.parent) else hint
        if inside := _runs_inside(folder):
            hint = f"it contains run folders: {', '.join(inside)}"
        if os.path.lexists(folder / "config.json"):
            hint = f'for a Hugging Face model: regard view --huggingface {shell_word(folder)} "..."'
        if os.path.lexists(folder / LOCK):
            problem = "training has not begun, or failed before it began: the folder has no config.toml"
            hint = f"regard train --output {shell_word(folder)} can train into this folder"
        raise DataError(message(str(folder), problem, hint=hint)) from None
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    return parse_toml(content, path)


def _runs_inside(folder: Path) -> list[str]:
    """Return the paths of run folders directly inside a folder, at most LISTED, to be printed."""
    try:
        inside = sorted(each for each in folder.iterdir() if is_run(each))
    except OSError:
        return []
    listed = [shown(each) for each in inside[:LISTED]]
    return [*listed, "..."] if len(inside) > LISTED else listed


def made_folder(folder: Path) -> Path:
    """Create a run folder if it does not exist, and return its path. Raise DataError if this fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failed(str(folder), "the folder could not be created", error) from None
    return folder


def write_config(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a run to config.toml."""
    _write(folder / CONFIG, to_toml(settings))


def write_data(folder: Path, fingerprints: Mapping[str, str]) -> None:
    """Write the fingerprints (hashes) of the data of a run to data.json."""
    _write(folder / DATA, json.dumps(dict(fingerprints), indent=2) + "\n")


def check_settings(folder: Path, new: Mapping[str, Any], fixed: Sequence[str] | None = None) -> None:
    """Raise ArgumentError if the settings `new` differ from the settings in config.toml of a run to resume.

    The error message lists each setting that differs.

    fixed: prefixes of the settings to compare, such as "model." or "training.learning_rate". None: all
        settings are compared.
    """
    changes = differences(config_of(folder), new)
    if fixed is not None:
        changes = [line for line in changes if line.partition(": ")[0].startswith(tuple(fixed))]
    if changes:
        hint = "use another --output to start a new run"
        hint = f"use --change to resume with the new settings, or {hint}" if fixed is None else hint
        problem = "the settings differ from those the run was started with\n  " + "\n  ".join(changes)
        raise ArgumentError(message(f"{folder} cannot be resumed", problem, hint=hint))


def fingerprints_of(folder: Path) -> dict[str, str] | None:
    """Read the fingerprints (hashes) of the data at the start of a run, from data.json.

    The result is a dict such as {"train": "5f3a...", "valid": "c07e..."}, or None if there is no data.json.
    """
    path, hint = folder / DATA, "restore the file from a copy, or resume with --change, which ignores it"
    try:
        fingerprints = parse_json(read_limited(path, "json"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}", hint=hint)) from None
    except ValueError as error:
        raise DataError(message(str(path), f"is damaged: {error}", hint=hint)) from None
    if not isinstance(fingerprints, dict) or not all(isinstance(text, str) for text in fingerprints.values()):
        expected = "a JSON object whose values are strings"
        raise DataError(message(str(path), "is damaged", expected=expected, hint=hint))
    return fingerprints


def check_data(folder: Path, fingerprints: Mapping[str, str]) -> None:
    """Raise DataError if the data of a run have changed since its start, so that it cannot be resumed.

    Do nothing if the run folder has no data.json.

    fingerprints: the hashes of the current data. They are compared with the hashes in data.json.
    """
    before = fingerprints_of(folder)
    if before is None:
        return
    changed = [name for name in {**before, **fingerprints} if before.get(name) != fingerprints.get(name)]
    if changed:
        raise DataError(
            message(
                f"{folder} cannot be resumed",
                f"the data have changed since the start of the run: {', '.join(sorted(changed))}",
                hint="use --change to resume with the new data, or another --output to start a new run",
            )
        )


def _write(path: Path, text: str) -> None:
    try:
        replace(path, text.encode())
    except OSError as error:
        raise failed(str(path.parent), f"{path.name} could not be written", error) from None
