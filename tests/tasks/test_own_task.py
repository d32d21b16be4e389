"""A task of the user, outside the package: trained, resumed, loaded and shown like the tasks of Regard."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import regard
from regard.cli.open_runs import next_command
from regard.cli.show import describe_run
from regard.errors import ArgumentError, DataError, UnknownName
from regard.runs.run_facts import facts_of
from regard.runs.run_folder import config_of
from regard.runs.run_task import RunTask
from regard.runs.train_run import train_run
from regard.tasks.task_table import TASKS, find_task, task_of
from regard.training.task import Task
from tests.cli.conftest import command  # noqa: F401
from tests.facts import facts, mentions
from tests.tasks.own_task import LineTask
from tests.training.toys import bits

OWN = "tests.tasks.own_task:LineTask"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.txt"
    path.write_text("".join(f"{x} {3 * x + 1}\n" for x in range(-8, 9)), encoding="utf-8")
    return path


def options(points: Path, run: Path, steps: int = 60, task: str = OWN) -> list[str]:
    data = ["--set", f'data.points=["{points}"]', "--learning-rate", "0.05"]
    return ["train", "--task", task, *data, "--steps", str(steps), "--output", str(run), "--device", "cpu"]


def test_own_task_trains_and_loads(points: Path, tmp_path: Path, command):  # noqa: F811
    result = command(*options(points, tmp_path / "run", steps=400))
    assert result.status == 0, result.err
    config = config_of(tmp_path / "run")
    assert config["task"] == OWN and config["training"]["batch_size"] == 4
    model = regard.load(tmp_path / "run", task=OWN)
    assert model(torch.tensor([[2.0]])).item() == pytest.approx(7.0, abs=0.5)


def test_own_task_resumes_with_the_same_bits(points: Path, tmp_path: Path, command):  # noqa: F811
    every = ["--set", "training.save_every=20", "--set", "training.keep=9"]
    assert command(*options(points, tmp_path / "whole"), *every).status == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for step in (40, 60):
        shutil.rmtree(tmp_path / "cut" / f"step-{step:06d}")
    (tmp_path / "cut" / "latest").write_text("step-000020\n")
    result = command("train", "--output", tmp_path / "cut", "--resume", "--task", OWN, "--device", "cpu")
    assert result.status == 0, result.err
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")


def test_run_folder_alone_never_imports_a_module(points: Path, tmp_path: Path, command):  # noqa: F811
    assert command(*options(points, tmp_path / "run", steps=2)).status == 0
    with pytest.raises(ArgumentError, match=f"{OWN}.*\n.*--task"):
        regard.load(tmp_path / "run")
    with pytest.raises(ArgumentError, match="own_task:Wrong"):
        task_of(tmp_path / "run", "tests.tasks.own_task:Wrong")
    result = command("show", tmp_path / "run")
    assert result.status == 2 and "--task" in result.err and OWN in result.err


def test_own_task_is_shown_and_averaged(points: Path, tmp_path: Path, command):  # noqa: F811
    every = ["--set", "training.save_every=20", "--set", "training.keep=9"]
    assert command(*options(points, tmp_path / "run"), *every).status == 0
    result = command("show", tmp_path / "run", "--task", OWN)
    assert result.status == 0 and "slope" in result.out, result.err
    result = command("average", tmp_path / "run", "--last", 2, "--output", tmp_path / "mean", "--task", OWN)
    assert result.status == 0, result.err
    assert isinstance(regard.load(tmp_path / "mean", task=OWN), torch.nn.Linear)


@pytest.mark.parametrize(
    ("name", "error", "fact"),
    [
        ("translatoin", UnknownName, "'translation'"),
        ("zzz", UnknownName, "(?s)classification, language, translation\n.*package.module:Class$"),
        ("tests/tasks/own_task.py:LineTask", ArgumentError, "--task tests.tasks.own_task:LineTask"),
        ("tests.tasks.own_task.py:LineTask", ArgumentError, "--task tests.tasks.own_task:LineTask"),
        ("no_such_package.task:MyTask", ArgumentError, "no_such_package"),
        ("tests.tasks.own_task:Missing", ArgumentError, "Missing"),
        ("tests.tasks.own_task:Points", ArgumentError, "RunTask"),
    ],
)
def test_unknown_task_raises(name: str, error: type[Exception], fact: str):
    with pytest.raises(error, match=fact):
        find_task(name)


def test_every_task_of_the_table_can_be_imported():
    assert {name: find_task(name).settings_type.model_fields["task"].default for name in TASKS} == {
        name: name for name in TASKS
    }


def test_own_task_with_a_nan_loss_names_the_step(points: Path, tmp_path: Path, command):  # noqa: F811
    result = command(*options(points, tmp_path / "run", task="tests.tasks.own_task:Wrong"))
    assert result.status != 0 and "step 1" in result.err and "nan" in result.err


@pytest.mark.parametrize(
    ("text", "line"), [("1 2\n1 two\n", 2), ("1 2\n1 2 3\n", 2), ("1 2\n3 4\n\n", 3), ("", 1)]
)
def test_error_in_the_data_of_an_own_task_has_file_and_line(text: str, line: int, points: Path):
    points.write_text(text, encoding="utf-8")
    task = find_task(OWN)
    settings = task.settings_type(task=OWN, data={"points": [str(points)]})
    with pytest.raises(DataError, match=facts("points.txt", f"line {line}")):
        task.read_data(settings)


def test_error_in_the_data_of_an_own_task_leaves_no_run(points: Path, tmp_path: Path, command):  # noqa: F811
    points.write_text("1 2\n1 two\n", encoding="utf-8")
    result = command(*options(points, tmp_path / "run"))
    assert (
        result.status == 2
        and mentions(result.err, "points.txt", "line 2")
        and not (tmp_path / "run").exists()
    )


def test_log_and_show_of_an_own_task_use_its_unit(points: Path, tmp_path: Path, command):  # noqa: F811
    run = tmp_path / "run"
    trained = command(*options(points, run, steps=2), width=300)
    assert trained.status == 0 and mentions(trained.err, "points/s", "batches")
    shown = command("show", run, "--task", OWN, width=300)
    assert shown.status == 0 and "8 points" in shown.out
    for text in (trained.err, shown.out):
        assert not [word for word in ("perplexity", "token", "vocabulary") if word in text], text


def test_perplexity_and_unit_of_every_task():
    assert {name: (find_task(name).counted, "perplexity" in find_task(name).metrics) for name in TASKS} == {
        "translation": ("target tokens", True),
        "language": ("tokens", True),
        "classification": ("texts", False),
        "algorithms": ("answered bits", False),
        "answering": ("questions", False),
        "captioning": ("target tokens", True),
    }
    assert "perplexity" not in RunTask.metrics and "token" not in RunTask.counted


def test_suggested_commands_name_an_own_task(points: Path, tmp_path: Path, command):  # noqa: F811
    run, mean = tmp_path / "run", tmp_path / "mean"
    assert f"show {run} --task {OWN}" in command(*options(points, run, steps=2), width=400).err
    said = command("average", run, "--last", 1, "--output", mean, "--task", OWN, width=400)
    assert f"show {mean} --task {OWN}" in said.out
    assert next_command(find_task("language"), "x") == 'regard generate x --prompt "..."'
    for name, task, option in (
        ("classify", "classification", "--text"),
        ("translate", "translation", "--text"),
        ("generate", "language", "--prompt"),
        ("score", "language", "--text"),
    ):
        said = command(name, run, option, "a")
        assert said.status == 2 and task in said.err.splitlines()[0], said.err
        assert f"show {run} --task" in said.err
    said = command("view", run, "--task", OWN, "--text", "a")
    assert said.status == 2 and mentions(said.err, "LineTask", "attention"), said.err


def test_interrupted_own_task_is_resumed_with_its_name(points: Path, tmp_path: Path, command):  # noqa: F811
    assert command(*options(points, tmp_path / "run", steps=2)).status == 0
    facts = replace(facts_of(find_task(OWN), tmp_path / "run"), progress=None)
    assert f"--resume --task {OWN}" in str(list(describe_run(facts, Console()))[-1])


def test_task_has_at_most_30_members():
    own = [{**vars(kind), **kind.__annotations__} for kind in (Task, RunTask)]
    members = {name for each in own for name in each if not name.startswith("_")}
    assert len(members) <= 30, sorted(members)
    required = {"settings_type", "read_data", "build_model", *Task.__abstractmethods__}
    assert required <= members & {*vars(LineTask)} and len(required) == 7


def test_an_unknown_option_of_the_model_is_named(points: Path, tmp_path: Path, command):  # noqa: F811
    result = command(*options(points, tmp_path / "run"), "--set", "model.depth=2")
    assert result.status == 2 and mentions(result.err, "[model]", "depth") and "hint" in result.err


@pytest.mark.parametrize(
    ("task", "loggers", "facts_of_error"),
    [(OWN, (), ("task", OWN)), (LineTask, print, ("loggers", "[")), (LineTask, "a:b", ("loggers", "str"))],
)
def test_wrong_arguments_of_train_run(tmp_path: Path, task, loggers, facts_of_error):
    with pytest.raises(ArgumentError, match=facts("train_run()", *facts_of_error)):
        train_run(task, {}, tmp_path / "run", loggers=loggers)
    assert not (tmp_path / "run").exists()
