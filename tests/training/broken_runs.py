"""Runs that are killed again and again.

python -m tests.training.broken_runs FOLDER KILLS PROCESSES SEED DEVICE: on cuda steps are captured.

A script of its own: it imports torch once, starts nothing, and forks a process for each attempt, so that a
hundred kills take minutes. It prints, as JSON, how often a run was killed, how often inside a save, and
whether every run that reached its end has the bits of the one that was never stopped.
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
import torch._dynamo  # the optimizer imports it when it is made: once here, not once a fork
from rich.console import Console

from regard.tasks.translation import Machine, train_translation

SETTINGS: dict[str, Any] = {
    "seed": 3,
    "data": {"built_in": "korean", "pairs": 200, "held_out": 8, "tokenizer": "bpe", "subword_sampling": 0.1},
    "model": {"name": "luong", "width": 12, "dropout": 0.2, "feeding": False},
    "training": {
        "steps": 30,
        "batch_tokens": 200,
        "accumulation_steps": 2,
        "ema": 0.9,
        "word_dropout": 0.1,
        "guided_alignment": 0.1,
        "evaluate_every": 7,
        "save_every": 2,
        "log_every": 5,
    },
    "evaluation": {"sentences": 2, "samples": 1},
}
CAPTURED: dict[str, Any] = {
    **SETTINGS,
    "model": {"name": "bahdanau", "width": 12, "dropout": 0.2},
    "training": {**SETTINGS["training"], "guided_alignment": 0.0, "capture": True, "steps": 12},
}
"""What is trained on a GPU: a model whose steps are captured, with the additive kernels in them."""

FILES = ("weights.safetensors", "raw.safetensors", "optimizer.safetensors")
CALLS = ("fsync", "replace", "rename", "unlink")
"""What a save does to the disk: a process can be killed just before any of them."""


def train(folder: Path, rank: int, world: int, port: int, fatal: int | None, device: str) -> None:
    """What one process does: train on, and die before the fatal-th of its calls."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    if fatal is not None:
        left = [fatal]
        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name), left))
    console = Console(file=open(os.devnull, "w"))  # noqa: SIM115  (lives as long as the process)
    settings = CAPTURED if device == "cuda" else SETTINGS
    train_translation(settings, folder, resume=True, machine=Machine(device), console=console)


def deadly(call: Any, left: list[int]) -> Any:
    """The call, until it has been made often enough."""

    def made(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given, **named)

    return made


def attempt(folder: Path, world: int, delay: float | None, fatal: int | None, device: str) -> bool:
    """Start a run and kill it, after a delay or at a call; whether it came to its end before that."""
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
        # As torchrun does: where one has fallen, none goes on.
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
    """The bytes of the last checkpoint, and what the log says apart from times and interruptions."""
    last = folder / (folder / "latest").read_text().strip()
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    passing = {"time", "tokens_per_second", "memory", "cuda_memory"}
    return {
        "files": {name: (last / name).read_bytes() for name in FILES},
        "best": (folder / "best").read_text(),
        "said": [record.get("text") for record in records if record["kind"] == "capture"],
        "log": [
            {key: value for key, value in record.items() if key not in passing}
            for record in records
            if record["kind"] in ("training", "evaluation")
        ],
    }


def beside(expected: Any, found: Any) -> str:
    """Which files differ; of records the first that do, and how many there are."""
    if isinstance(expected, dict):
        return f", {[name for name in expected if expected[name] != found[name]]}"
    if not isinstance(expected, list):
        return ""
    unlike = [(a, b) for a, b in zip(expected, found, strict=False) if a != b]
    return f", {len(expected)} and {len(found)} records, {unlike[:1]}"


def main(folder: Path, kills: int, world: int, seed: int, device: str) -> None:
    """Kill runs until there were enough kills, and compare all that came to their end."""
    chance = random.Random(seed)
    began = time.monotonic()
    if not attempt(folder / "unbroken", world, None, None, device):
        raise SystemExit("the unbroken run did not end")
    whole = time.monotonic() - began
    expected = outcome(folder / "unbroken")
    if expected.pop("said"):
        raise SystemExit("steps were to be captured, and were not")
    killed = inside = compared = 0
    different: list[str] = []
    while killed < kills or not compared:
        name = f"broken-{compared}"
        at_call = chance.random() < 0.5
        fatal = chance.randrange(120) if at_call and killed < kills else None
        delay = chance.uniform(0.0, whole) if not at_call and killed < kills else None
        if attempt(folder / name, world, delay, fatal, device):
            compared += 1
            found = outcome(folder / name)
            unlike = [key for key in expected if found[key] != expected[key]]
            different += [f"{name}: {key}{beside(expected[key], found[key])}" for key in unlike]
        else:
            killed, inside = killed + 1, inside + at_call
    print(json.dumps({"killed": killed, "inside": inside, "compared": compared, "different": different}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5])
