"""Run manifest: the settings of a run, and hashes of its tokenizers.

    manifest.json   {"version", "files": {name: {"size", "sha256"}}, "settings": {...}, "sha256"}

The last entry, "sha256", is the hash of all other entries. If a tokenizer or the number of heads was changed
after training, the run often loads without an error, but its outputs are wrong. So when a run is loaded, the
settings that affect the outputs are checked. When a run is resumed, all settings are checked. Comments and
the order of settings in config.toml may change. A run folder of an earlier version of Regard has no manifest,
and is loaded without these checks.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import DataError, message
from regard.files.atomic_io import Written, failed, replace
from regard.files.untrusted import open_regular, parse_json, read_limited
from regard.runs.run_folder import CONFIG, write_config
from regard.training.settings import differences

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

__all__ = ["MANIFEST", "check_manifest", "write_config_and_manifest"]

MANIFEST = "manifest.json"
VERSION = 1


def write_config_and_manifest(task: type[RunTask], folder: Path, settings: Mapping[str, Any]) -> None:
    """Write config.toml and the manifest that belongs to it.

    task: the task of the run. The hashes of its files are saved in the manifest.
    settings: nested as in config.toml. The manifest has only the names of the data files, not their folders.

    An old manifest with other content is removed first. If the process is killed between the two writes, the
    folder has no manifest. So the folder is not reported as damaged.
    """
    path = folder / MANIFEST
    files = {name: _hashed(folder / name) for name in task.files}
    content = _content(files, task.settings_type.without_folders(settings))
    try:
        if _unlike(path, content):
            path.unlink(missing_ok=True)
        write_config(folder, settings)
        replace(path, content)
    except OSError as error:
        raise failed(str(folder), f"{MANIFEST} could not be written", error) from None


def check_manifest(
    folder: Path,
    files: Sequence[str],
    config: Mapping[str, Any],
    checked: Callable[[Mapping[str, Any]], dict[str, Any]],
    fixed: Sequence[str] | None = None,
) -> None:
    """Raise DataError if a file or a setting has changed since the run was trained.

    files: names of files in the folder, see write_config_and_manifest().
    config: the settings in config.toml.
    checked: a function that adds the default values of all missing settings, and removes the folders of data
        files. So a setting that a later version of Regard has added does not count as a difference.
    fixed: prefixes of the settings to check, such as "model.". None: all settings are checked.
    """
    path = folder / MANIFEST
    if not path.is_symlink() and not path.exists():
        return
    hashes, before = _read(path, files)
    for name in files:
        actual = _hashed(folder / name, hashes[name].size)
        if actual != hashes[name]:
            digest = f", SHA-256 {actual.sha256[:12]}…" if actual.sha256 else ""
            problem = f"this is not the file that the run was trained with: {actual.size:,} bytes{digest}"
            hint = "restore the file from a copy of the run"
            expected = f"{hashes[name].size:,} bytes, SHA-256 {hashes[name].sha256[:12]}…"
            raise DataError(message(str(folder / name), problem, expected=expected, hint=hint))
    changed = differences(checked(before), checked(config))
    if fixed is not None:
        changed = [line for line in changed if line.partition(": ")[0].startswith(tuple(fixed))]
    if changed:
        problem = "the run was trained with other settings\n  " + "\n  ".join(changed)
        hint = "change them back in config.toml"
        hint = f"{hint}, or accept them with regard train --resume --change" if fixed is None else hint
        raise DataError(message(str(folder / CONFIG), problem, hint=hint))


def _unlike(path: Path, content: bytes) -> bool:
    try:
        return read_limited(path, "json") != content
    except OSError:
        return True


def _content(files: Mapping[str, Written], settings: Mapping[str, Any]) -> bytes:
    listed = {name: written._asdict() for name, written in files.items()}
    manifest = {"version": VERSION, "files": listed, "settings": settings}
    return json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1).encode() + b"\n"


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _hashed(path: Path, expected: int | None = None) -> Written:
    """Return the size in bytes and the SHA-256 hash of a file.

    expected: the size that the file should have, or None if it is not known. If the file has another size,
        the hash is not computed and is "", because a damaged file may be very large.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            if expected is not None and size != expected:
                return Written(size, "")
            return Written(size, hashlib.file_digest(file, "sha256").hexdigest())
    except FileNotFoundError:
        hint = "restore it from a copy of the run"
        raise DataError(message(str(path), "this file of the run is missing", hint=hint)) from None
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None


def _read(path: Path, files: Sequence[str]) -> tuple[dict[str, Written], dict[str, Any]]:
    """Read a manifest. Return the size and hash of each of `files`, by file name, and the settings.

    Raise DataError if the manifest is damaged or has another format version.
    """
    try:
        manifest = parse_json(read_limited(path, "json"))
        digest = manifest.pop("sha256")
        hashes = {name: Written(**manifest["files"][name]) for name in files}
        settings, version = manifest["settings"], manifest["version"]
        if digest != _digest(manifest) or not isinstance(settings, dict):
            raise ValueError
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        hint = "restore it from a copy of the run, or delete it to load the run without these checks"
        raise DataError(message(str(path), "the manifest is damaged", hint=hint)) from None
    if version != VERSION:
        problem = f"the manifest has format version {version!r}"
        hint = "if a newer version of Regard wrote this run, update Regard"
        raise DataError(message(str(path), problem, expected=f"version {VERSION}", hint=hint))
    return hashes, settings
