"""Small labelled texts and settings for runs of classifiers that train in a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.classification import ClassificationTask
from regard.training.settings import merged

GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "poor", "awful", "dull")
OTHER = ("a", "film", "the", "with", "actors", "in", "it", "story", "long", "short")


def reviews(count: int = 160, seed: int = 0) -> list[tuple[str, str]]:
    """Return (label, text); one word of the text decides the label. A fourth of the texts are "neg"."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        words = draw.choices(OTHER, k=draw.randint(1, 9))
        words.insert(draw.randint(0, len(words)), draw.choice(BAD if number % 4 == 0 else GOOD))
        rows.append(("neg" if number % 4 == 0 else "pos", f"{' '.join(words)} {number}"))
    return rows


def written(path: Path, rows: list[tuple[str, ...]]) -> str:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def small(data: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that trains in a second."""
    usual = {
        "data": {"vocab_size": 22, **data},
        "model": {"name": "lstm", "width": 12, "dropout": 0.0},
        "training": {
            "steps": 40,
            "batch_size": 17,
            "learning_rate": 0.03,
            "warmup_steps": 2,
            "evaluate_every": 10,
            "log_every": 5,
        },
        "evaluation": {"samples": 1},
    }
    return merged(usual, sections)


def train(settings: dict[str, Any], folder: Path, **options: Any) -> Any:
    quiet = {"machine": Machine("cpu", 1), "console": Console(quiet=True)}
    return train_run(ClassificationTask, settings, folder, **{**quiet, **options})
