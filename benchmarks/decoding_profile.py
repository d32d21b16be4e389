"""Where the time of a search goes: parts of a call, and the kernels of one captured step.

python -m benchmarks.decoding_profile CASE [--dtype bfloat16] [--look cross] prints, for a case of
benchmarks/decoding.py on a GPU: the wall time of encoding, of the search and of the whole call, the device
time of a replayed step, and the kernels of a step with their number and device time.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.decoding import CASES, LENGTH, ours
from regard.fast.search import captured, recorded_attention
from regard.fast.search.search_loop import captured_search, sentences_of
from regard.models.base import Model

REPEATS = 10
"""Number of calls of which the median time is printed."""


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median wall time of a call, with the device idle before and after it."""
    taken = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken[2:])


def kernels_of(call: Callable[[], object], calls: int = 3) -> list[tuple[str, float, float]]:
    """Return name, number and device time in microseconds of the kernels of one call, longest first."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = collections.defaultdict(list)
    for event in profiled.events() or ():
        if event.device_type == DeviceType.CUDA:
            found[event.name].append(event.device_time)
    rows = [(name, len(times) / calls, sum(times) / calls) for name, times in found.items()]
    return sorted(rows, key=lambda row: -row[2])


def parts_of_a_call(model: Model, name: str, look: str | None) -> list[tuple[str, float]]:
    """Return the parts of a search and their time in milliseconds."""
    case = CASES["cuda"][name]
    batch, how = case.sources("cuda"), case.how
    whole = ours(model, case, batch, look)

    def searched() -> None:
        captured_search(model, how, sentences, recorded_attention(model, batch, look))

    with torch.no_grad():
        whole()
        sentences = sentences_of(model, batch, how)
        parts = [("whole call of search()", milliseconds(whole))]
        parts.append(("encoding", milliseconds(lambda: sentences_of(model, batch, how))))
        parts.append(("search on the slots", milliseconds(searched)))
    (kept,) = list(captured._kept[model].values())[-1:]
    replay = next(iter(kept.replays.values()))
    kept.slots.done.fill_(False)
    kept.slots.count.fill_(LENGTH // 2)
    kept.slots.limits.fill_(kept.slots.decoder.length - 1)
    before = kept.slots.count.clone()

    def steps() -> None:
        for _ in range(8):
            kept.slots.count.copy_(before)
            replay()

    parts.append(("one replayed step (8 in a row)", milliseconds(steps) / 8))
    return parts


def print_host_profile(model: Model, name: str, look: str | None, rows: int = 24) -> None:
    """Print the Python functions in which the host spends the most time during a search."""
    case = CASES["cuda"][name]
    call, profiler = ours(model, case, case.sources("cuda"), look), cProfile.Profile()
    call()
    profiler.enable()
    for _ in range(REPEATS):
        call()
    profiler.disable()
    print(f"\nPython functions, {REPEATS} calls:")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=sorted(CASES["cuda"]))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--look", help="sites whose attention is recorded")
    parser.add_argument("--host", action="store_true", help="also print the Python functions of a call")
    parser.add_argument(
        "--no-kernels", action="store_true", help="do not start torch.profiler, which is slow"
    )
    parser.add_argument("--rows", type=int, default=25, help="number of kernels to print")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    model = CASES["cuda"][arguments.case].build(arguments.dtype, "cuda")
    print(f"{arguments.case}, {arguments.dtype}, look={arguments.look}\n\n| part | ms |\n| --- | --- |")
    for part, taken in parts_of_a_call(model, arguments.case, arguments.look):
        print(f"| {part} | {taken:.3f} |", flush=True)
    if arguments.host:
        print_host_profile(model, arguments.case, arguments.look)
    if arguments.no_kernels:
        return 0
    (kept,) = list(captured._kept[model].values())[-1:]
    with torch.no_grad():
        rows = kernels_of(lambda: kept.slots.step(kept.slots.decoder.length))
    count, total = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print(f"\n{count:.0f} kernels per step, {total:.0f} microseconds of device time")
    print("\n| kernel | per step | microseconds per step |\n| --- | --- | --- |")
    for name, number, taken in rows[: arguments.rows]:
        print(f"| {name[:90]} | {number:.0f} | {taken:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
