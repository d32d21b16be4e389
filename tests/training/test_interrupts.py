"""Ctrl-C, SIGTERM and SIGHUP save; a resumed run ends with the bits of a run that was never stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from regard.training.interrupts import EXIT_STATUS, interruptible
from tests.training.toys import Toy, bits, records, trainer

SETTINGS = {"steps": 12, "evaluate_every": 5, "save_every": 4, "ema": 0.9}


def kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def interrupted(folder: Path, number: signal.Signals, where: str, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A run that gets a signal in its seventh step, its second evaluation, or inside its first save."""
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
def test_a_signal_saves_and_the_run_goes_on(tmp_path: Path, monkeypatch, number: signal.Signals, where: str):
    trainer(tmp_path / "whole", Toy(dropout=0.3), log=True, **SETTINGS).run()
    folder = tmp_path / "broken"
    with monkeypatch.context() as patch:
        task = interrupted(folder, number, where, patch)
        with interruptible() as asked:
            at = trainer(folder, task, log=True, **SETTINGS).run(asked)
    assert asked.cause == ("Ctrl-C" if number == signal.SIGINT else number.name)
    assert at.ended == "" and at.step == {"step": 7, "evaluation": 10, "save": 5}[where]
    going_on = trainer(folder, Toy(dropout=0.3), log=True, **SETTINGS)
    found = going_on.resume()
    assert found is not None and found.step == at.step
    assert going_on.run().ended == "completed all steps"
    assert bits(folder) == bits(tmp_path / "whole")
    for kind in ("training", "evaluation"):
        told, expected = (
            [(e["step"], e["loss"]) for e in records(each, kind)] for each in (folder, tmp_path / "whole")
        )
        assert told == expected


def test_one_in_the_last_evaluation_leaves_a_run_that_has_not_ended(tmp_path: Path):
    task = Toy()
    task.on_evaluation = lambda count: kill(signal.SIGINT)
    with interruptible() as asked:
        at = trainer(tmp_path, task, steps=4, evaluate_every=100).run(asked)
    assert (at.step, at.ended, at.evaluated) == (4, "", 0)
    going_on = trainer(tmp_path, steps=4, evaluate_every=100)
    going_on.resume()
    assert going_on.run().evaluated == 4


def twice(number: signal.Signals) -> Toy:
    task = Toy()
    task.on_loss = lambda count: [kill(number), kill(number)] if count == 3 else None
    return task


def test_the_first_signal_prints_at_once_and_the_second_reports_unsaved_steps(tmp_path: Path, capfd):
    task, printed = Toy(), list[str]()

    def strike(count: int) -> None:
        if count == 3:
            kill(signal.SIGINT)
            printed.append(capfd.readouterr().err)
            kill(signal.SIGINT)

    task.on_loss = strike
    for folder, saved in (("a", "nothing is saved"), ("b", "since step 2 ")):
        task.losses = 0
        (tmp_path / folder).mkdir()
        settings = {"evaluate_every": 100} if folder == "a" else {"save_every": 2}
        with pytest.raises(KeyboardInterrupt), interruptible() as asked:
            trainer(tmp_path / folder, task, log=True, **settings).run(asked)
        assert "stopping" in printed[-1] and "Ctrl-C again" in printed[-1]
        (record,) = records(tmp_path / folder, "stopped")
        assert saved in record["text"]


def test_a_second_one_ends_at_once(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), interruptible() as asked:
        trainer(tmp_path / "a", twice(signal.SIGINT)).run(asked)
    with pytest.raises(SystemExit) as caught, interruptible() as asked:
        trainer(tmp_path / "b", twice(signal.SIGTERM)).run(asked)
    assert caught.value.code == 143


def test_a_hangup_that_is_ignored_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as asked:
            kill(signal.SIGHUP)
        assert not asked and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_exit_status_is_that_of_shells():
    assert EXIT_STATUS == {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129}


def test_handlers_are_restored():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with interruptible():
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before
