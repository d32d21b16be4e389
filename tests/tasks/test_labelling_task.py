"""The labelling task of docs/tasks.md: one file, trained, resumed, evaluated and viewed by the commands."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from pathlib import Path

import pytest

import regard
from regard.errors import DataError
from regard.viewing import Seen
from tests.cli.conftest import command  # noqa: F401
from tests.facts import mentions
from tests.training.toys import bits

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"
TASK = ("--task", "word_labels:LabelTask")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code of the page as word_labels.py, which can be imported, and the options of the data files."""
    code = re.search(
        r"```python\n(\"\"\"Label the words.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M
    )
    assert code is not None and len(code[1].splitlines()) <= 150
    (tmp_path / "word_labels.py").write_text(code[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "word_labels", raising=False)
    chance, nouns, verbs = random.Random(0), ["duck", "cat", "dog"], ["duck", "see", "like"]
    for name, count in (("train", 120), ("valid", 30)):
        lines = [
            f"she/PRON {chance.choice(verbs)}/VERB"
            + chance.choice(["", f" the/DET {chance.choice(nouns)}/NOUN"])
            for _ in range(count)
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--train-file", str(tmp_path / "train.txt"), "--valid-file", str(tmp_path / "valid.txt")]


def trained(command, files: list[str], run: Path, *options: str) -> Path:  # noqa: F811
    every = [
        "--set",
        "training.save_every=20",
        "--set",
        "training.evaluate_every=20",
        "--set",
        "training.keep=9",
    ]
    length = ["--steps", "60", "--learning-rate", "0.02", "--device", "cpu"]
    result = command("train", *TASK, *files, *length, *every, "--output", run, *options)
    assert result.status == 0, result.err
    return run


def test_labelling_task_is_trained_evaluated_and_viewed(files: list[str], tmp_path: Path, command):  # noqa: F811
    run = trained(command, files, tmp_path / "run")
    result = command("evaluate", run, *TASK, files[-1], "--faithfulness", "--json")
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert all(report["scores"][name] > 0.95 for name in ("precision", "recall", "f1"))
    assert files[-1].endswith(report["data"].rpartition("/")[2])
    effect = report["faithfulness"]
    assert effect["hidden"] > effect["hidden_random"] and effect["outputs"] > 60
    printed = command("evaluate", run, *TASK, "--faithfulness", width=200)
    assert "NOUN" in printed.out and "hiding" in printed.out
    assert command("view", run, *TASK, "--text", "she duck the duck").out.count("duck/") == 2
    seen = tmp_path / "look.seen"
    assert command("view", run, *TASK, "--text", "she duck the duck", "--output", seen).status == 0
    (site,) = Seen.load(seen).sites
    assert site.rows == ("she/PRON", "duck/VERB", "the/DET", "duck/NOUN")
    assert site.weights.shape == (1, 4, 4) and site.weights.sum(-1) == pytest.approx(1)
    assert "labels" in command("show", run, *TASK).out
    model = regard.load(run, task="word_labels:LabelTask").model
    assert model.output.out_features == 4


def test_an_option_of_the_model_keeps_its_default_name(files: list[str], tmp_path: Path, command):  # noqa: F811
    options = "--set", "model.width=8", "--output", tmp_path / "run", "--dry-run"
    result = command("train", *TASK, *files, *options)
    assert result.status == 0, result.err


def test_labelling_task_resumes_with_the_same_bits(files: list[str], tmp_path: Path, command):  # noqa: F811
    whole = trained(command, files, tmp_path / "whole")
    shutil.copytree(whole, tmp_path / "cut")
    for step in (40, 60):
        shutil.rmtree(tmp_path / "cut" / f"step-{step:06d}")
    (tmp_path / "cut" / "latest").write_text("step-000020\n")
    result = command("train", "--output", tmp_path / "cut", "--resume", *TASK, "--device", "cpu")
    assert result.status == 0, result.err
    assert bits(tmp_path / "cut") == bits(whole)


def test_seeds_of_the_labelling_task_differ_and_are_summarised(files: list[str], tmp_path: Path, command):  # noqa: F811
    run = trained(command, files, tmp_path / "run", "--seeds", "2")
    assert bits(run / "seed-0") != bits(run / "seed-1")
    result = command("evaluate", run, *TASK, "--json")
    report = json.loads(result.out)
    assert set(report["seeds"]) == {"0", "1"} and report["mean"]["f1"] > 0.9


def test_malformed_line_of_the_labelling_task_has_file_and_line(files: list[str], tmp_path: Path, command):  # noqa: F811
    (tmp_path / "train.txt").write_text("she/PRON\nshe duck/VERB\n", encoding="utf-8")
    result = command("train", *TASK, *files, "--output", tmp_path / "run", "--device", "cpu")
    assert (
        result.status == 2 and mentions(result.err, "train.txt", "line 2") and not (tmp_path / "run").exists()
    )
    module = sys.modules["word_labels"]
    with pytest.raises(DataError, match="line 2"):
        list(module.read_sentences([tmp_path / "train.txt"]))
