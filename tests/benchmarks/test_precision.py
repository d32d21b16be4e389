"""The benchmark of training precisions: its settings and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.precision import MODELS, PRECISIONS, settings_of, table, task_and_model, write_texts
from regard.tasks.task_table import find_task
from regard.training.settings import build
from tests.facts import table_rows


@pytest.mark.parametrize("model", MODELS)
def test_only_the_precision_differs(model: str):
    runs = [settings_of(model, precision, 1, 100, 300, 256) for precision in PRECISIONS]
    kind = find_task(task_and_model(model)[0]).settings_type
    built = [build(kind, each, "test") for each in runs]
    assert [each.training.precision for each in built] == list(PRECISIONS)
    for each in runs:
        each["training"].pop("precision")
    assert all(each == runs[0] for each in runs)


def test_table_has_the_mean_of_the_seeds():
    rows = [
        {"model": "luong", "precision": "tf32", "tokens/s": speed, "loss": loss, "score": 50.0}
        for speed, loss in ((1000.0, 1.0), (3000.0, 2.0))
    ]
    rows.append({**rows[0], "precision": "bfloat16"})
    text = table({"about": "4 steps", "rows": rows, "environment": {"gpu": "none"}})
    assert ["luong", "tf32", "2", "2,000", "1.5000 ± 0.7071", "50.00 ± 0.00"] in table_rows(text)
    assert ["luong", "bfloat16", "1", "1,000", "1.0000", "50.00"] in table_rows(text)


def test_a_class_is_the_number_of_words_of_the_translation(tmp_path: Path):
    write_texts(tmp_path, 5)
    english = (tmp_path / "english.txt").read_text(encoding="utf-8").splitlines()
    lines = (tmp_path / "lengths.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(len(text.split())) for text in english]
    assert len(lines) == 5
