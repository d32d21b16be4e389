"""Notes on few pairs and poor scores: which data and scores get one, and the source of the thresholds."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from regard.data import korean_english, pairs_from_lists
from regard.tasks.translation import settings as expected_quality
from regard.tasks.translation.data import Split
from regard.tasks.translation.settings import (
    FEW_PAIRS,
    MEASURED,
    NARROW,
    POOR,
    TranslationSettings,
    describe_quality,
    note_few_pairs,
    unseen_share,
)
from regard.training.settings import build

RESULTS = Path(__file__).parents[2] / "benchmarks/results/2026-11-19-data-sizes.json"


def settings(**sections: object) -> TranslationSettings:
    return build(TranslationSettings, {"data": {"built_in": "korean"}, **sections}, "test")


def ordinary(count: int) -> Split:
    """Return pairs whose words are drawn from 30,000 words with Zipf's law, as in ordinary language."""
    chance = random.Random(0)
    lines = [
        " ".join(f"w{int(math.exp(chance.uniform(0, math.log(30_000))))}" for _ in range(7))
        for _ in range(count)
    ]
    held = count // 20
    return Split(*(pairs_from_lists(part, part) for part in (lines[held:], lines[:held])))


def built_in(count: int) -> Split:
    parts = (list(korean_english(split, size)) for split, size in (("train", count), ("valid", 100)))
    return Split(
        *(pairs_from_lists([each.source for each in part], [each.target for each in part]) for part in parts)
    )


def test_few_pairs_of_ordinary_language_get_a_note_before_training():
    split = ordinary(3_000)
    note = note_few_pairs(split, settings().model_dump())
    assert unseen_share(split.train, split.valid) > NARROW
    assert "2,850" in note and "--init-from" in note and "docs/huggingface.md" in note
    low, high = MEASURED[3_000]
    assert f"{low} to {high} with 3,000" in note and "1,000 " not in note


def test_narrow_language_many_pairs_and_other_weights_get_no_note(monkeypatch: pytest.MonkeyPatch):
    few = ordinary(600)
    assert note_few_pairs(few, settings().model_dump())
    assert note_few_pairs(few, settings(init_from="runs/other").model_dump()) == ""
    assert note_few_pairs(few, settings(training={"best": "exact"}).model_dump()) == ""
    assert note_few_pairs(built_in(1_000), settings().model_dump()) == ""
    assert FEW_PAIRS < 40_000
    monkeypatch.setattr(expected_quality, "FEW_PAIRS", 500)
    assert note_few_pairs(few, settings().model_dump()) == ""


def test_only_poor_scores_are_described():
    for text, (_, bleu, chrf) in POOR.items():
        found = describe_quality({"bleu": bleu - 0.5, "chrf": chrf - 0.5}, "bleu")
        assert text in found and f"{bleu - 0.5}" in found and f"{chrf - 0.5}" in found
    assert describe_quality({"bleu": 2.1, "chrf": 35.0}, "bleu") == ""  # a language without spaces
    assert describe_quality({"bleu": 52.0, "chrf": 70.0}, "bleu") == ""
    assert describe_quality({"bleu": math.nan, "chrf": math.nan}, "bleu") == ""
    assert describe_quality({"bleu": 0.0, "chrf": 1.0}, "exact") == describe_quality({}, "bleu") == ""


def test_advice_depends_on_the_number_of_pairs():
    advice = [describe_quality({"bleu": 2.1, "chrf": 17.0}, "bleu", pairs) for pairs in (2_850, 100_000)]
    assert "--init-from" in advice[0] and "--init-from" not in advice[1]


def test_thresholds_come_from_the_committed_results():
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["trained"]
    narrow = [each for each in runs if each["corpus"] == "built-in"]
    others = [each for each in runs if each["corpus"] != "built-in"]
    assert max(each["unseen"] for each in narrow) < NARROW
    assert min(each["unseen"] for each in others if each["pairs"] <= FEW_PAIRS) > NARROW
    for count, expected in MEASURED.items():
        scores = [
            round(each["test_bleu"])
            for corpus in ("tatoeba", "multi30k")
            for each in others
            if (each["corpus"], each["pairs"]) == (corpus, count)
        ]
        assert tuple(scores) == expected
    for each in runs:
        scores = {"bleu": each["valid_bleu"], "chrf": each["valid_chrf"]}
        assert bool(describe_quality(scores, "bleu")) == (each["valid_bleu"] < POOR["often wrong"][1])
