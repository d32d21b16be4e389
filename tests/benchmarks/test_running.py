"""Running a suite: time limits, correctness checks, failing peers, and the record."""

from __future__ import annotations

import time

import pytest

from benchmarks.cases import Case, Gate, Peer, Wrong
from benchmarks.measure import Processor, Timing, taken_for
from benchmarks.running import Budget, Run


class Clock(Processor):
    """A fake machine: a function takes as many milliseconds as it returns."""

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


def test_failed_peer_is_a_row_and_the_others_run():
    first, second = ran(Peer("one", fails), Peer("two", takes(3)))
    assert first["missing"].endswith("RuntimeError: no kernel and more")
    assert second["both"]["median"] == 3 and "missing" not in second


def test_failed_pass_keeps_the_earlier_pass():
    (row,) = ran(Peer("one", lambda: {"forward": lambda: 1.0, "both": fails}))
    assert row["forward"]["median"] == 1 and row["missing"].startswith("both: ")


def test_regard_is_not_timed_if_its_check_fails():
    def gate(peer):
        raise Wrong("output in torch.float32: error 1, allowed 0")

    theirs, ours = ran(Peer("eager", takes(1)), Peer("regard", takes(1), ours=True), gate=gate)
    assert "both" in theirs and "both" not in ours
    assert "Wrong: output in torch.float32" in ours["missing"]


def test_peer_stops_at_the_length_where_it_takes_seconds():
    peers = [Peer("one", takes(1000), length=n, work=n * n) for n in (1, 2, 4, 8)]
    found = ran(*peers)
    assert [row.get("missing") for row in found][2:] == ["stopped at 2", "stopped at 2"]
    assert "missing" not in found[0] and "4.0 s" in found[1]["missing"]


def test_peer_that_needs_too_much_memory_is_not_run():
    (row,) = ran(Peer("one", fails, holds=1e18))
    assert "GiB of" in row["missing"]


def test_turns_run_in_order_and_rows_keep_theirs():
    order = []

    def make(name):
        return lambda: order.append(name) or {"both": lambda: 1.0}

    found = ran(Peer("late", make("late"), turn=1), Peer("early", make("early")))
    assert order == ["early", "late"] and [row["peer"] for row in found] == ["late", "early"]


def test_reason_for_time_limit_and_quick_run():
    (late,) = ran(Peer("one", takes(1), turn=1), budget=Budget(limit=1))
    (left,) = ran(Peer("one", takes(1), turn=1), budget=Budget(turns=0))
    assert "limit of 1 s" in late["missing"] and "quick run" in left["missing"]


def test_interrupted_run_keeps_its_results():
    def stop():
        raise KeyboardInterrupt

    kept = []
    case = Case("A case", (Peer("one", takes(1)), Peer("two", stop)), lambda peer: Gate(0, 0))
    run = Run({"case": case}, Clock(), Budget(), kept.append, lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        run()
    first, second = kept[-1]["cases"]["case"]["rows"]
    assert first["both"]["median"] == 1 and second["missing"] == "stopped"


def test_slow_function_is_timed_three_times():
    timing = taken_for(0.0, lambda: 2.0, "said")
    assert timing == Timing(2.0, 2.0, 2.0, 3, "said")
    begun = time.perf_counter()
    many = taken_for(0.01, lambda: 1.0, "said")
    assert many.runs >= 5 and time.perf_counter() > begun
