"""Time budgets: minutes are converted to steps, and the number of steps follows the speed (fake clock)."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from regard.training.logs.log import Log
from regard.training.loop import Trainer
from regard.training.progress import Progress, evaluation_due, pace_is_known, plan_steps, total_steps
from regard.training.settings import Training
from tests.facts import mentions
from tests.training.toys import Toy, last, records, trainer


class Clock:
    """A fake clock: time passes only by passes()."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def timed(folder: Path, clock: Clock, step: float, evaluation: float, **settings: object) -> Trainer:
    """Return a trainer of a toy task; each step and each evaluation takes this many seconds."""
    task = Toy()
    task.on_loss = lambda count: clock.passes(step)
    task.on_evaluation = lambda count: clock.passes(evaluation)
    usual = trainer(folder, task, log=True, **settings)
    return Trainer(task, usual.settings, folder, seed=5, log=usual.log, clock=clock)


def test_minutes_are_converted_to_steps_that_fit(tmp_path: Path):
    clock = Clock()
    run = timed(tmp_path, clock, step=1.0, evaluation=5.0, minutes=2.0, warmup_steps=50)
    at = run.run()
    assert at.ended == f"stopped after 2 minutes at step {at.step}" and at.step == at.total
    assert 108 <= clock.now - 1000 <= 120
    assert last(tmp_path).state["total"] == at.total


def test_a_checkpoint_is_due_after_a_minute_and_then_every_ten_minutes(tmp_path: Path):
    clock = Clock()
    run = timed(tmp_path, clock, step=250.0, evaluation=0.0, steps=10, evaluate_every=100, save_every=None)
    saved, save = list[int](), run.save

    def count() -> None:
        saved.append(run.progress.step)
        save()

    run.save = count  # type: ignore[method-assign]
    run.run()
    # The clock is read before a step is computed: step 2 begins after 250 seconds, and step 6 begins 750
    # seconds after the checkpoint of step 2.
    assert saved[:2] == [2, 6] and set(saved[2:]) == {10}
    clock = Clock()
    resumed = timed(
        tmp_path, clock, step=250.0, evaluation=0.0, steps=20, evaluate_every=100, save_every=None
    )
    assert resumed.resume() is not None
    saved.clear()
    save, run, resumed.save = resumed.save, resumed, count  # type: ignore[method-assign]
    resumed.run()
    assert saved[0] == 14


def test_last_step_is_logged_before_the_run_returns(tmp_path: Path):
    page, clock = io.StringIO(), Clock()
    task = Toy()
    task.on_loss = lambda count: clock.passes(0.01)
    settings = Training(minutes=1 / 60, learning_rate=0.05, best="loss")
    with Log(None, console=Console(file=page, width=200)) as log:
        at = Trainer(task, settings, tmp_path, log=log, clock=clock).run()
        lines = page.getvalue().splitlines()
        log.event("ended", at.ended)
    assert lines[-2].startswith(f"step {at.step}/") and mentions(lines[-1], "evaluation", f"step {at.step}")
    assert page.getvalue().splitlines() == [*lines, at.ended]


def test_slow_first_steps_do_not_shorten_the_run(tmp_path: Path):
    steps = {}
    for slow in (0, 10):  # regression: slow first steps once took a third of a demo
        clock = Clock()
        run = timed(tmp_path / str(slow), clock, step=0.5, evaluation=0.5, minutes=1.0)
        run.task.on_loss = lambda count, slow=slow, clock=clock: clock.passes(  # type: ignore[attr-defined]
            2.0 if count <= slow else 0.5
        )
        steps[slow] = run.run().step
        assert 54 <= clock.now - 1000 <= 60
    lost = 10 * (2.0 - 0.5) / 0.5
    assert steps[10] == pytest.approx(steps[0] - lost, rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.25), (0.25, 1.0)])
def test_total_steps_follow_a_change_of_speed(tmp_path: Path, before: float, after: float):
    clock = Clock()
    run = timed(tmp_path, clock, step=1.0, evaluation=0.5, minutes=2.0)
    run.task.on_loss = lambda count: clock.passes(  # type: ignore[attr-defined]
        before if clock.now < 1040 else after
    )
    at = run.run()
    assert "2 minutes" in at.ended and 108 <= clock.now - 1000 <= 120
    totals = [each["total"] for each in records(tmp_path, "budget")]
    assert len(totals) > 1 and (totals[-1] > totals[0]) == (after < before)
    assert totals[-1] == pytest.approx(at.total, rel=0.05)


def test_resumed_run_keeps_its_total_steps(tmp_path: Path):
    clock = Clock()
    first = timed(tmp_path, clock, step=1.0, evaluation=5.0, minutes=2.0)
    for _ in range(30):
        first.take_step()
        if first.progress.total is None:
            first._plan_steps()
    assert first.progress.total is not None
    same = timed(tmp_path, clock, step=1.0, evaluation=3.0, minutes=2.0)
    same.resume()
    assert same.progress.total == first.progress.total
    assert same.run().step == same.progress.total
    again = timed(tmp_path, clock, step=1.0, evaluation=3.0, minutes=2.0)
    again.resume()
    assert again.run().step == same.progress.total


@pytest.mark.parametrize("length", [{"minutes": 4.0}, {"steps": 60}])
def test_new_length_replaces_the_total_steps(tmp_path: Path, length: dict[str, float]):
    clock = Clock()
    before = timed(tmp_path, clock, step=1.0, evaluation=1.0, minutes=0.5).run().total
    changed = timed(tmp_path, clock, step=1.0, evaluation=1.0, **length)
    changed.resume()
    at = changed.run()
    assert before is not None and at.step == at.total > before
    assert at.total == 60 or 150 < at.total < 245


def test_run_out_of_time_ends_and_does_not_continue_when_resumed(tmp_path: Path):
    clock = Clock()
    run = timed(tmp_path, clock, step=1.0, evaluation=1.0, minutes=1.0)
    run.task.on_loss = lambda count: clock.passes(1.0 if count < 40 else 30.0)  # type: ignore[attr-defined]
    at = run.run()
    assert at.ended and at.step in (40, 41)
    again = timed(tmp_path, clock, step=1.0, evaluation=1.0, minutes=1.0)
    again.resume()
    assert again.run().step == at.step


def test_speed_is_known_after_20_steps_or_a_tenth_of_the_time():
    assert [pace_is_known(600, 10, step) for step in (5, 19, 20)] == [False, False, True]
    assert pace_is_known(600, 60, 3) and not pace_is_known(600, 59, 3)


def test_evaluations_take_at_most_a_tenth_of_the_time():
    for evaluation in (0.01, 1.0, 3.0, 10.0, 1000.0):
        total, every = plan_steps(600, 60, 100, 0.6, evaluation, None)
        count = -(-(total - 100) // every)
        assert total >= 100 and count <= 10 and (count <= 1 or count * evaluation <= 60)
        assert 60 + (total - 100) * 0.6 + count * evaluation <= 600 or evaluation == 1000.0
    assert plan_steps(600, 60, 100, 0.6, 6.0, every=10) == (100 + int(510 / 1.2), 10)


def test_total_steps_from_epochs_and_by_default():
    assert total_steps(Training(epochs=1.5, accumulation_steps=2), epoch=100) == 75
    assert [total_steps(Training(), epoch) for epoch in (1, 100, 10**6)] == [2000, 3000, 100_000]
    assert not any(evaluation_due(Training(), Progress(step=step)) for step in range(1, 20))
    due = [step for step in range(1, 8) if evaluation_due(Training(), Progress(step=step, total=15))]
    assert due == [2, 4, 6]


def test_time_left_of_a_time_budget_follows_the_clock(tmp_path: Path):
    clock, left = Clock(), list[tuple[float, float]]()
    run = timed(tmp_path, clock, step=1.0, evaluation=5.0, minutes=2.0)

    def pass_a_second(count: int) -> None:
        clock.passes(1.0)
        assert run.log.time_left is not None
        left.append((run.log.time_left(), 1000 + 120 - clock.now))

    run.task.on_loss = pass_a_second  # type: ignore[attr-defined]
    run.run()
    assert left and all(logged == pytest.approx(exact) for logged, exact in left)
    steps = timed(tmp_path / "steps", clock, step=1.0, evaluation=5.0, steps=3)
    steps.run()
    assert steps.log.time_left is None
