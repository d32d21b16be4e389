"""The folder of a run of several seeds: each seed is an ordinary run folder in it.

runs/x/config.toml     the settings, with seeds = [0, 1, 2]; also the tokenizers, data.json and manifest
runs/x/log.jsonl       evaluations: the mean over the seeds, the deviation, and the scores of each seed
runs/x/seed-0/         a run folder as `regard train --seed 0` writes it: every command and load() read it
runs/x/seed-0.log      what `regard train` printed for this seed, if the seeds are trained side by side
runs/x/failed.json     the seeds whose loss became NaN or infinite, if there are any
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from regard.errors import ArgumentError, UnknownName, message
from regard.files.atomic_io import replace
from regard.files.untrusted import naming_damage, parse_json, read_limited
from regard.runs.run_folder import config_of

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
