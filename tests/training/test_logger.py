"""Loggers of users: every event of a run, a logger that fails, seeds, and the examples of the page."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from regard.errors import ArgumentError
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.logs.log import Logger, import_logger
from tests.reading import ROOT
from tests.tasks.own_task import LineTask

Event = tuple[str, dict[str, Any]]


def train(folder: Path, *loggers: Logger, console: Console | None = None, **options: Any) -> Any:
    """Train a line through points, with 4 steps."""
    points = folder / "points.txt"
    points.write_text("".join(f"{x} {2 * x + 1}\n" for x in range(10)), encoding="utf-8")
    training = {"steps": 4, "learning_rate": 0.1, "evaluate_every": 2, "log_every": 1}
    settings = {"data": {"points": [str(points)]}, "training": training, **options.pop("settings", {})}
    quiet = {"machine": Machine("cpu", 1), "console": console or Console(quiet=True)}
    return train_run(LineTask, settings, folder / "run", loggers=loggers, **quiet, **options)


def test_a_logger_is_called_for_every_event(tmp_path: Path):
    events: list[Event] = []
    train(tmp_path, lambda event, values: events.append((event, dict(values))))
    names = [event for event, _ in events]
    assert names[0] == "start" and names[-1] == "end" and events[-1][1]["status"] == "ended"
    assert events[0][1]["settings"]["training"]["steps"] == 4 and not events[0][1]["resumed"]
    steps = [values for event, values in events if event == "step"]
    assert [each["step"] for each in steps] == [1, 2, 3, 4]
    assert all(each["metrics"]["training/loss"] > 0 for each in steps)
    evaluations = [values for event, values in events if event == "evaluation"]
    assert [each["step"] for each in evaluations] == [2, 4] and "evaluation/loss" in evaluations[0]["metrics"]
    written = [Path(values["path"]) for event, values in events if event == "checkpoint"]
    assert Checkpoints(tmp_path / "run").latest().path in written
    assert {values["run"] for _, values in events} == {str(tmp_path / "run")}
    again: list[Event] = []
    train(tmp_path, lambda event, values: again.append((event, dict(values))), resume=True)
    assert again[0][0] == "start" and again[0][1]["resumed"] and again[0][1]["step"] == 4


def test_a_logger_that_fails_does_not_end_the_training(tmp_path: Path):
    calls: list[str] = []

    def failing(event: str, values: Mapping[str, Any]) -> None:
        calls.append(event)
        if event == "step":
            raise ValueError("no network")

    others: list[str] = []
    console = Console(file=io.StringIO(), width=200)
    outcome = train(tmp_path, failing, lambda event, _: others.append(event), console=console)
    assert outcome.progress.ended and calls == ["start", "step"] and others[-1] == "end"
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert printed.count("network") == 1 and "failing" in printed


def test_each_seed_has_events_of_its_own(tmp_path: Path):
    events: list[Event] = []
    train(tmp_path, lambda event, values: events.append((event, dict(values))), settings={"seeds": 2})
    ends = [values["run"] for event, values in events if event == "end"]
    assert ends == [str(tmp_path / "run" / f"seed-{seed}") for seed in (0, 1)]


@pytest.mark.parametrize(
    "name", ["tracking", "tracking:", ":log", "no_such_module_:log", "json:no_such", "sys:path"]
)
def test_wrong_names_of_loggers_are_errors(name: str):
    with pytest.raises(ArgumentError) as caught:
        import_logger(name)
    assert "--logger" in str(caught.value)


class Recorder(SimpleNamespace):
    """A stand-in for the module of a tracker: it records the calls of any function."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: self.calls.append((name, arguments, options))


@pytest.mark.parametrize(
    ("tracker", "begin", "metric", "end"),
    [
        ("wandb", "init", "log", "finish"),
        ("mlflow", "start_run", "log_metrics", "end_run"),
        ("trackio", "init", "log", "finish"),
    ],
)
def test_the_examples_of_the_page_call_their_trackers(
    tracker: str, begin: str, metric: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^(?: {4}.*\n|\n)+", page, re.M)
    (code,) = [each for each in blocks if f"import {tracker}\n" in each]
    (tmp_path / "tracking.py").write_text(
        "".join(line[4:] for line in code.splitlines(True)), encoding="utf-8"
    )
    recorder = Recorder(calls=[])
    monkeypatch.setitem(sys.modules, tracker, recorder)
    monkeypatch.delitem(sys.modules, "tracking", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    train(tmp_path, import_logger("tracking:log"))
    monkeypatch.delitem(sys.modules, "tracking")
    names = [name for name, _, _ in recorder.calls]
    assert names.count(begin) == names.count(end) == 1 and names[-1] == end
    logged = [
        (arguments[0], options["step"]) for name, arguments, options in recorder.calls if name == metric
    ]
    assert [step for scores, step in logged if "training/loss" in scores] == [1, 2, 3, 4]
    assert [step for scores, step in logged if "evaluation/loss" in scores] == [2, 4]
