"""Run a suite: check correctness, then measure each peer; a peer that fails does not stop the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.cases import Case, Peer
from benchmarks.measure import Machine

__all__ = ["Budget", "Run"]

FITS = 0.85
"""Peers that are known to need more than this fraction of the memory are not run."""

SLOWEST = 2000.0
"""A peer that is expected to take more milliseconds than this at the next length stops there."""

TAKES = (2.0, 12.0, 12.0, 40.0)
"""Approximate time of a peer of each turn in seconds, including compilation."""


@dataclass(frozen=True)
class Budget:
    """Time limits. seconds: measuring time per case. limit: of the whole run. turns: the last turn to run."""

    seconds: float = 3.0
    limit: float = math.inf
    turns: int = 3

    def left_out(self, peer: Peer, gone: float) -> str:
        """Return why this peer is not run, or ""; gone: seconds since the start of the run."""
        if peer.turn > self.turns:
            return "left out of a quick run"
        if gone + TAKES[peer.turn] > self.limit:
            return f"not run: the time limit of {self.limit:.0f} s was reached"
        return ""


@dataclass
class Run:
    """A run of cases on a machine. found: the record. keep: called with the record after every peer."""

    cases: dict[str, Case]
    machine: Machine
    budget: Budget
    keep: Callable[[dict[str, Any]], None]
    say: Callable[[str], None] = print
    found: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> dict[str, Any]:
        """Run all cases and return the record."""
        self.begun = time.monotonic()
        self.found["cases"] = {
            name: {
                "about": case.about,
                "limit": case.limit,
                "limited by": case.limited_by,
                "gates": {},
                "rows": [_empty(peer) for peer in case.peers],
            }
            for name, case in self.cases.items()
        }
        for turn in range(len(TAKES)):
            for name, case in self.cases.items():
                for number, peer in enumerate(case.peers):
                    if peer.turn == turn:
                        self._peer(name, case, number)
        return self.found

    def _peer(self, name: str, case: Case, number: int) -> None:
        peer, record = case.peers[number], self.found["cases"][name]
        row = record["rows"][number]
        gone = time.monotonic() - self.begun
        row["missing"] = (
            self.budget.left_out(peer, gone)
            or self._too_much(peer, record["rows"])
            or (self._gated(name, case, peer) if peer.ours else "")
        )
        if not row["missing"]:
            self._measure(name, case, number, row)
        row = record["rows"][number] = {key: value for key, value in row.items() if value not in ("", None)}
        self.say(_said(name, row))
        self.found["seconds"] = round(time.monotonic() - self.begun, 1)
        self.keep(self.found)

    def _measure(self, name: str, case: Case, number: int, row: dict[str, Any]) -> None:
        peer, start = case.peers[number], time.monotonic()
        stage = "setup"
        passes: dict[str, Callable[[], object]] = {}
        try:
            self.machine.clean()
            row["note"] = peer.note()
            passes = peer.make()
            share = self.budget.seconds / (len(case.peers) * len(passes))
            for stage, run in passes.items():
                row[stage] = asdict(self.machine.timed(run, share))
            stage = "peak memory"
            row["peak_mib"] = self.machine.peak(run, name, number)
        except Exception as error:
            row["missing"] = f"{stage}: {_why(error)}"
        except KeyboardInterrupt:
            row["missing"] = "stopped"
            raise
        finally:
            passes.clear()
        row["seconds"] = round(time.monotonic() - start, 1)
        row["clock"] = self.machine.clock(start)

    def _too_much(self, peer: Peer, rows: list[dict[str, Any]]) -> str:
        """Return why this peer is not run at its length: too much memory or time; otherwise ""."""
        if peer.holds > FITS * self.machine.memory:
            gib = 2**30
            return f"not run: would need {peer.holds / gib:.0f} GiB of {self.machine.memory / gib:.0f} GiB"
        if peer.length is None:
            return ""
        before = [
            row
            for row in rows
            if (row["peer"], row["dtype"]) == (peer.name, peer.dtype) and row["length"] < peer.length
        ]
        if not before:
            return ""
        last = max(before, key=lambda row: row["length"])
        if "both" not in last:
            missing = str(last.get("missing", ""))
            return missing if missing.startswith("stopped at") else f"stopped at {last['length']:,}"
        expected = last["both"]["median"] * peer.work / last["work"]
        return f"not run: would take {expected / 1000:.1f} s" if expected > SLOWEST else ""

    def _gated(self, name: str, case: Case, peer: Peer) -> str:
        """Return why a peer of Regard must not be timed, or ""; each gate runs once."""
        gates = self.found["cases"][name]["gates"]
        key = peer.dtype if peer.name == "regard" else f"{peer.dtype}, {peer.name}"
        if key not in gates:
            try:
                self.machine.clean()
                gates[key] = asdict(case.gate(peer))
                self.say(f"{name} {key}: correctness check passed, {gates[key]['strict']:.2f} of the budget")
            except Exception as error:
                gates[key] = {"failed": _why(error)}
        why = gates[key].get("failed")
        return f"correctness check failed: {why}" if why else ""


def _empty(peer: Peer) -> dict[str, Any]:
    row: dict[str, Any] = {"peer": peer.name, "dtype": peer.dtype, "missing": "not reached"}
    if peer.length is not None:
        row |= {"length": peer.length, "work": peer.work}
    return row | ({"ours": True} if peer.ours else {})


def _why(error: BaseException) -> str:
    """Return the first two non-empty lines of an error message, shortened."""
    if type(error).__name__ == "OutOfMemoryError":
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {' '.join(lines[:2])}"
    return text if len(text) <= 160 else f"{text[:159]}…"


def _said(name: str, row: dict[str, Any]) -> str:
    """Return the progress line of a row."""
    length = f" {row['length']:,}" if "length" in row else ""
    times = [f"{pass_} {row[pass_]['median']:.4g} ms" for pass_ in ("forward", "both") if pass_ in row]
    peak = [f"{row['peak_mib']:.0f} MiB"] if "peak_mib" in row else []
    note = [row["note"]] if "note" in row else []
    missing = [f"({row['missing']})"] if "missing" in row else []
    return f"{name}{length} {row['dtype']} {row['peer']}: {', '.join([*times, *peak, *note, *missing])}"
