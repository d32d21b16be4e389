"""Time of plain calls as users make them: python -m benchmarks.call_time [--device cuda].

Each call of Regard is measured beside the PyTorch code that a user would write instead, alternating in short
runs. A process reports its fastest run, because the machine may be shared; the result is the median of
several processes. On CUDA, `wall` is the time of a call in a loop that ends with one synchronisation, and
`device` is the time of a replayed CUDA graph. Before a pair is measured, its results are compared. With
--output, the result files are written again after each call.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.call_pairs import Pair, Run, pairs
from benchmarks.cpu_pairs import cpu_pairs
from benchmarks.device import graphed
from benchmarks.measure import environment, require_device

__all__ = ["Merged", "Pair", "Row", "measured", "merged", "pairs", "same", "table", "write"]


@dataclass(frozen=True)
class Row:
    """The times of a pair in one process, in microseconds: of the fastest run, and the median of the runs."""

    name: str
    gradients: bool
    kind: str
    ours: float
    theirs: float
    ours_median: float
    theirs_median: float


@dataclass(frozen=True)
class Merged:
    """The times of a pair in microseconds: of the fastest run of each process."""

    name: str
    gradients: bool
    kind: str
    ours: list[float]
    theirs: list[float]


def same(pair: Pair) -> None:
    """Raise AssertionError unless both calls of the pair agree, within the rounding of the inputs' dtype."""
    ours, theirs = pair.ours().detach().float(), pair.theirs().detach().float()
    half = pair.ours().dtype == torch.bfloat16
    error = torch.linalg.norm(ours - theirs) / torch.linalg.norm(theirs).clamp_min(1e-6)
    assert error < (0.03 if half else 1e-4), f"{pair.name}: relative error {error:.1e}"


def measured(pair: Pair, device: str, seconds: float) -> list[Row]:
    """Measure a pair for about this many seconds."""
    with torch.set_grad_enabled(pair.gradients):
        if not pair.name.startswith(("padding, new lengths", "dropout")):  # which do not agree
            same(pair)
        kinds: dict[str, tuple[Run, Run]] = {"wall": (pair.ours, pair.theirs)}
        if device == "cuda":
            kinds["device"] = (graphed(pair.ours), graphed(pair.theirs))
        return [_row(pair, kind, runs, device, seconds) for kind, runs in kinds.items()]


def _row(pair: Pair, kind: str, runs: tuple[Run, Run], device: str, seconds: float) -> Row:
    taken: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(taken[0]) < 5:
        for run, times in zip(runs, taken, strict=True):
            calls = 20 if device == "cuda" else 6 if pair.short else 1
            if device == "cuda":
                torch.cuda.synchronize()
            # On a CPU, one thread works: its CPU time does not depend on other programs that wait for a core.
            clock = time.perf_counter if device == "cuda" else time.process_time
            start = clock()
            for _ in range(calls):
                run()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append((clock() - start) / calls * 1e6)
    fastest, median = [min(times) for times in taken], [statistics.median(times) for times in taken]
    return Row(pair.name, pair.gradients, kind, *fastest, *median)


def merged(processes: Sequence[Sequence[Row]]) -> list[Merged]:
    """Return one result for each call and kind of time, from the rows of all processes."""
    by_call: dict[tuple[str, bool, str], list[Row]] = {}
    for row in itertools.chain.from_iterable(processes):
        by_call.setdefault((row.name, row.gradients, row.kind), []).append(row)
    return [
        Merged(*call, [row.ours for row in rows], [row.theirs for row in rows])
        for call, rows in by_call.items()
    ]


def table(results: Sequence[Merged]) -> str:
    """Return a Markdown table: one line for each call, with wall time beside device time."""
    device = any(each.kind == "device" for each in results)
    columns = ["call", "gradients", "regard", "PyTorch", "difference", "regard, all processes"]
    if device:
        columns += ["regard, device", "PyTorch, device", "ratio"]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    by_call: dict[tuple[str, bool], dict[str, Merged]] = {}
    for each in results:
        by_call.setdefault((each.name, each.gradients), {})[each.kind] = each
    for (name, gradients), kinds in by_call.items():
        cells = [name, "yes" if gradients else "no", *_cells(kinds.get("wall"), spread=True)]
        if device:
            cells += _cells(kinds.get("device"), spread=False)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(result: Merged | None, spread: bool) -> list[str]:
    """Return the cells of a time: with its spread over the processes, or with the ratio to PyTorch."""
    if result is None:
        return [""] * (4 if spread else 3)
    ours, theirs = statistics.median(result.ours), statistics.median(result.theirs)
    numbers = [f"{ours:.1f}", f"{theirs:.1f}"]
    if not spread:
        return [*numbers, f"{ours / theirs:.2f}"]
    return [*numbers, f"{ours - theirs:.1f}", f"{min(result.ours):.1f} to {max(result.ours):.1f}"]


def write(folder: Path, device: str, note: str, machine: dict[str, str], results: Sequence[Merged]) -> None:
    """Write the results so far, as JSON and as a table."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{datetime.date.today()}-call-{device}"
    whole = {"date": str(datetime.date.today()), "environment": machine, "note": note}
    text = json.dumps({**whole, "rows": [asdict(each) for each in results]}, indent=1)
    stem.with_suffix(".json").write_text(f"{text}\n")
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    about = (
        "Microseconds of a call. The number of a process is that of its fastest run; the table shows the "
        "median of the processes. Both calls alternate."
    )
    if device == "cuda":
        about += (
            " The wall time is that of a call in a loop; the device time is that of a replayed CUDA graph."
        )
    head = f"# Time of plain calls, {datetime.date.today()}\n\n{facts}. {note}\n\n{about}\n\n"
    stem.with_suffix(".md").write_text(f"{head}{table(results)}\n")


def measure_here(arguments: argparse.Namespace, keep: Callable[[list[Row]], None]) -> None:
    """Measure all pairs in this process; keep(rows) gets the rows so far after each pair."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for gradients in (False, True):
        more = cpu_pairs(gradients) if arguments.device == "cpu" else ()
        for pair in itertools.chain(pairs(arguments.device, gradients), more):
            if not any(part in pair.name for part in arguments.only or [""]):
                continue
            rows += measured(pair, arguments.device, arguments.seconds)
            keep(rows)


def main() -> None:
    """Measure all pairs, in several processes one after another, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="measuring time per call [default: 0.5]")
    parser.add_argument("--processes", type=int, default=3, help="number of processes [default: 3]")
    parser.add_argument("--only", action="append", help="measure calls with this text in their name")
    parser.add_argument("--output", type=Path, help="folder of the result files [default: only print]")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the result")
    parser.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)  # of one process, as JSON
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    if arguments.rows:
        measure_here(arguments, lambda rows: print(json.dumps([asdict(row) for row in rows]), flush=True))
        return
    machine = environment()
    if arguments.device == "cuda":
        machine["device"] = torch.cuda.get_device_name()
    processes: list[list[Row]] = []
    for number in range(arguments.processes):
        print(f"process {number + 1} of {arguments.processes}", flush=True)
        processes.append([])
        command = [sys.executable, "-m", "benchmarks.call_time", "--rows", *sys.argv[1:]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                processes[-1] = [Row(**row) for row in json.loads(line)]
                if arguments.output is not None:
                    write(arguments.output, arguments.device, arguments.note, machine, merged(processes))
        if child.returncode:
            sys.exit(f"process {number + 1} failed")
        if not processes[-1] and arguments.only:
            parser.error(f"--only: no call has {' or '.join(map(repr, arguments.only))} in its name")
    print(table(merged(processes)))


if __name__ == "__main__":
    main()
