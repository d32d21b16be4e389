"""Performance targets and whether the results meet them; and the cases where a peer is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.report import number

__all__ = ["Loss", "Verdict", "losses", "training", "verdicts"]

Found = dict[str, Any]
LONG, SHORT, ONE = ("long-512", "long-2048"), ("short-50", "short-64"), ("decode-50",)
DTYPES = ("bfloat16", "float32")
TANH_OF_FP32 = 132 * 128 * 1.98e9 / 3.75 / 4.13e12
"""The tanh limit, the time of one tanh per pair and channel, divided by the limit of FP32 instructions of
benchmarks/additive.py. The targets are multiples of the tanh limit; newer records contain the other one. An
H200 was measured to compute 4.13e12 tanh per second."""

LINEAR = 1.1
"""Memory counts as linear in the length if it grows by at most this factor more than the length."""


@dataclass(frozen=True)
class Verdict:
    """The result for one target. met: None if it was not measured. by: the fraction it was missed by."""

    target: str
    where: str
    measured: str
    met: bool | None
    by: float = 0.0

    @property
    def said(self) -> str:
        """The result in one or two words."""
        if self.met is False and self.by:
            return f"missed by {100 * self.by:.0f} %"
        return {True: "met", False: "missed", None: "not measured"}[self.met]


@dataclass(frozen=True)
class Loss:
    """A peer that is faster than Regard: its upper quartile is below our lower one. which: our peer."""

    case: str
    what: str
    peer: str
    theirs: float
    ours: float
    which: str


def verdicts(gpu: Found) -> list[Verdict]:
    """Return the results for all targets of the additive kernel."""
    cases = gpu["cases"]
    return [
        *_within(cases, LONG, 1.6),
        *_faster(cases, LONG, "torch.compile", 5.0),
        *_faster(cases, LONG, "eager", 10.0),
        *_faster(cases, LONG, "eager, summed", 10.0),
        *_within(cases, SHORT, 3.0),
        *_faster(cases, SHORT, "torch.compile", 4.0),
        *_faster(cases, ONE, "torch.compile", 1.0, "forward"),
        *_faster(cases, ONE, "torch.compile", 1.0),
        _linear(cases),
        _trains(cases),
        *_errors(cases),
    ]


def training(recurrent: Found) -> list[Verdict]:
    """Return the result for the training target of recurrent models at each length, of the fastest way."""
    target, times, ratio = "training bahdanau at least 8 x the eager loop", 8.0, "times the eager loop"
    found = []
    for length in dict.fromkeys(row["length"] for row in recurrent["rows"]):
        rows = [row for row in recurrent["rows"] if row["length"] == length and row["way"] != "eager loop"]
        measured = [row for row in rows if ratio in row]
        if not measured:
            found.append(Verdict(target, f"80 x {length}", "", None))
            continue
        best = max(measured, key=lambda row: row[ratio])
        said = f"{best[ratio]:.2f} x ({best['way']}, {best['tokens a second']:,.0f} tokens/s)"
        found.append(Verdict(target, f"80 x {length}", said, best[ratio] >= times, 1 - best[ratio] / times))
    return found


def _row(cases: Found, case: str, peer: str, dtype: str) -> Found:
    rows = cases.get(case, {}).get("rows", [])
    return next((row for row in rows if (row["peer"], row["dtype"]) == (peer, dtype)), {})


def _within(cases: Found, names: tuple[str, ...], times: float) -> Iterator[Verdict]:
    target = f"forward within {times:g} x of the tanh limit"
    for name in names:
        for dtype in DTYPES:
            row, where = _row(cases, name, "regard", dtype), f"{name}, {dtype}"
            if "forward" not in row:
                yield Verdict(target, where, row.get("missing", ""), None)
                continue
            bound = cases[name]["limit"] * (1.0 if cases[name]["limited by"] == "tanh" else TANH_OF_FP32)
            taken = row["forward"]["median"] / bound
            yield Verdict(target, where, f"{taken:.2f} x", taken <= times, taken / times - 1)


def _faster(
    cases: Found, names: tuple[str, ...], peer: str, times: float, which: str = "both"
) -> Iterator[Verdict]:
    kind = "forward" if which == "forward" else "forward + backward"
    target = f"{kind} at least {times:g} x faster than {peer}" if times > 1 else f"{kind} faster than {peer}"
    for name in names:
        for dtype in DTYPES:
            ours, theirs = (_row(cases, name, each, dtype) for each in ("regard", peer))
            where = f"{name}, {dtype}"
            if which not in ours or which not in theirs:
                missing = ours if which not in ours else theirs
                yield Verdict(target, where, missing.get("missing", ""), None)
                continue
            gain = theirs[which]["median"] / ours[which]["median"]
            met = gain > 1 if times == 1 else gain >= times
            yield Verdict(target, where, f"{gain:.2f} x", met, 1 - gain / times)


def _linear(cases: Found) -> Verdict:
    target = "extra memory linear in length"
    rows = [
        row
        for row in cases.get("additive-lengths", {}).get("rows", [])
        if row["peer"] == "regard" and row.get("peak_mib") and row["length"] >= 16384
    ]
    if len(rows) < 2:
        return Verdict(target, "additive-lengths", "", None)
    first, last = rows[0], rows[-1]
    longer, more = last["length"] / first["length"], last["peak_mib"] / first["peak_mib"]
    where = f"{first['length']:,} to {last['length']:,}, one sequence"
    said = f"{number(first['peak_mib'])} to {number(last['peak_mib'])} MiB: {more:.2f} x for {longer:g} x"
    return Verdict(target, where, said, more <= LINEAR * longer, more / longer - 1)


def _trains(cases: Found) -> Verdict:
    target, where = "16,384 x 16,384 trains on one GPU", "additive-16384, bfloat16"
    ours, eager = (_row(cases, "additive-16384", peer, "bfloat16") for peer in ("regard", "eager"))
    if "both" not in ours:
        return Verdict(target, where, ours.get("missing", ""), None if not ours else False)
    said = f"{number(ours['both']['median'])} ms, {number(ours.get('peak_mib', 0.0))} MiB"
    theirs = "" if "both" in eager else f"; eager {eager.get('missing', '')}"
    return Verdict(target, where, said + theirs, True)


def _errors(cases: Found) -> Iterator[Verdict]:
    target = "error at most twice that of eager, plus one rounding step"
    for dtype in DTYPES:
        gates = {
            name: case["gates"][dtype]
            for name, case in cases.items()
            if case["about"].startswith("Additive") and dtype in case["gates"]
        }
        judged = {name: gate for name, gate in gates.items() if "failed" not in gate}
        if not gates:
            yield Verdict(target, dtype, "", None)
        elif len(judged) < len(gates):
            failed = next(f"{name}: {gate['failed']}" for name, gate in gates.items() if "failed" in gate)
            yield Verdict(target, dtype, failed, False)
        else:
            worst = max(judged, key=lambda name: judged[name]["strict"])
            strict, allowed = (judged[worst][key] for key in ("strict", "allowed"))
            said = f"{strict:.2f} of that at worst ({worst})"
            if strict > 1:
                said += f"; {allowed:.2f} with a rounding step of the scores in float32"
            yield Verdict(target, f"{len(judged)} cases, {dtype}", said, strict <= 1, strict - 1)


def losses(found: Found) -> list[Loss]:
    """Return every pass in which a peer is faster than the backend of auto.

    If that backend was not measured, the fastest measured backend of Regard is compared.
    """
    lost = []
    for name, case in found["cases"].items():
        measured = [row for row in case["rows"] if row.get("ours") and not row.get("missing")]
        taken = [row for row in measured if _taken(row)]
        alone = [row for row in measured if "forward" in row]
        ours = taken or sorted(alone, key=lambda row: row["forward"]["median"])[:1]
        for mine in ours:
            for row in case["rows"]:
                alike = (row["dtype"], row.get("length")) == (mine["dtype"], mine.get("length"))
                if row is mine or not alike or "not looking" in row["peer"]:
                    continue
                for which in ("forward", "both"):
                    if which in row and which in mine and row[which]["high"] < mine[which]["low"]:
                        length = f", length {row['length']:,}" if "length" in row else ""
                        kind = "forward" if which == "forward" else "forward + backward"
                        what = f"{kind}, {row['dtype']}{length}"
                        times = (row[which]["median"], mine[which]["median"])
                        lost.append(Loss(name, what, row["peer"], *times, mine["peer"]))
    return lost


def _taken(row: Found) -> bool:
    """Return whether a row is the backend that users get by default."""
    return row["peer"] == "regard" or row.get("note") == "what auto takes"
