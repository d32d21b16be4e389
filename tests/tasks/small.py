"""Small corpora and settings for runs that train in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from regard.data import korean_english
from regard.evaluation import Links
from regard.tasks.translation import Machine, Outcome, train_translation
from regard.training.settings import merged


def written(folder: Path, pairs: int = 120, split: str = "train", name: str = "a") -> dict[str, list[str]]:
    """Write pairs and their links to files; return the settings that name the pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = list(korean_english(split, pairs))
    sides = {
        "ko": [each.source for each in examples],
        "en": [each.target for each in examples],
        "links": [Links(each.sure, each.possible).written() for each in examples],
    }
    for suffix, lines in sides.items():
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8", newline="\n")
    return {"source": [str(folder / f"{name}.ko")], "target": [str(folder / f"{name}.en")]}


def settings(data: dict[str, Any], /, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a small run on these data, changed by `sections`."""
    usual = {
        "data": {"tokenizer": "word", "held_out": 5, **data},
        "model": {"name": "luong", "width": 8, "feeding": False},
        "training": {"steps": 4, "batch_tokens": 300, "evaluate_every": 2, "log_every": 1, "warmup_steps": 1},
        "evaluation": {"sentences": 2, "samples": 0},
    }
    if {"minutes", "epochs"} & set(sections.get("training", {})):
        del usual["training"]["steps"]
    return merged(usual, sections)


def train(chosen: dict[str, Any], folder: Path, **options: Any) -> Outcome:
    """Train on the CPU without output."""
    return train_translation(
        chosen, folder, **{"machine": Machine("cpu"), "console": Console(quiet=True), **options}
    )
