"""Small stories for tests: people move between places, and questions ask where a person is."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

PEOPLE, PLACES = ("Mary", "John", "Ann"), ("garden", "office", "kitchen", "hall")


def babi_text(stories: int = 24, seed: int = 0) -> str:
    """Return stories in the format of bAbI: two moves, a question, a move, a question."""
    draw, lines = random.Random(seed), []
    for _ in range(stories):
        number, last = 0, dict[str, tuple[str, int]]()
        for _ in range(2):
            for _ in range(2):
                number += 1
                person, place = draw.choice(PEOPLE), draw.choice(PLACES)
                last[person] = place, number
                lines.append(f"{number} {person} went to the {place}.")
            number += 1
            person = draw.choice(sorted(last))
            place, fact = last[person]
            lines.append(f"{number} Where is {person}? \t{place}\t{fact}")
    return "\n".join(lines) + "\n"


def written(folder: Path, name: str = "qa1_moves_train.txt", stories: int = 24, seed: int = 0) -> str:
    path = folder / name
    path.write_text(babi_text(stories, seed), encoding="utf-8")
    return str(path)


def json_line(**fields: Any) -> str:
    """Return a question as a JSON line; fields replace those of a valid question."""
    whole = {
        "story": ["Mary went to the garden.", "John went to the office."],
        "question": "Where is Mary?",
        "answer": "garden",
        "facts": [1],
    }
    return json.dumps({name: value for name, value in {**whole, **fields}.items() if value is not None})


def small(train_file: list[str], **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that trains in a fraction of a second."""
    usual = {
        "model": {"width": 8, "hops": 2},
        "training": {
            "steps": 6,
            "batch_size": 16,
            "warmup_steps": 1,
            "linear_start": 1,
            "save_every": 3,
            "evaluate_every": 6,
            "keep": 3,
        },
        "evaluation": {"samples": 0},
    }
    settings = {"data": {"train_file": train_file, **sections.get("data", {})}}
    return settings | {name: {**own, **sections.get(name, {})} for name, own in usual.items()}
