"""TensorBoard files: they contain the logged values, and a write error does not end the run."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from regard.errors import ArgumentError
from regard.training.logs.log import Board, Log


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of a folder as TensorBoard reads them."""
    read = EventAccumulator(str(folder))
    read.Reload()
    return {name: [(each.step, each.value) for each in read.Scalars(name)] for name in read.Tags()["scalars"]}


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_curves_equal_the_logged_values(tmp_path: Path):
    now = [0.0]
    with Log(None, console=quiet(), board=tmp_path / "board", record=2, clock=lambda: now[0]) as log:
        for step in range(1, 6):
            now[0] += 1.0
            log.step(step, loss=float(step), tokens=10, rate=0.25, norm=2.0, parts={"guided": 0.5})
        log.evaluation(5, {"loss": 0.0, "bleu": 31.25})
    assert curves(tmp_path / "board") == {
        "training/loss": [(2, 1.5), (4, 3.5)],
        "training/perplexity": [(2, pytest.approx(2.718281828**1.5)), (4, pytest.approx(2.718281828**3.5))],
        "training/norm": [(2, 2.0), (4, 2.0)],
        "training/guided": [(2, 0.5), (4, 0.5)],
        "training/rate": [(2, 0.25), (4, 0.25)],
        "training/tokens_per_second": [(2, 10.0), (4, 10.0)],
        "evaluation/loss": [(5, 0.0)],
        "evaluation/bleu": [(5, 31.25)],
    }


def test_resumed_run_has_each_point_once(tmp_path: Path):
    first = Log(None, console=quiet(), board=tmp_path, record=1)
    for step in range(1, 6):
        first.step(step, loss=float(step), tokens=1, rate=0.5)
    assert first.position() == 0  # position() flushes the points; then the run is killed
    with Log(None, console=quiet(), board=tmp_path, record=1) as again:
        for step in range(4, 7):
            again.step(step, loss=float(step), tokens=1, rate=0.5)
    assert curves(tmp_path)["training/loss"] == [(step, float(step)) for step in range(1, 7)]
    first.__exit__()


def test_infinite_losses_are_written_and_missing_ones_left_out(tmp_path: Path):
    with Log(None, console=quiet(), board=tmp_path, record=1) as log:
        log.step(1, loss=float("inf"), tokens=1, rate=0.5)
        log.step(2, loss=float("nan"), tokens=0, rate=0.5)
    written = curves(tmp_path)
    assert written["training/loss"] == [(1, float("inf"))] and len(written["training/rate"]) == 2


def test_missing_tensorboard_raises_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ArgumentError) as caught:
        Log(None, console=quiet(), board=tmp_path / "board")
    assert "TensorBoard" in str(caught.value) and "'tensorboard>=" in caught.value.message.hint


def test_write_error_is_reported_once(tmp_path: Path):
    (tmp_path / "board").write_text("a file with the name of the folder")
    console = Console(file=io.StringIO(), width=500)
    with Log(None, console=console, board=tmp_path / "board", record=1, every=100) as log:
        log.evaluation(1, {"loss": 1.0})
        log.evaluation(2, {"loss": 1.0})
        assert log.position() == 0
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3 and "TensorBoard" in lines[1] and "board" in lines[1]


def test_symbolic_link_to_a_folder_is_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "board").symlink_to(tmp_path / "elsewhere")
    console = Console(file=io.StringIO(), width=500)
    with Log(None, console=console, board=tmp_path / "board", record=1, every=100) as log:
        log.step(1, loss=2.5, tokens=1, rate=0.5)
    assert isinstance(console.file, io.StringIO) and "symbolic" in console.file.getvalue()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_no_folder_is_created_before_the_first_point(tmp_path: Path):
    board = Board(tmp_path / "board")
    board("checkpoint", {"step": 0})
    board("end", {"step": 0, "status": "stopped"})
    assert not (tmp_path / "board").exists()
