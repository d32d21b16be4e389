"""A run folder of an earlier version, without a manifest, loads, scores and resumes with the same results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from regard.tasks.translation import load_translator
from tests.tasks.small import train

OLD = Path(__file__).with_name("old_run")
"""bahdanau of width 4 after 10 steps on 60 pairs of the built-in corpus, with version 1 of its grammar."""

SCORES = [-5.437236, -5.344089, -5.128447, -5.096276, -5.380024, -5.702107]
"""The log-probabilities of a translation, as the version that trained the run computed them."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "run")


def test_old_run_gives_the_same_scores(old: Path):
    scored = load_translator(old, device="cpu").score("나는 학교에 간다 .", "I go to school .")
    assert scored.token_scores == pytest.approx(SCORES, abs=1e-5)


def test_old_run_resumes_at_its_last_step(old: Path):
    progress = train({"training": {"steps": 14}}, old, resume=True, change=True).progress
    records = [json.loads(line) for line in (old / "log.jsonl").read_text().splitlines()]
    assert progress.step == 14 and progress.ended and (old / "manifest.json").is_file()
    assert [each["step"] for each in records if each["kind"] == "training"][:2] == [5, 10]
    load_translator(old, device="cpu")
