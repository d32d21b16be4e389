"""Recipes learn to the end without data files: captions of built-in pictures, answers about stories."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.captioning import measure
from benchmarks.recipe_runs import Job, recipe_settings
from regard.runs.prepare_run import Machine
from regard.runs.run_commands import ChosenRun
from regard.runs.train_run import train_run
from regard.tasks.answering import AnsweringTask
from tests.tasks.small_stories import written


@pytest.mark.slow
def test_captioner_describes_pictures_and_attends_to_their_objects(tmp_path: Path):
    """The targets of docs/captioning.md. The test split has pairs of colour and shape that training lacks."""
    result = measure(Job("shapes-soft", 1, tmp_path, tmp_path, device="cpu", threads=2))
    assert result["exact"] >= 0.98 and result["pointing"] >= 0.85 and result["pointing_chance"] < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["babi-task", "babi-supervised"])
def test_memory_network_answers_questions_about_new_stories(tmp_path: Path, recipe: str):
    settings = recipe_settings(recipe, tmp_path)
    settings["training"] |= {"steps": 1500, "evaluate_every": 750}
    settings["data"]["train_file"] = [written(tmp_path, stories=500)]
    train_run(
        AnsweringTask, settings, tmp_path / "run", machine=Machine("cpu", 2), console=Console(quiet=True)
    )
    options = {"page": None, "faithfulness": False, "jsonl": None}
    options["test_file"] = [written(tmp_path, "qa1_moves_test.txt", stories=200, seed=1)]
    report = AnsweringTask.evaluate_run(ChosenRun(tmp_path / "run", device="cpu"), options).to_dict()
    assert report["error"] <= 0.05
