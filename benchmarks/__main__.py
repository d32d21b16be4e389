"""make bench: check correctness, measure time and memory, and write dated results to benchmarks/results."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.device import Device, ceilings
from benchmarks.measure import RESULTS, Processor, extra_peak
from benchmarks.report import tables
from benchmarks.running import Budget, Run
from benchmarks.suites import SUITES

LIMITS = {"gpu": 500.0, "cpu": 900.0}
"""Time limit of a suite, in seconds."""

SECONDS = {"gpu": 2.0, "cpu": 24.0}
"""Measuring time per case, in seconds."""


def main() -> int:
    """Run the benchmark suite of this machine: all cases, or the named ones."""
    arguments = _parse_arguments()
    cases = SUITES[arguments.suite]
    if arguments.peak:
        name, number = arguments.peak
        *_, last = cases[name]().peers[int(number)].make().values()
        print(extra_peak(last))
        return 0
    stem = Path(arguments.into) / f"{datetime.date.today():%Y-%m-%d}-{arguments.suite}"
    budget = Budget(
        arguments.seconds / (3 if arguments.quick else 1), arguments.limit, 0 if arguments.quick else 3
    )
    with contextlib.ExitStack() as stack:
        if arguments.suite == "gpu":
            machine: Any = stack.enter_context(Device())
        else:
            machine = Processor()
        found: dict[str, Any] = {
            "suite": arguments.suite,
            "date": f"{datetime.date.today()}",
            "environment": machine.environment(),
        }
        joins = arguments.cases and not arguments.no_write
        before = todays_record(stem.with_suffix(".json"), found["environment"]) if joins else None

        def keep(found: dict[str, Any]) -> None:
            if not arguments.no_write:
                whole = joined(before, found, list(cases))
                stem.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
                stem.with_suffix(".md").write_text(tables(whole))

        if arguments.suite == "gpu":
            with contextlib.suppress(RuntimeError):
                found["ceilings"] = ceilings()
        chosen = {name: cases[name]() for name in arguments.cases or cases}
        run = Run(chosen, machine, budget, keep, lambda line: print(line, flush=True), found)
        try:
            run()
        except KeyboardInterrupt:
            print("interrupted; the results so far are kept", file=sys.stderr)
            return 130
        finally:
            keep(found)
            print("\n" + tables(found))
            if not arguments.no_write:
                print(f"Wrote {stem.name}.json and .md")
    return 0


def todays_record(path: Path, environment: dict[str, str]) -> dict[str, Any] | None:
    """Return the record at this path, or None; exit if it was measured on another machine.

    The results of cases that were selected by name are merged into it.
    """
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    if found["environment"] != environment:
        sys.exit(
            f"{path.name} was measured on another machine, or with other versions: use --into or --no-write"
        )
    return found


def joined(before: dict[str, Any] | None, found: dict[str, Any], order: list[str]) -> dict[str, Any]:
    """Merge the new results into the earlier record; order: the order of the cases."""
    if before is None:
        return found
    cases = {**before["cases"], **found["cases"]}
    seconds = round(before.get("seconds", 0.0) + found.get("seconds", 0.0), 1)
    ordered = {name: cases[name] for name in order if name in cases}
    return {**before, **found, "cases": ordered, "seconds": seconds}


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    known = "; ".join(f"{name}: {', '.join(cases)}" for name, cases in SUITES.items())
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"cases to run (default: all). {known}")
    here = "gpu" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--suite", choices=list(SUITES), default=here, help="suite to run (default: %(default)s)"
    )
    parser.add_argument(
        "--into", default=str(RESULTS), metavar="FOLDER", help="output folder (default: benchmarks/results)"
    )
    parser.add_argument("--seconds", type=_positive, metavar="N", help="measuring time per case, in seconds")
    parser.add_argument(
        "--limit", type=_positive, metavar="N", help="time limit of the whole run, in seconds"
    )
    parser.add_argument(
        "--quick", action="store_true", help="leave out torch.compile, and measure for a third of the time"
    )
    parser.add_argument("--no-write", action="store_true", help="print the tables without writing files")
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "NUMBER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or SECONDS[arguments.suite]
    arguments.limit = arguments.limit or LIMITS[arguments.suite]
    unknown = [name for name in arguments.cases if name not in SUITES[arguments.suite]]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; known cases: {', '.join(SUITES[arguments.suite])}")
    if arguments.suite == "gpu" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; use --suite cpu")
    if not arguments.no_write:
        try:
            Path(arguments.into).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"cannot write to {arguments.into}: {error.strerror}")
    return arguments


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return number


if __name__ == "__main__":
    sys.exit(main())
