"""Run folder: read, write and compare the settings of a run and the hashes of its data and files.

    config.toml     the settings
    data.json       hashes of the data
    manifest.json   {"version", "files": {name: {"size", "sha256"}}, "settings": {...}, "sha256"}

In the manifest, "sha256" is the hash of all other entries. If a tokenizer or the number of heads was changed
after training, the run often loads without an error, but its outputs are wrong. So when a run is loaded, the
settings that affect the outputs are checked. When a run is resumed, all settings are checked. Comments and
the order of settings in config.toml may change. A run folder of an earlier version of Regard has no manifest,
and is loaded without these checks.

In the folder of a run of several seeds, each seed is an ordinary run folder:

    runs/x/config.toml  the settings, with seeds = [0, 1, 2]; also the tokenizers, data.json and manifest
    runs/x/log.jsonl    evaluations: the mean over the seeds, the deviation, and the scores of each seed
    runs/x/seed-0/      a run folder as `regard train --seed 0` writes it: every command and load() read it
    runs/x/seed-0.log   what `regard train` printed for this seed, if the seeds are trained side by side
    runs/x/failed.json  the seeds whose loss became NaN or infinite, if there are any
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, DataError, UnknownName, message, shell_word, shown, similar_path
from regard.files.atomic_io import Written, failed, replace
from regard.files.folder_lock import NAME as LOCK
from regard.files.untrusted import naming_damage, open_regular, parse_json, read_limited
from regard.training.settings import differences, parse_toml, to_toml

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

CONFIG, DATA = "config.toml", "data.json"

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1

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
        near = "" if os.path.lexists(folder) else similar_path(folder, folder=True)
        hint = near or "give a run folder, which regard train --output writes"
        if folder.is_file():
            problem = "this is a file, not a run folder"
            hint = f"give its folder: {shown(folder.parent)}" if is_run(folder.parent) else hint
        if inside := _runs_inside(folder):
            hint = f"it contains run folders: {', '.join(inside)}"
        if step := checkpoint_of(folder):
            problem = "this is a checkpoint, not a run folder"
            hint = (
                f"give its run folder, {shown(folder.parent)}; commands that use a trained model select the "
                f"checkpoint by --checkpoint {step}"
            )
        if os.path.lexists(folder / "config.json"):
            hint = f'for a Hugging Face model: regard view --huggingface {shell_word(folder)} "..."'
        if os.path.lexists(folder / LOCK):
            problem = "training has not begun, or failed before it began: the folder has no config.toml"
            hint = f"regard train --output {shell_word(folder)} can train into this folder"
        raise DataError(message(str(folder), problem, hint=hint)) from None
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    return parse_toml(content, path)


def checkpoint_of(folder: Path) -> str:
    """Return the number of the training step if a folder is a checkpoint of a run, else ""."""
    step = folder.name.removeprefix("step-")
    return str(int(step)) if step != folder.name and step.isdecimal() and is_run(folder.parent) else ""


def _runs_inside(folder: Path) -> list[str]:
    """Return the paths of run folders directly inside a folder, at most LISTED, to be printed."""
    try:
        inside = sorted(each for each in folder.iterdir() if is_run(each))
    except OSError:
        return []
    listed = [shown(each) for each in inside[:LISTED]]
    return [*listed, "..."] if len(inside) > len(listed) else listed


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
    with suppress(FileNotFoundError), naming_damage(path, hint=hint):
        fingerprints = parse_json(read_limited(path, "json"))
        if isinstance(fingerprints, dict) and all(isinstance(text, str) for text in fingerprints.values()):
            return fingerprints
        raise ValueError("it must be a JSON object whose values are strings")
    return None


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


def write_config_and_manifest(task: type[RunTask], folder: Path, settings: Mapping[str, Any]) -> None:
    """Write config.toml and the manifest that belongs to it.

    task: the task of the run. The hashes of its files are saved in the manifest.
    settings: nested as in config.toml. The manifest has only the names of the data files, not their folders.

    An old manifest with other content is removed first. If the process is killed between the two writes, the
    folder has no manifest. So the folder is not reported as damaged.
    """
    path = folder / MANIFEST
    files = {name: _hashed(folder / name) for name in task.files}
    listed = {name: written._asdict() for name, written in files.items()}
    manifest = {"version": MANIFEST_VERSION, "files": listed}
    manifest["settings"] = task.settings_type.without_folders(settings)
    text = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1) + "\n"
    with suppress(OSError):
        if read_limited(path, "json") != text.encode():
            path.unlink(missing_ok=True)
    write_config(folder, settings)
    _write(path, text)


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
    hashes, before = _read_manifest(path, files)
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


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _hashed(path: Path, expected: int | None = None) -> Written:
    """Return the size in bytes and the SHA-256 hash of a file.

    expected: the size that the file should have, or None if it is not known. If the file has another size,
        the hash is not computed and is "", because a damaged file may be very large.
    """
    try:
        with naming_damage(path), open(path, "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            if expected is not None and size != expected:
                return Written(size, "")
            return Written(size, hashlib.file_digest(file, "sha256").hexdigest())
    except FileNotFoundError:
        hint = "restore it from a copy of the run"
        raise DataError(message(str(path), "this file of the run is missing", hint=hint)) from None


def _read_manifest(path: Path, files: Sequence[str]) -> tuple[dict[str, Written], dict[str, Any]]:
    """Read a manifest. Return the size and hash of each of `files`, by file name, and the settings.

    Raise DataError if the manifest is damaged or has another format version.
    """
    hint = "restore it from a copy of the run, or delete it to load the run without these checks"
    with naming_damage(path, "the manifest is damaged", hint):
        manifest = parse_json(read_limited(path, "json"))
        digest = manifest.pop("sha256")
        hashes = {name: Written(**manifest["files"][name]) for name in files}
        settings, version = manifest["settings"], manifest["version"]
        if digest != _digest(manifest) or not isinstance(settings, dict):
            raise ValueError
    if version != MANIFEST_VERSION:
        problem = f"the manifest has format version {version!r}"
        hint = "if a newer version of Regard wrote this run, update Regard"
        raise DataError(message(str(path), problem, expected=f"version {MANIFEST_VERSION}", hint=hint))
    return hashes, settings


def _write(path: Path, text: str) -> None:
    try:
        replace(path, text.encode())
    except OSError as error:
        raise failed(str(path.parent), f"{path.name} could not be written", error) from None


FAILED = "failed.json"


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the path of the run folder of one seed, such as runs/x/seed-0.

    folder: the run folder of all seeds, such as runs/x.
    """
    return folder / f"seed-{seed}"


def seeds_of(folder: Path) -> list[int] | None:
    """Return the seeds of a run of several seeds, or None for a run of one seed."""
    seeds = config_of(folder).get("seeds")
    return [each for each in seeds if type(each) is int] if isinstance(seeds, list) else None


def folder_of_seed(folder: Path, seed: int) -> Path:
    """Return the run folder of one seed of a run. Raise ArgumentError if the run does not have this seed."""
    seeds = seeds_of(folder)
    if seeds is None:
        problem = f"this is a run of one seed, but seed={seed!r} was requested"
        raise ArgumentError(message(str(folder), problem, hint="leave seed out"))
    if isinstance(seed, bool) or seed not in seeds:
        raise UnknownName(f"seed of {folder}:", str(seed), list(map(str, seeds)))
    return seed_folder(folder, seed)


def check_one_seed(folder: Path) -> None:
    """Raise ArgumentError if the folder is a run of several seeds.

    Such a folder contains no weights. It contains a run folder for each seed.
    """
    seeds = seeds_of(folder)
    if seeds:
        first = seed_folder(folder, seeds[0])
        problem = f"this is a run of {len(seeds)} seeds: each seed is a run folder in it"
        hint = f"use the run folder of a seed, such as {first}; from Python, load(folder, seed={seeds[0]})"
        raise ArgumentError(message(str(folder), problem, hint=hint))


def failures_of(folder: Path) -> dict[int, tuple[int, str]]:
    """Read failed.json: the training step and the problem of each seed whose training has failed.

    The result is empty if no seed has failed.
    """
    path = folder / FAILED
    hint = "delete this file, so that the seeds that failed are trained again"
    with suppress(FileNotFoundError), naming_damage(path, hint=hint):
        content = parse_json(read_limited(path, "json"))
        return {int(seed): (int(each["step"]), str(each["problem"])) for seed, each in content.items()}
    return {}


def write_failures(folder: Path, failures: Mapping[int, tuple[int, str]]) -> None:
    """Write failed.json, or delete it if no seed has failed.

    failures: the training step and the problem of each seed whose training has failed.
    """
    if failures:
        content = {str(seed): {"step": step, "problem": text} for seed, (step, text) in failures.items()}
        replace(folder / FAILED, json.dumps(content, indent=1).encode() + b"\n")
    else:
        (folder / FAILED).unlink(missing_ok=True)
