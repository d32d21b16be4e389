"""Models learn the built-in corpus: the demo's sentences, BLEU, alignments, and the limits of a fixed vector.

Training runs for a number of steps instead of a time, because tests share the CPU: as many steps as two idle
cores take in 90 seconds. benchmarks/korean.py measures time.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.korean import measured
from benchmarks.loop import steps
from regard.cli.demo import SENTENCES, SETTINGS
from regard.decoding import Greedy
from regard.tasks.translation import Machine, TranslationRun, load_translator, train_translation
from regard.training.settings import merged
from tests.conftest import seed

TRANSLATIONS = (
    "I am a cat",
    "Woongjun ate rice",
    "Woongjun ate rice at home",
    "Woongjun could not focus at home so he went to a café to study",
)
"""Translations of the demo's sentences, without the final punctuation mark."""


def train_demo(folder: Path, **sections: dict[str, Any]) -> TranslationRun:
    """Train a run with the demo's settings, changed by `sections`, and load it."""
    settings = merged(SETTINGS, sections, {"seed": seed()})
    train_translation(settings, folder, machine=Machine("cpu", 1), console=Console(quiet=True))
    return load_translator(folder, device="cpu", search=Greedy())


def test_demo_learns_its_first_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """나는 고양이로소이다, after a few steps on short sentences: a few seconds on one core."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run = train_demo(
        tmp_path / "run",
        data={"pairs": 4_000, "held_out": 10, "max_length": 10},
        training={"steps": 200, "batch_tokens": 400, "evaluate_every": 200},
        evaluation={"sentences": 2, "samples": 0},
    )
    unmarked = SENTENCES[0]
    translations = run.translate([unmarked, f"{unmarked} .", f"{unmarked}."])
    assert [each.text for each in translations] == ["I am a cat", "I am a cat .", "I am a cat ."]


@pytest.mark.slow
def test_demo_translates_its_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run = train_demo(tmp_path / "run", training={"steps": 1400, "evaluate_every": 350})
    unmarked = [each.removesuffix(" .") for each in SENTENCES]
    for mark, shown in (("", ""), (" .", " ."), (".", " .")):
        translations = run.translate([f"{each}{mark}" for each in unmarked])
        assert [each.text for each in translations] == [f"{each}{shown}" for each in TRANSLATIONS]


@pytest.mark.slow
def test_bahdanau_translates_and_aligns():
    """Seeds 0 to 4 give BLEU 94.6 to 95.6 and alignment error rates of 13.7 to 16.0 %."""
    results = [measured(steps(1450), "bahdanau", seed() + each) for each in range(5)]
    assert statistics.median(each.bleu for each in results) >= 95
    assert statistics.median(each.error_rate for each in results) <= 17


@pytest.mark.slow
def test_fixed_vector_fails_on_long_sentences():
    attentive, fixed = measured(steps(1200), "bahdanau", seed()), measured(steps(1900), "seq2seq", seed())
    assert fixed.bleu_long < fixed.bleu / 4
    assert attentive.bleu_long > 2 * fixed.bleu_long
