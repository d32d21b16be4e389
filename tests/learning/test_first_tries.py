"""The examples of docs/first-tries.md: dates, number words and labels are learned in a few hundred steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.data import hold_out, pairs_from_lists
from regard.evaluation import exact_match
from regard.tasks.translation import load_translator, train_translation
from tests.conftest import seed

PAGE = Path(__file__).parents[2] / "docs" / "first-tries.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The variables that the code blocks of the page define."""
    namespace: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        exec(block, namespace)
    return namespace


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tokenizer", "count"),
    [("dates", "character", 500), ("numbers", "character", 550), ("labels", "unigram", 300)],
)
def test_exact_match_is_high(page, tmp_path, monkeypatch, name: str, tokenizer: str, count: int):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    data = dict(page[name])
    train, test = hold_out(pairs_from_lists(list(data), list(data.values())), count=300)
    (tmp_path / "train.tsv").write_text("".join(f"{a}\t{b}\n" for a, b, _ in train), encoding="utf-8")
    settings = {
        "seed": seed(),
        "data": {"tsv": [str(tmp_path / "train.tsv")], "tokenizer": tokenizer},
        "model": {"width": 128, "dropout": 0.1},
        "training": {
            "steps": count,
            "batch_tokens": 1536,
            "learning_rate": 2e-3,
            "warmup_steps": 100,
            "best": "exact",
        },
    }
    train_translation(settings, tmp_path / "run", console=Console(quiet=True))
    translator = load_translator(tmp_path / "run", look=None)
    answers = [each.text for each in translator.translate([pair.source for pair in test])]
    assert exact_match(answers, [pair.target for pair in test]).value >= 97
