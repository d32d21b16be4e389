"""The training log: means over tokens, records at fixed steps, and resuming."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from regard.training.logs import log as module
from regard.training.logs.log import Log, Means

TIMED = ("cuda_memory", "memory", "time", "tokens_per_second")
"""Fields that may differ between two runs of the same calls."""


class Clock:
    """A fake clock: `now` changes only by assignment."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plain() -> Console:
    return Console(file=io.StringIO(), width=80)


def lines_of(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def records(path: Path, without: tuple[str, ...] = ()) -> list[dict[str, object]]:
    """Return the records of a log; assert that each line is strict JSON (no NaN or Infinity)."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = path.read_bytes().decode("ascii")
    assert not text or text.endswith("\n")
    every = [json.loads(line, parse_constant=refuse) for line in text.split("\n")[:-1]]
    return [{name: value for name, value in each.items() if name not in without} for each in every]


@pytest.fixture(autouse=True)
def same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory", lambda: {"memory": 812 * 2**20})


@pytest.mark.parametrize("shown", [True, False])
def test_a_task_without_a_perplexity_prints_none(shown: bool):
    console = plain()
    with Log(None, total=3, console=console, clock=Clock()) as log:
        log.has_perplexity = shown
        log.step(1, loss=2.0, tokens=300, rate=3e-4)
    assert ("perplexity" in lines_of(console)[0]) == shown


def test_plain_lines_are_printed_every_ten_seconds(tmp_path: Path):
    clock, console = Clock(), plain()
    with Log(tmp_path / "log.jsonl", total=10_000, console=console, clock=clock) as log:
        for step in range(1, 31):
            clock.now += 1.0
            log.step(step, loss=2.0 if step % 2 else 4.0, tokens=300 if step % 2 else 100, rate=3e-4)
    first, second, third, last = lines_of(console)
    assert (
        first
        == "step 1/10,000  loss 2.000  perplexity 7.39  learning rate 3.0e-04  300 target tokens/s  812 MiB"
    )
    # Steps 2 to 11: five have 100 tokens and loss 4.0, five have 300 tokens and loss 2.0.
    assert second == (
        "step 11/10,000  loss 2.500  perplexity 12.18  learning rate 3.0e-04  "
        "200 target tokens/s  02:46:29 left  812 MiB"
    )
    assert third.startswith("step 21/10,000  loss 2.500")
    assert last.startswith("step 30/10,000  loss 2.588")  # the last line has the steps since the previous one


def test_total_can_be_set_later():
    clock, console = Clock(), plain()
    with Log(None, console=console, clock=clock, every=0) as log:
        log.step(1, loss=1.0, tokens=10, rate=1e-3)
        clock.now += 2.0
        log.total = 3
        log.step(2, loss=1.0, tokens=10, rate=1e-3)
    assert lines_of(console) == [
        "step 1  loss 1.000  perplexity 2.72  learning rate 1.0e-03  812 MiB",
        "step 2/3  loss 1.000  perplexity 2.72  learning rate 1.0e-03  "
        "5 target tokens/s  00:00:02 left  812 MiB",
    ]


def test_time_left_of_a_time_budget_is_printed():
    clock, console = Clock(), plain()
    with Log(None, total=1000, console=console, clock=clock, every=0) as log:
        log.time_left = lambda: 40.0
        for step in (1, 2):
            clock.now += 1.0
            log.step(step, loss=1.0, tokens=10, rate=1e-3)
    assert all("  00:00:40 left" in line for line in lines_of(console))


@pytest.mark.parametrize(("name", "title"), [("bleu", "BLEU"), ("exact", "exact match"), ("loss", "loss")])
def test_best_evaluation_names_its_metric(name: str, title: str):
    console = plain()
    with Log(None, console=console) as log:
        log.display.best_by = name
        log.evaluation(1, {"loss": 1.0, "bleu": 2.0, "exact": 3.0}, best=True)
        log.evaluation(2, {"loss": 1.0, "bleu": 2.0, "exact": 3.0})
    first, second = lines_of(console)
    assert first.split("  ")[-1].endswith(f"{title} so far") and "so far" not in second


def test_speed_excludes_evaluations_and_time_left_includes_them():
    clock, console = Clock(), plain()
    with Log(None, total=12, console=console, clock=clock, every=0) as log:
        for step in (1, 2):
            clock.now += 1.0
            log.step(step, loss=1.0, tokens=10, rate=1e-3)
            clock.now += 9.0
            log.evaluation(step, {"loss": 1.0})
    assert lines_of(console)[2] == (
        "step 2/12  loss 1.000  perplexity 2.72  learning rate 1.0e-03  "
        "10 target tokens/s  00:01:40 left  812 MiB"
    )


def test_records_are_written_every_record_steps(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    clock = Clock()
    with Log(path, console=plain(), record=4, clock=clock) as log:
        for step in range(1, 10):
            clock.now += 0.5
            parts = {"guided": 0.5} if step == 1 else {}
            log.step(step, loss=float(step), tokens=10 * step, rate=step / 1000, norm=2.0, parts=parts)
    first, second = records(path)
    assert abs(float(str(first.pop("time")))) > 0 and second.pop("time")
    means = sum(step * step for step in range(1, 5)) / 10, sum(step * step for step in range(5, 9)) / 26
    assert first == {
        "kind": "training",
        "step": 4,
        "loss": means[0],
        "norm": 2.0,
        "parts": {"guided": 0.5},
        "tokens": 100,
        "rate": 0.004,
        "tokens_per_second": 50.0,
        "memory": 812 * 2**20,
    }
    assert second["step"] == 8 and second["loss"] == means[1] and "parts" not in second


def test_evaluations_and_events_are_printed_and_written(tmp_path: Path):
    path, console = tmp_path / "log.jsonl", plain()
    with Log(path, console=console) as log:
        scores = {"loss": 2.1, "perplexity": 8.17, "bleu": 31.24, "chrf": 50.06, "aer": 14.123}
        log.evaluation(1200, scores, best=True, shown=["나는 학생이다"])
        log.evaluation(1400, {"loss": 2.2})
        log.event("saved", "saved at step 1,400", step=1400, folder=Path("runs"))
    assert lines_of(console) == [
        "evaluation at step 1,200  loss 2.100  perplexity 8.17  BLEU 31.2  chrF 50.1  aer 14.12  best so far",
        "나는 학생이다",
        "evaluation at step 1,400  loss 2.200",
        "saved at step 1,400",
    ]
    assert records(path, without=TIMED) == [
        {"kind": "evaluation", "step": 1200, **scores, "best": True},
        {"kind": "evaluation", "step": 1400, "loss": 2.2, "best": False},
        {"kind": "saved", "text": "saved at step 1,400", "step": 1400, "folder": "runs"},
    ]


def test_nan_and_infinite_losses_are_written_as_strict_json(tmp_path: Path):
    path, console = tmp_path / "log.jsonl", plain()
    with Log(path, console=console, record=1, every=0) as log:
        for step, loss in enumerate((math.nan, math.inf, -math.inf, 1e308, 800.0), 1):
            log.step(step, loss=loss, tokens=100, rate=math.nan, norm=math.inf)
        log.evaluation(5, {"loss": math.nan, "perplexity": math.inf})
        log.step(6, loss=math.nan, tokens=0, rate=0.1)
    losses = [each["loss"] for each in records(path)]
    assert losses == ["NaN", "Infinity", "-Infinity", "Infinity", 800.0, "NaN", None]
    assert [float(str(loss)) for loss in losses[1:3]] == [math.inf, -math.inf]
    assert lines_of(console)[0].startswith("step 1  loss nan  perplexity nan  learning rate nan")
    assert lines_of(console)[4].startswith("step 5  loss 800.000  perplexity inf")


def train(log: Log, path: Path, steps: range, kept: dict[int, tuple[int, str]] | None = None) -> None:
    """Make calls that depend only on the step; store the log's position and state after each in `kept`."""
    for step in steps:
        parts = {"guided": 1 / step} if step % 3 else {}
        log.step(step, loss=1 / (step * 0.7), tokens=step * 7 % 11, rate=0.1 / step, norm=0.3, parts=parts)
        if step % 5 == 0:
            log.evaluation(step, {"loss": 0.1 / step, "bleu": step / 3}, best=step % 10 == 0)
        if step % 6 == 0:
            log.event("saved", f"step {step}")
        if kept is not None:
            kept[step] = log.position(), json.dumps(log.state(), allow_nan=False)


@pytest.mark.parametrize("at", range(1, 24))
def test_resumed_log_equals_that_of_an_uninterrupted_run(tmp_path: Path, at: int):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    kept: dict[int, tuple[int, str]] = {}
    with Log(whole, console=plain(), record=4) as log:
        train(log, whole, range(1, 25))
    with Log(broken, console=plain(), record=4) as log:
        train(log, broken, range(1, min(at + 9, 25)), kept)
    with broken.open("ab") as file:
        file.write(b'{"kind": "training", "lo')  # killed while writing
    with Log(broken, console=plain(), record=4) as log:
        position, state = kept[at]
        log.rewind(position)
        log.restore(json.loads(state))
        assert json.dumps(log.state()) == state
        train(log, broken, range(at + 1, 25))
    assert records(broken, without=TIMED) == records(whole, without=TIMED)


def test_state_with_nan_is_restored():
    log = Log(None, console=plain())
    log.step(1, loss=math.nan, tokens=5, rate=0.1, norm=math.inf)
    again = Log(None, console=plain())
    again.restore(json.loads(json.dumps(log.state(), allow_nan=False)))
    assert again.state() == log.state() and log.state()["since_record"]["own"]["loss"] == ["NaN", 5]


def test_speed_of_a_resumed_run_excludes_earlier_steps(tmp_path: Path):
    before = Means()
    before.add(10_000, 5.0, 2.0, None, {})
    after = Means(before.state())
    assert after.speed() is None and after.tokens == 10_000
    after.add(100, 2.0, 4.0, None, {})
    assert after.speed() == 50.0 and after.of("own") == {"loss": (20_000 + 400) / 10_100}


def test_joined_means_equal_the_means_of_all_steps():
    steps = [(3, 0.5, 2.0, 1.0, {"a": 1.0}), (5, 0.5, 4.0, None, {"b": 2.0}), (8, 1.0, 1.0, 3.0, {"a": 3.0})]
    one, other, both = Means(), Means(), Means()
    for place, step in enumerate(steps):
        (one if place < 2 else other).add(*step)
        both.add(*step)
    joined = one.joined(other)
    assert joined.of("own") == both.of("own") and joined.of("parts") == both.of("parts") == {
        "a": 27 / 11,
        "b": 2.0,
    }
    assert joined.speed() == both.speed() == 8.0 and joined.tokens == 16


def test_a_log_without_a_file_has_no_position():
    log = Log(None, console=plain())
    log.event("saved", "something")
    log.rewind(100)
    assert log.position() == 0 and lines_of(log.display.console) == ["something"]


def test_memory_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert module.memory()["memory"] > 2**20
    monkeypatch.setattr(module, "resident", lambda: None)
    monkeypatch.setattr(module.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "max_memory_allocated", lambda: 5)
    assert module.memory() == {"cuda_memory": 5}


def test_memory_without_proc_is_the_peak(monkeypatch: pytest.MonkeyPatch):
    now = module.resident()

    def nowhere(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_bytes", nowhere)
    most = module.resident()
    assert now is not None and most is not None and most > 2**20
