"""Running a suite: gates first, peers in turns, a row for each, and nothing that fails ends the run."""

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
"""Of the memory of the machine: what is known to need more is not tried."""

SLOWEST = 2000.0
"""Milliseconds: a peer that would take longer at the next length is stopped there."""

TAKES = (2.0, 12.0, 12.0, 40.0)
"""Seconds that a peer of each turn takes about, compiling included."""


@dataclass(frozen=True)
class Budget:
    """seconds: of measuring, a case. limit: seconds of the whole run. turns: the last turn that is run."""

    seconds: float = 3.0
    limit: float = math.inf
    turns: int = 3

    def left_out(self, peer: Peer, gone: float) -> str:
        """Why this peer is not run, after so many seconds."""
        if peer.turn > self.turns:
            return "left out of a quick run"
        if gone + TAKES[peer.turn] > self.limit:
            return f"no time was left: the run may take {self.limit:.0f} s"
        return ""


@dataclass
class Run:
    """Cases on a machine. `found` is the record, complete after every peer; `keep` is given it."""

    cases: dict[str, Case]
    machine: Machine
    budget: Budget
    keep: Callable[[dict[str, Any]], None]
    say: Callable[[str], None] = print
    found: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> dict[str, Any]:
        """Run everything."""
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
        stage = "making it"
        passes: dict[str, Callable[[], object]] = {}
        try:
            self.machine.clean()
            row["note"] = peer.note()
            passes = peer.make()
            share = self.budget.seconds / (len(case.peers) * len(passes))
            for stage, run in passes.items():
                row[stage] = asdict(self.machine.timed(run, share))
            stage = "its peak"
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
        """What of this peer would not fit, or take too long at its length."""
        if peer.holds > FITS * self.machine.memory:
            gib = 2**30
            return f"would hold {peer.holds / gib:.0f} GiB of {self.machine.memory / gib:.0f}: not tried"
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
        return f"would take {expected / 1000:.1f} s: not tried" if expected > SLOWEST else ""

    def _gated(self, name: str, case: Case, peer: Peer) -> str:
        """Why ours may not be timed; each gate is asked once."""
        gates = self.found["cases"][name]["gates"]
        key = peer.dtype if peer.name == "regard" else f"{peer.dtype}, {peer.name}"
        if key not in gates:
            try:
                self.machine.clean()
                gates[key] = asdict(case.gate(peer))
                self.say(f"{name} {key}: the gate is passed, {gates[key]['strict']:.2f} of the budget used")
            except Exception as error:
                gates[key] = {"failed": _why(error)}
        why = gates[key].get("failed")
        return f"the gate: {why}" if why else ""


def _empty(peer: Peer) -> dict[str, Any]:
    row: dict[str, Any] = {"peer": peer.name, "dtype": peer.dtype, "missing": "not reached"}
    if peer.length is not None:
        row |= {"length": peer.length, "work": peer.work}
    return row | ({"ours": True} if peer.ours else {})


def _why(error: BaseException) -> str:
    """The first line that says something, cut short."""
    if type(error).__name__ == "OutOfMemoryError":
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {' '.join(lines[:2])}"
    return said if len(said) <= 160 else f"{said[:159]}…"


def _said(name: str, row: dict[str, Any]) -> str:
    """The line of progress."""
    length = f" {row['length']:,}" if "length" in row else ""
    times = [f"{pass_} {row[pass_]['median']:.4g} ms" for pass_ in ("forward", "both") if pass_ in row]
    peak = [f"{row['peak_mib']:.0f} MiB"] if "peak_mib" in row else []
    note = [row["note"]] if "note" in row else []
    missing = [f"({row['missing']})"] if "missing" in row else []
    return f"{name}{length} {row['dtype']} {row['peer']}: {', '.join([*times, *peak, *note, *missing])}"
