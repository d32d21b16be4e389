"""Ctrl-C, SIGTERM and SIGHUP save a checkpoint; resumed runs equal uninterrupted runs bit for bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from regard.training.interrupts import EXIT_STATUS, interruptible
from tests.facts import mentions
from tests.training.toys import Toy, bits, records, trainer

SETTINGS = {"steps": 12, "evaluate_every": 5, "save_every": 4, "ema": 0.9}


@pytest.fixture(autouse=True)
def default_hangup():
    """Let SIGHUP take effect also if these tests run under nohup, which makes processes ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def interrupted(folder: Path, number: signal.Signals, where: str, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Return a task that sends a signal in its seventh step, second evaluation, or first save."""
    task = Toy(dropout=0.3)
    if where == "step":
        task.on_loss = lambda count: kill(number) if count == 7 else None
    elif where == "evaluation":
        task.on_evaluation = lambda count: kill(number) if count == 2 else None
    else:
        real, calls = os.fsync, []

        def fsync(handle: int) -> None:
            calls.append(handle)
            if len(calls) == 3:
                kill(number)
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
    return task


@pytest.mark.parametrize("where", ["step", "evaluation", "save"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_saves_and_the_resumed_run_has_the_same_bits(
    tmp_path: Path, monkeypatch, number: signal.Signals, where: str
):
    trainer(tmp_path / "whole", Toy(dropout=0.3), log=True, **SETTINGS).run()
    folder = tmp_path / "broken"
    with monkeypatch.context() as patch:
        task = interrupted(folder, number, where, patch)
        with interruptible() as interruption:
            at = trainer(folder, task, log=True, **SETTINGS).run(interruption)
    assert interruption.cause == ("Ctrl-C" if number == signal.SIGINT else number.name)
    assert at.ended == "" and at.step == {"step": 7, "evaluation": 10, "save": 5}[where]
    resumed = trainer(folder, Toy(dropout=0.3), log=True, **SETTINGS)
    checkpoint = resumed.resume()
    assert checkpoint is not None and checkpoint.step == at.step
    assert resumed.run().ended == "completed all steps"
    assert bits(folder) == bits(tmp_path / "whole")
    for kind in ("training", "evaluation"):
        logged, expected = (
            [(e["step"], e["loss"]) for e in records(each, kind)] for each in (folder, tmp_path / "whole")
        )
        assert logged == expected


def test_run_interrupted_in_its_last_evaluation_has_not_ended(tmp_path: Path):
    task = Toy()
    task.on_evaluation = lambda count: kill(signal.SIGINT)
    with interruptible() as interruption:
        at = trainer(tmp_path, task, steps=4, evaluate_every=100).run(interruption)
    assert (at.step, at.ended, at.evaluated) == (4, "", 0)
    resumed = trainer(tmp_path, steps=4, evaluate_every=100)
    resumed.resume()
    assert resumed.run().evaluated == 4


def twice(number: signal.Signals) -> Toy:
    task = Toy()
    task.on_loss = lambda count: [kill(number), kill(number)] if count == 3 else None
    return task


def test_first_signal_prints_at_once_and_second_reports_unsaved_steps(tmp_path: Path, capfd):
    task, printed = Toy(), list[str]()

    def strike(count: int) -> None:
        if count == 3:
            kill(signal.SIGINT)
            printed.append(capfd.readouterr().err)
            kill(signal.SIGINT)

    task.on_loss = strike
    for folder, saved in (("a", "nothing"), ("b", "step 2 ")):
        task.losses = 0
        (tmp_path / folder).mkdir()
        settings = {"evaluate_every": 100} if folder == "a" else {"save_every": 2}
        with pytest.raises(KeyboardInterrupt), interruptible() as interruption:
            trainer(tmp_path / folder, task, log=True, **settings).run(interruption)
        assert mentions(printed[-1], "stopping", "Ctrl-C")
        (record,) = records(tmp_path / folder, "stopped")
        assert saved in record["text"]


def test_second_signal_exits_at_once(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), interruptible() as interruption:
        trainer(tmp_path / "a", twice(signal.SIGINT)).run(interruption)
    with pytest.raises(SystemExit) as caught, interruptible() as interruption:
        trainer(tmp_path / "b", twice(signal.SIGTERM)).run(interruption)
    assert caught.value.code == 143


def test_ignored_sighup_stays_ignored():
    """nohup ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interruption:
            kill(signal.SIGHUP)
        assert not interruption and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_exit_statuses_are_those_of_shells():
    assert EXIT_STATUS == {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129}


def test_handlers_are_restored():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with interruptible():
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before
