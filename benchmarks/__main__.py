"""make bench: run the gates, then the clocks, and write a dated table into benchmarks/results."""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import asdict

from benchmarks.cases import CASES
from benchmarks.measure import RESULTS, environment, extra_peak, peak_of, timed


def main() -> None:
    """Run all cases, or those named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"one of {', '.join(CASES)}; all unless given"
    )
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "PEER"), help=argparse.SUPPRESS)
    parser.add_argument("--no-write", action="store_true", help="print the table, write no result file")
    given = parser.parse_args()
    if given.peak:
        case, peer = given.peak
        print(extra_peak(CASES[case].peers[peer]()))
        return
    unknown = [name for name in given.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; known: {', '.join(CASES)}")
    found = {}
    for name in given.cases or CASES:
        case = CASES[name]
        print(f"{name}: {case.about}", flush=True)
        case.gate()
        print("  the gate is passed", flush=True)
        found[name] = {"about": case.about, "peers": {}}
        for peer, make in case.peers.items():
            timing, peak = timed(make()), peak_of(name, peer)
            found[name]["peers"][peer] = {**asdict(timing), "peak_mib": peak}
            print(f"  {peer}: {timing.median:.0f} ms, {peak:.0f} MiB", flush=True)
    text = table(found)
    print("\n" + text)
    if not given.no_write:
        stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-cpu"
        RESULTS.mkdir(exist_ok=True)
        record = {"environment": environment(), "cases": found}
        stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        stem.with_suffix(".md").write_text(text)
        print(f"written: {stem.name}.json and .md")


def table(found: dict) -> str:
    """One Markdown table a case, and what it was measured on."""
    lines = []
    for name, case in found.items():
        lines += [f"## {name}", "", f"{case['about']}.", ""]
        lines += ["| | median ms | quartiles | extra memory MiB |", "| --- | --- | --- | --- |"]
        for peer, row in case["peers"].items():
            spread = f"{row['low']:.0f} to {row['high']:.0f}"
            lines.append(f"| {peer} | {row['median']:.0f} | {spread} | {row['peak_mib']:.0f} |")
        lines.append("")
    where = ", ".join(f"{name} {value}" for name, value in environment().items())
    return "\n".join([*lines, f"Measured on: {where}.", ""])


if __name__ == "__main__":
    main()
