"""Damaged and hostile run folders: each mutation is detected, or does not change any output."""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.conftest import seed
from tests.reliability.damaged_runs import KINDS, Original, fault, limit_memory, warm_up
from tests.reliability.mutations import Mutation, mutations

QUICK, QUICK_RESUMED = 140, 10
MANY, MANY_RESUMED = 9_000, 1_000
"""Numbers of mutated runs that are loaded and shown, and of those that are resumed."""

HASHED = True
"""Whether run folders have hashes of the tokenizers and of config.toml. Without them, changes to these files
cannot be detected, and the quick sample leaves them out."""

UNHASHED = ("config.toml", "source.tokenizer", "target.tokenizer")

GROWTH = 1 << 29
"""Bytes by which the quick sample may raise the peak memory of the process."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original.made(tmp_path_factory.mktemp("mutated") / "words", "words")


def detectable(folder: Path, count: int) -> Iterator[Mutation]:
    """Return `count` mutations of a folder, without those that only hashes detect if HASHED is False."""
    every = mutations(folder, seed(), 2 * count)
    chosen = (each for each in every if HASHED or not (each.file in UNHASHED and each.changes_content))
    return islice(chosen, count)


def test_sample_of_mutations_is_detected_or_harmless(original: Original, tmp_path: Path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    faults = []
    for folder, count, resumed in (("run", QUICK, False), ("killed", QUICK_RESUMED, True)):
        for mutation in detectable(original.place / folder, count):
            if problem := fault(original, mutation, tmp_path / "work", resumed):
                faults.append(f"{mutation}: {problem}")
    assert faults == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < GROWTH


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_mutations_are_detected_or_harmless(kind: str, tmp_path: Path):
    original = Original.made(tmp_path / kind, kind)
    workers = len(os.sched_getaffinity(0))
    parts = [
        (original, seed(), first, workers, resumed) for resumed in (False, True) for first in range(workers)
    ]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start) as pool:
        results = list(pool.map(_faults, parts))
    assert [each for faults, _ in results for each in faults] == []
    assert sum(count for _, count in results) == (MANY + MANY_RESUMED) // len(KINDS)


def _start() -> None:
    torch.set_num_threads(1)
    limit_memory()


def _faults(part: tuple[Original, int, int, int, bool]) -> tuple[list[str], int]:
    """Return the faults of the mutations first, first + step, ..., and the number of these mutations."""
    original, number, first, step, resumed = part
    warm_up(original)
    folder = original.place / ("killed" if resumed else "run")
    work = original.place / f"work-{first}-{resumed}"
    every = mutations(folder, number, (MANY_RESUMED if resumed else MANY) // len(KINDS))
    texts = {str(each): fault(original, each, work, resumed) for each in islice(every, first, None, step)}
    return [f"{mutation}: {text}" for mutation, text in texts.items() if text], len(texts)
