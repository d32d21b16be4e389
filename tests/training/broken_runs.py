"""Kill and resume training many times, and compare the results with an uninterrupted run.

python -m tests.training.broken_runs FOLDER KILLS PROCESSES SEED DEVICE [MODEL]
PROCESSES: numbers of processes that train one run, such as 1,2. On cuda, steps are captured as CUDA graphs.
MODEL: the model on cuda, transformer or bahdanau.

The script imports torch once and forks a process per attempt, so that a hundred kills take minutes. It prints
a line of JSON for each number of processes: the number of kills, of kills inside a save, of completed runs,
and how completed runs differ from the uninterrupted one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported by the optimizer; here once, instead of in each fork
from rich.console import Console

from regard.tasks.translation import Machine, train_translation

SETTINGS: dict[str, Any] = {
    "seed": 3,
    "data": {"built_in": "korean", "pairs": 200, "held_out": 8, "tokenizer": "bpe", "subword_sampling": 0.1},
    "model": {"name": "luong", "width": 12, "dropout": 0.2, "feeding": False},
    "training": {
        "steps": 13,
        "batch_tokens": 200,
        "accumulation_steps": 2,
        "ema": 0.9,
        "word_dropout": 0.1,
        "guided_alignment": 0.1,
        "evaluate_every": 7,
        "save_every": 2,
        "log_every": 3,
    },
    "evaluation": {"sentences": 2, "samples": 1},
}
CAPTURED: dict[str, Any] = {
    **SETTINGS,
    "training": {**SETTINGS["training"], "guided_alignment": 0.0, "capture": True},
}
"""Settings on a GPU, for a model whose steps are captured as CUDA graphs."""

MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"name": "transformer", "width": 32, "heads": 2, "inner": 32, "layers": 1, "dropout": 0.2},
    "bahdanau": {"name": "bahdanau", "width": 12, "dropout": 0.2},
}
"""Models on a GPU. The kernels of additive attention take a minute to compile."""

MODEL = sys.argv[6] if len(sys.argv) > 6 else "transformer"
FILES = ("weights.safetensors", "raw.safetensors", "optimizer.safetensors")
CALLS = ("fsync", "replace", "rename", "unlink")
"""File operations of a save; a process can be killed just before any of them."""


def train(folder: Path, rank: int, world: int, port: int, fatal: int | None, device: str) -> None:
    """Resume training in one process, which kills itself before its call number `fatal` of CALLS."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    if fatal is not None:
        left = [fatal]
        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name), left))
    console = Console(file=open(os.devnull, "w"))  # noqa: SIM115  (lives as long as the process)
    settings = {**CAPTURED, "model": MODELS[MODEL]} if device == "cuda" else SETTINGS
    train_translation(settings, folder, resume=True, machine=Machine(device), console=console)


def deadly(call: Any, left: list[int]) -> Any:
    """Wrap a function so that the process is killed once left[0] calls have been made."""

    def counted(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)

    return counted


def attempt(folder: Path, world: int, delay: float | None, fatal: int | None, device: str) -> bool:
    """Start a run and kill it after a delay or at a call; return whether it completed before that."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            status = 1
            try:
                train(folder, rank, world, port, fatal if rank == 0 else None, device)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    began, codes = time.monotonic(), dict[int, int]()
    while len(codes) < world:
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
        late = delay is not None and time.monotonic() - began > delay
        # As torchrun does: if one process fails, all are killed.
        if late or any(codes.values()):
            for child in children:
                if child not in codes:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    codes[child] = -signal.SIGKILL
        time.sleep(0.005)
    wrong = set(codes.values()) - {0, -signal.SIGKILL}
    if wrong and -signal.SIGKILL not in codes.values():
        raise SystemExit(f"a run failed by itself: {codes}")
    return not any(codes.values())


def outcome(folder: Path) -> dict[str, Any]:
    """Return the bytes of the last checkpoint, and the log without times and events."""
    last = folder / (folder / "latest").read_text().strip()
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    varying = {"time", "tokens_per_second", "memory", "cuda_memory"}
    return {
        "files": {name: (last / name).read_bytes() for name in FILES},
        "best": (folder / "best").read_text(),
        "capture": [record.get("text") for record in records if record["kind"] == "capture"],
        "log": [
            {key: value for key, value in record.items() if key not in varying}
            for record in records
            if record["kind"] in ("training", "evaluation")
        ],
    }


def describe_difference(expected: Any, actual: Any) -> str:
    """Describe a difference: the files that differ, or the number of records and the first that differs."""
    if isinstance(expected, dict):
        return f", {[name for name in expected if expected[name] != actual[name]]}"
    if not isinstance(expected, list):
        return ""
    unlike = [(a, b) for a, b in zip(expected, actual, strict=False) if a != b]
    return f", {len(expected)} and {len(actual)} records, {unlike[:1]}"


def main(folder: Path, kills: int, world: int, seed: int, device: str) -> None:
    """Kill runs until there are enough kills, and compare all completed runs with an uninterrupted one."""
    chance = random.Random(seed)
    began = time.monotonic()
    if not attempt(folder / "unbroken", world, None, None, device):
        raise SystemExit("the unbroken run did not end")
    whole = time.monotonic() - began
    expected = outcome(folder / "unbroken")
    if expected.pop("capture"):
        raise SystemExit("steps were not captured")
    killed = inside = compared = 0
    different: list[str] = []
    while killed < kills or not compared:
        name = f"broken-{compared}"
        at_call = chance.random() < 0.5
        fatal = chance.randrange(120) if at_call and killed < kills else None
        delay = chance.uniform(0.0, whole) if not at_call and killed < kills else None
        if attempt(folder / name, world, delay, fatal, device):
            compared += 1
            actual = outcome(folder / name)
            unlike = [key for key in expected if actual[key] != expected[key]]
            different += [f"{name}: {key}{describe_difference(expected[key], actual[key])}" for key in unlike]
        else:
            killed, inside = killed + 1, inside + at_call
    print(json.dumps({"killed": killed, "inside": inside, "compared": compared, "different": different}))


if __name__ == "__main__":
    for processes in map(int, sys.argv[3].split(",")):
        folder = Path(sys.argv[1], f"processes-{processes}")
        main(folder, int(sys.argv[2]), processes, int(sys.argv[4]), sys.argv[5])
