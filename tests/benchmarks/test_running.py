"""Running a suite: budgets, gates, what fails, and what is kept."""

from __future__ import annotations

import time

import pytest

from benchmarks.cases import Case, Gate, Peer, Wrong
from benchmarks.measure import Processor, Timing, taken_for
from benchmarks.running import Budget, Run


class Clock(Processor):
    """Says that a run took as many milliseconds as the run returns."""

    def timed(self, run, seconds):
        taken = float(run())
        return Timing(taken, taken, taken, 1, "said")

    def peak(self, run, case, number):
        return 0.0


def ran(*peers: Peer, budget: Budget | None = None, gate=lambda peer: Gate(0.5, 0.5)) -> list[dict]:
    case = Case("A case", peers, gate)
    run = Run({"case": case}, Clock(), budget or Budget(), lambda found: None, lambda line: None)
    return run()["cases"]["case"]["rows"]


def takes(milliseconds: float):
    return lambda: {"both": lambda: milliseconds}


def fails():
    raise RuntimeError("no kernel\nand more\nand a stack")


def test_what_fails_is_a_row_and_the_others_go_on():
    first, second = ran(Peer("one", fails), Peer("two", takes(3)))
    assert first["missing"] == "making it: RuntimeError: no kernel and more"
    assert second["both"]["median"] == 3 and "missing" not in second


def test_a_pass_that_fails_keeps_the_one_before():
    (row,) = ran(Peer("one", lambda: {"forward": lambda: 1.0, "both": fails}))
    assert row["forward"]["median"] == 1 and row["missing"].startswith("both: ")


def test_ours_is_not_timed_where_it_is_wrong():
    def gate(peer):
        raise Wrong("output in torch.float32: error 1, allowed 0")

    theirs, ours = ran(Peer("eager", takes(1)), Peer("regard", takes(1), ours=True), gate=gate)
    assert "both" in theirs and "both" not in ours
    assert ours["missing"].startswith("the gate: Wrong: output in torch.float32")


def test_a_peer_is_stopped_where_it_would_take_seconds():
    peers = [Peer("one", takes(1000), length=n, work=n * n) for n in (1, 2, 4, 8)]
    found = ran(*peers)
    assert [row.get("missing") for row in found] == [
        None, "would take 4.0 s: not tried", "stopped at 2", "stopped at 2"
    ]  # fmt: skip


def test_what_is_known_not_to_fit_is_not_tried():
    (row,) = ran(Peer("one", fails, holds=1e18))
    assert "GiB of" in row["missing"]


def test_turns_are_taken_in_order_and_rows_stay_in_theirs():
    order = []

    def make(name):
        return lambda: order.append(name) or {"both": lambda: 1.0}

    found = ran(Peer("late", make("late"), turn=1), Peer("early", make("early")))
    assert order == ["early", "late"] and [row["peer"] for row in found] == ["late", "early"]


def test_no_time_left_and_a_quick_run_are_told():
    (late,) = ran(Peer("one", takes(1), turn=1), budget=Budget(limit=1))
    (left,) = ran(Peer("one", takes(1), turn=1), budget=Budget(turns=0))
    assert late["missing"] == "no time was left: the run may take 1 s"
    assert left["missing"] == "left out of a quick run"


def test_what_was_measured_is_kept_when_it_is_stopped():
    def stop():
        raise KeyboardInterrupt

    kept = []
    case = Case("A case", (Peer("one", takes(1)), Peer("two", stop)), lambda peer: Gate(0, 0))
    run = Run({"case": case}, Clock(), Budget(), kept.append, lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        run()
    first, second = kept[-1]["cases"]["case"]["rows"]
    assert first["both"]["median"] == 1 and second["missing"] == "stopped"


def test_a_slow_run_is_timed_three_times():
    timing = taken_for(0.0, lambda: 2.0, "said")
    assert timing == Timing(2.0, 2.0, 2.0, 3, "said")
    begun = time.perf_counter()
    many = taken_for(0.01, lambda: 1.0, "said")
    assert many.runs >= 5 and time.perf_counter() > begun
