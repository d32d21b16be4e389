"""The answering benchmark: jobs, the choice of the seed, published errors, and the table."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

import regard
from benchmarks.answering import RECIPES, best_seed, jobs_of, measure, table
from benchmarks.published_babi import COLUMNS, PUBLISHED
from regard.data.story_text import read_stories
from regard.tasks.answering import AnsweringSettings
from regard.training.settings import build
from tests.facts import mentions, table_rows
from tests.tasks.small_stories import written

SETTINGS = [
    "training.steps=2",
    "training.evaluate_every=2",
    "training.linear_start=0",
    "training.batch_size=16",
]


@pytest.fixture
def arguments(tmp_path: Path) -> Namespace:
    folder = tmp_path / "babi" / "en"
    folder.mkdir(parents=True)
    for name in ("qa1_moves", "qa2_moves"):
        for part in ("train", "test"):
            written(folder, f"{name}_{part}.txt", 12)
    usual = Namespace(data=tmp_path, runs=tmp_path / "runs", device="cpu", threads=1, set=SETTINGS)
    usual.only, usual.tasks, usual.folder, usual.seeds = list(RECIPES), [1, 2, 3], "en", 2
    return usual


def test_jobs_are_valid_and_leave_out_missing_tasks(arguments: Namespace, capsys):
    jobs = jobs_of(arguments)
    assert [job.task for job in jobs] == ["", "qa1_moves", "qa2_moves", ""]
    assert "qa3" in capsys.readouterr().out and len({job.folder for job in jobs}) == 4
    for job in jobs:
        settings = build(AnsweringSettings, job.settings, job.recipe)
        assert settings.seeds == [0, 1] and settings.training.steps == 2
        assert all(Path(path).is_file() for path in settings.data.train_file)


@pytest.mark.parametrize("job", [0, 3])
def test_measured_job_has_the_errors_of_each_seed_and_task(job: int, arguments: Namespace):
    chosen = jobs_of(arguments)[job]
    result = measure(chosen)
    assert list(result["seeds"]) == ["0", "1"] and not result["failed"]
    for seed in result["seeds"].values():
        assert set(seed["tasks"]) == {"qa1_moves", "qa2_moves"} and seed["training_loss"] > 0
        assert 0 <= seed["validation_error"] <= 100
        assert seed["error"] == pytest.approx(sum(seed["tasks"].values()) / 2, abs=0.01)
    run = regard.load(chosen.folder, seed=1, checkpoint="latest", device="cpu")
    tests = read_stories([path.replace("_train", "_test") for path in chosen.files])
    report = run.evaluate(tests.questions)
    errors = {each.task: round(100 * each.error, 2) for each in report.tasks}
    assert result["seeds"]["1"]["tasks"] == errors
    text = table([result])
    best = f"{result['seeds'][best_seed(result['seeds'])]['tasks']['qa1_moves']:.1f}"
    assert any(row[:2] == ["qa1_moves", best] for row in table_rows(text))


def test_table_reports_the_seed_with_the_lowest_training_loss():
    seeds = {
        "0": {"training_loss": 0.1, "error": 12.0, "tasks": {"qa1_x": 4.0, "qa2_y": 20.0}},
        "1": {"training_loss": 0.2, "error": 8.0, "tasks": {"qa1_x": 2.0, "qa2_y": 14.0}},
    }
    run = {"recipe": "babi-joint", "folder": "en", "task": "", "seconds": 9.0, "seeds": seeds, "machine": {}}
    text = table([run], notes="remark")
    assert "| qa1_x | 4.0 | 3.0 ± 1.4 | 0.0 |" in text and "| qa2_y | 20.0 | 17.0 ± 4.2 | 11.4 |" in text
    assert mentions(text, "**12.0** | 10.0 ± 2.8 | 5.7 |", "failed", " | 1 | | 1 |")
    assert "remark" in text
    assert "11.4" not in table([{**run, "folder": "en-10k"}])


def test_published_errors_have_the_published_means():
    means = {name: round(sum(column) / 20, 1) for name, column in COLUMNS.items()}
    assert means == {"supervised": 6.7, "PE LS RN": 13.9, "PE LS joint": 13.3, "PE LS RN joint": 12.4}
    assert set(PUBLISHED) == set(RECIPES) and all(len(each) == 20 for each in PUBLISHED.values())
