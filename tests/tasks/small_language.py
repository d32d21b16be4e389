"""Small texts and settings for runs of language models that train in a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.runs.prepare_run import Machine
from regard.runs.train_run import Outcome, train_run
from regard.tasks.language import LanguageTask
from regard.training.settings import merged

SENTENCES = ("the cat sat on the mat", "a dog ran", "the dog saw a cat", "a cat ran on the mat")


def write(path: Path, lines: int, seed: int = 0, extra: str = "") -> str:
    chosen = random.Random(seed).choices(SENTENCES, k=lines)
    path.write_text("".join(f"{line}{extra}\n" for line in chosen), encoding="utf-8")
    return str(path)


def text_files(folder: Path) -> dict[str, Any]:
    """Write the files of a small run, and return its [data]."""
    files = {"train_file": [write(folder / "a.txt", 120)], "valid_file": [write(folder / "b.txt", 9, 1)]}
    return {**files, "tokenizer": "word"}


def small(data: dict[str, Any], name: str = "lstm", /, **sections: dict[str, Any]) -> dict[str, Any]:
    size = {"width": 8, "heads": 2, "inner": 16, "layers": 1} if name == "transformer" else {"width": 8}
    usual: dict[str, Any] = {
        "data": data if data.get("layout") == "documents" else {"window": 7, **data},
        "model": {"name": name, "dropout": 0.1, **size},
        "training": {"steps": 12, "evaluate_every": 5, "log_every": 1, "learning_rate": 0.02},
        "evaluation": {"samples": 0},
    }
    usual["training"] |= {"batch_tokens": 70} if name == "transformer" else {"batch_size": 5}
    return merged(usual, sections)


def train(settings: dict[str, Any], folder: Path, **options: Any) -> Outcome:
    machine, console = Machine("cpu"), Console(quiet=True)
    return train_run(LanguageTask, settings, folder, **{"machine": machine, "console": console, **options})
