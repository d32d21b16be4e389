"""How long is trained: minutes become steps once the speed is known, and stay that; no clock but a toy's."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.training.budget import evaluation_interval, fitted, is_known, total_steps
from regard.training.interrupting import Interruption
from regard.training.loop import Trainer
from regard.training.settings import Training
from tests.training.toys import Toy, last, trainer


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def timed(folder: Path, clock: Clock, step: float, evaluation: float, **settings: object) -> Trainer:
    """A trainer of a toy whose steps and evaluations take so many seconds each."""
    task = Toy()
    task.on_loss = lambda count: clock.passes(step)
    task.on_evaluation = lambda count: clock.passes(evaluation)
    made = trainer(folder, task, log=True, **settings)
    return Trainer(task, made.settings, folder, seed=5, log=made.log, clock=clock)


def test_minutes_become_a_number_of_steps_that_is_kept(tmp_path: Path):
    clock = Clock()
    run = timed(tmp_path, clock, step=1.0, evaluation=5.0, minutes=2.0, warm_up=50)
    at = run.run()
    # A tenth of two minutes is 12 steps; 114 seconds less those, less 5, less three evaluations to come.
    assert (at.total, at.every) == (94, 32)
    assert (at.step, at.ended) == (94, "all steps are taken")
    assert clock.now - 1000 == 94 + 4 * 5 <= 120
    assert last(tmp_path).state["total"] == 94


def test_a_resumed_run_keeps_its_number_of_steps(tmp_path: Path):
    clock = Clock()
    first = timed(tmp_path, clock, step=1.0, evaluation=5.0, minutes=2.0)
    for _ in range(30):
        first._step(Interruption())
        first._settle_minutes(Interruption())
    assert first.progress.total is not None
    slower = timed(tmp_path, clock, step=1.1, evaluation=5.0, minutes=2.0)
    slower.resume()
    assert slower.progress.total == first.progress.total
    assert slower.run().ended == "all steps are taken"
    again = timed(tmp_path, clock, step=1.0, evaluation=5.0, minutes=2.0)
    again.resume()
    assert again.run().step == first.progress.total


@pytest.mark.parametrize("length", [{"minutes": 4.0}, {"steps": 60}])
def test_another_length_replaces_it(tmp_path: Path, length: dict[str, float]):
    clock = Clock()
    before = timed(tmp_path, clock, step=1.0, evaluation=1.0, minutes=0.5).run().total
    changed = timed(tmp_path, clock, step=1.0, evaluation=1.0, **length)
    changed.resume()
    at = changed.run()
    assert before is not None and at.step == at.total > before
    assert at.total == 60 or 150 < at.total < 240


def test_time_that_runs_out_ends_a_run_and_it_stays_ended(tmp_path: Path):
    clock = Clock()
    run = timed(tmp_path, clock, step=1.0, evaluation=1.0, minutes=1.0)
    run.task.on_loss = lambda count: clock.passes(1.0 if count < 10 else 4.0)  # type: ignore[attr-defined]
    at = run.run()
    assert at.ended == "1 minutes are over" and at.total is not None and at.step < at.total
    again = timed(tmp_path, clock, step=1.0, evaluation=1.0, minutes=1.0)
    again.resume()
    assert again.run().step == at.step


def test_the_speed_is_known_after_the_warm_up_or_a_quarter_of_the_time():
    settings = Training(warm_up=100)
    assert [is_known(600, 10, step, settings) for step in (20, 99, 100)] == [False, False, True]
    assert is_known(600, 150, 3, settings) and not is_known(600, 149, 3, settings)
    assert not is_known(600, 1, 19, Training(warm_up=0))


def test_judging_takes_a_fifth_of_the_time_at_most():
    for evaluation in (0.01, 1.0, 3.0, 10.0, 1000.0):
        total, every = fitted(600, 60, 100, evaluation, None)
        assert total >= 100 and 1 <= -(-total // every) <= 10
        assert (total - 100) * 0.6 + (total // every) * evaluation <= 600 or evaluation == 1000.0
    assert fitted(600, 60, 100, 6.0, every=10) == (100 + int(504 / 1.2), 10)


def test_a_length_from_epochs_and_from_nothing():
    assert total_steps(Training(epochs=1.5, accumulate=2), epoch=100) == 75
    assert [total_steps(Training(), epoch) for epoch in (1, 100, 10**6)] == [2000, 3000, 100_000]
    assert evaluation_interval(Training(), None) is None
    assert evaluation_interval(Training(), 15) == 2
