"""The exports of a run that is really trained: the texts of all validation sentences are equal to its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

import regard
from regard.runs.stored_runs import stored_scores
from regard.tasks.translation import TranslationRun, train_translation

SENTENCES = 200
STEPS = 1200

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TranslationRun:
    """Train a Transformer for about a minute of one core."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = {
        "seed": 1,
        "data": {"built_in": "korean", "pairs": 10_000, "held_out": SENTENCES, "tokenizer": "unigram"},
        "model": {"name": "transformer", "width": 64, "heads": 4, "inner": 128, "layers": 2, "dropout": 0.1},
        "training": {"steps": STEPS, "evaluate_every": STEPS, "batch_tokens": 1000},
        "evaluation": {"sentences": SENTENCES},
    }
    train_translation(settings, str(folder), console=Console(quiet=True))
    loaded = regard.load(folder)
    assert isinstance(loaded, TranslationRun)
    assert stored_scores(loaded.checkpoint)["bleu"] > 80  # it was 93
    return loaded


@pytest.mark.parametrize(
    ("target", "search"),
    [("ctranslate2", "beam size 5"), ("huggingface", "average:1"), ("onnx", "greedy")],
)
def test_all_validation_texts_are_equal(tmp_path: Path, run: TranslationRun, target: str, search: str):
    exported = run.export(target, tmp_path / "out")
    assert search in exported.check.what  # CTranslate2: with the default length penalty of Regard
    differences = "\n".join(map(str, exported.check.differences))
    assert (exported.check.equal, exported.check.count) == (SENTENCES, SENTENCES), differences
