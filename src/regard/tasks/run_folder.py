"""Run folder: what a run was made with, beside its checkpoints, and whether that is still the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, DataError, message
from regard.training.durable import failed, replace
from regard.training.settings import differences, read_toml, to_toml

__all__ = [
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


def is_run(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / CONFIG).is_file()


def config_of(folder: Path) -> dict[str, Any]:
    """The settings of a run, as nested values."""
    if not is_run(folder):
        problem = "this is no run folder: it has no config.toml"
        hint = "give a folder that regard train --out made"
        raise DataError(message(str(folder), problem, hint=hint))
    return read_toml(folder / CONFIG)


def made_folder(folder: Path) -> Path:
    """The folder, which is there from now on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failed(str(folder), "the folder could not be made", error) from None
    return folder


def write_config(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a run."""
    _write(folder / CONFIG, to_toml(settings))


def write_data(folder: Path, fingerprints: Mapping[str, str]) -> None:
    """Write what the data of a run were."""
    _write(folder / DATA, json.dumps(dict(fingerprints), indent=2) + "\n")


def check_settings(folder: Path, new: Mapping[str, Any], fixed: Sequence[str] | None = None) -> None:
    """Refuse settings that are not those of the run, and show the difference.

    fixed: those that count, by name, a section or one setting of it; all unless given.
    """
    found = differences(config_of(folder), new)
    if fixed is not None:
        found = [line for line in found if line.partition(": ")[0].startswith(tuple(fixed))]
    if found:
        hint = "another --out begins anew"
        hint = f"--change takes the new ones all the same; {hint}" if fixed is None else hint
        problem = "the settings are not those it was begun with\n  " + "\n  ".join(found)
        raise ArgumentError(message(f"{folder} cannot be resumed", problem, hint=hint))


def fingerprints_of(folder: Path) -> dict[str, str] | None:
    """The fingerprints of the data that a run was begun with; None where the run has none on file."""
    path = folder / DATA
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        hint = "--change takes the data as they are"
        raise DataError(message(str(path), "cannot be read", hint=hint)) from None


def check_data(folder: Path, fingerprints: Mapping[str, str]) -> None:
    """Refuse data that are not those of the run."""
    before = fingerprints_of(folder)
    if before is None:
        return
    changed = [name for name in {**before, **fingerprints} if before.get(name) != fingerprints.get(name)]
    if changed:
        raise DataError(
            message(
                f"{folder} cannot be resumed",
                f"the data are not those it was begun with: {', '.join(sorted(changed))} changed",
                hint="--change takes the new ones all the same; another --out begins anew",
            )
        )


def _write(path: Path, text: str) -> None:
    try:
        replace(path, text.encode())
    except OSError as error:
        raise failed(str(path.parent), f"{path.name} could not be written", error) from None
