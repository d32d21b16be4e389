"""Additive attention as users call it: python -m benchmarks.additive_calls, on a CUDA device.

For 19 shapes, with T, S and D from 1 to 8192, in bfloat16: the time of Regard (backend="auto"), of eager
PyTorch and of torch.compile, for the forward pass and for forward and backward pass together. Three times are
measured: `wall`, of a call in a loop that ends with one synchronisation; `host`, until the call returns; and
`device`, of a replayed CUDA graph. The loops of the peers alternate, and the fastest one counts. --padded
measures Regard with and without padding(); --backward, the host time of the backward pass alone; --scales,
Regard alone on the device, for several standard deviations of query and key. Results are compared with
float64 before they are timed, and files are written after each shape. The first call of a shape compiles its
kernels, which takes seconds for each kernel. To save time, first start several processes with different
--part and a short --seconds, which compile at the same time.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.additive import PEERS, Shape, gate, ours
from benchmarks.cases import Passes, Wrong, both_ways
from benchmarks.device import graphed
from benchmarks.measure import RESULTS, environment

__all__ = ["SCALED", "SHAPES", "Row", "backward_table", "scale_table", "table", "wall_and_host"]

SHAPES = [
    Shape(*sizes)
    for sizes in (
        (32, 37, 61, 768), (128, 23, 23, 512), (16, 1, 300, 1024), (2, 3000, 777, 192), (8, 1024, 1024, 256),
        (1, 8192, 8192, 64), (64, 50, 50, 1000), (80, 64, 64, 512), (8, 512, 512, 256), (4, 2048, 2048, 128),
        (8, 1, 1, 1), (4, 7, 5, 3), (64, 1, 50, 1000),
        (1, 1, 8192, 64), (2, 8192, 1, 64), (2, 16, 16, 8192), (256, 10, 10, 64), (4, 128, 4096, 32),
        (1, 4096, 17, 1000),
    )
]  # fmt: skip
DEVIATIONS = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)
SCALED = [
    Shape(*sizes)
    for sizes in ((64, 50, 50, 1000), (8, 512, 512, 256), (4, 2048, 2048, 128), (32, 37, 61, 768))
]
BACKWARD = [
    Shape(*sizes)
    for sizes in (
        (64, 50, 50, 1000), (32, 37, 61, 768), (16, 1, 300, 1024), (4, 7, 5, 3), (2, 8192, 1, 64),
        (256, 10, 10, 64), (8, 512, 512, 256), (4, 2048, 2048, 128),
    )
]  # fmt: skip
NAMES = ("regard", "eager", "torch.compile")


@dataclass(frozen=True)
class Row:
    """The times of one peer at one shape in microseconds; `missing` says why there are none."""

    shape: str
    peer: str
    kind: str
    wall: float | None = None
    host: float | None = None
    device: float | None = None
    missing: str = ""


CALLS, LOOPS = 20, 3
"""Number of calls in a loop, and minimum number of loops. After a synchronisation, the first calls take up to
three times as long on the host, so that short loops would measure them and not the others."""


def wall_and_host(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, tuple[float, float]]:
    """Return wall and host time of each function in microseconds: those of its fastest loop.

    seconds: measuring time of each function. Their loops alternate, because the speed of the host changes.
    """
    for run in runs.values():
        for _ in range(3):
            run()
    best = dict.fromkeys(runs, (float("inf"), float("inf")))
    begun, loops = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds * len(runs) or loops < LOOPS:
        loops += 1
        for name, run in runs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                run()
            host = (time.perf_counter() - start) / CALLS * 1e6
            torch.cuda.synchronize()
            wall = (time.perf_counter() - start) / CALLS * 1e6
            best[name] = min(best[name][0], wall), min(best[name][1], host)
    return best


def device_time(run: Callable[[], object], seconds: float) -> float:
    """Return the device time of a call in microseconds: the shortest of several replays of a CUDA graph."""
    replay = graphed(run)
    replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start.record()
        for _ in range(4):
            replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 4 * 1e3)
    return best


def passes(peer: str, shape: Shape) -> Passes:
    """Return the passes of a peer. Regard chooses its backend itself."""
    inputs = shape.inputs(torch.bfloat16)
    if peer == "regard":
        return both_ways(partial(ours, mask=shape.mask(), backend="auto"), inputs)
    return both_ways(partial(PEERS[peer](), hidden=shape.hidden()), inputs)


def measured(shape: Shape, runs: dict[str, Passes], seconds: float) -> list[Row]:
    """Measure the passes of several peers at one shape."""
    rows = []
    for kind in ("forward", "both"):
        times = wall_and_host({peer: each[kind] for peer, each in runs.items()}, seconds)
        for peer, each in runs.items():
            rows.append(Row(str(shape), peer, kind, *times[peer], device_time(each[kind], seconds)))
    gc.collect()
    torch.cuda.empty_cache()
    return rows


def prepared(shape: Shape, peers: Sequence[str]) -> tuple[dict[str, Passes], list[Row]]:
    """Return the passes of the peers that can run this shape, called once, and rows for the other peers."""
    runs, rows = dict[str, Passes](), list[Row]()
    for peer in peers:
        try:
            if peer == "regard":
                gate(shape, torch.bfloat16, backend="auto")
            own = passes(peer, shape)
            for run in own.values():
                run()
            runs[peer] = own
        except (Wrong, RuntimeError) as error:
            torch.cuda.synchronize()
            problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            rows.append(Row(str(shape), peer, "forward", missing=problem))
    return runs, rows


def padded(shape: Shape, seconds: float) -> list[Row]:
    """Measure Regard at one shape, without a mask and with padding()."""
    masked = replace(shape, seen="padding")
    gate(masked, torch.bfloat16, backend="auto")
    return measured(shape, {"regard": passes("regard", shape), "padded": passes("regard", masked)}, seconds)


class EmptyFunction(torch.autograd.Function):
    """A function of query, key, value and vector whose backward pass allocates gradients, and no more.

    Its time is a lower bound for any function in Python that has these inputs and this output.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        """Save the inputs, and return a tensor of the shape of the output."""
        ctx.save_for_backward(*inputs)
        return torch.empty_like(inputs[0])

    @staticmethod
    def backward(ctx: Any, doutput: Tensor) -> tuple[Tensor, ...]:
        """Return uninitialised gradients."""
        query, key, value, vector = ctx.saved_tensors
        return (
            torch.empty_like(query),
            torch.empty_like(key),
            torch.empty_like(value),
            torch.empty_like(vector),
        )


def backward(shape: Shape, seconds: float) -> list[Row]:
    """Measure the host time of the backward pass alone, of a graph that is kept."""
    query, key, value, vector = inputs = shape.inputs(torch.bfloat16)
    for _ in range(3):  # as in a loop: from the third call on, both passes are replayed
        output = ours(query, key, value, vector, backend="auto")
        torch.autograd.grad(output, inputs, torch.ones_like(output))
    outputs: dict[str, Tensor] = {
        "regard": ours(query, key, value, vector, backend="auto"),
        "eager": PEERS["eager"]()(*inputs),
        "empty Python function": EmptyFunction.apply(*inputs),
        "one product": query * 2.0,
    }
    runs: dict[str, Callable[[], object]] = {
        name: partial(
            torch.autograd.grad, output, inputs if name != "one product" else query,
            torch.ones_like(output), retain_graph=True,
        )
        for name, output in outputs.items()
    }  # fmt: skip
    times = wall_and_host(runs, seconds)
    return [Row(str(shape), name, "backward", *times[name]) for name in outputs]


def scaled(shape: Shape, seconds: float) -> list[Row]:
    """Measure the device time of Regard at one shape, for several scales of query and key."""
    rows = []
    kinds = {f"{deviation:g}": replace(shape, deviation=deviation) for deviation in DEVIATIONS}
    kinds["outlier channel"] = replace(shape, outlier=100.0)
    for name, each in kinds.items():
        gate(each, torch.bfloat16, backend="auto")
        for kind, run in passes("regard", each).items():
            rows.append(Row(str(shape), name, kind, device=device_time(run, seconds)))
    return rows


KINDS = {
    "scales": (scaled, "measure Regard at several scales of the inputs instead, at four shapes"),
    "padded": (padded, "measure Regard with padding() and without instead, at four shapes"),
    "backward": (backward, "measure the host time of the backward pass instead, at eight shapes"),
}
"""What to measure instead of all peers, by option: functions of a shape and the seconds for each number, and
the help of the option."""


def _milliseconds(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e3:.3f}"


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table in milliseconds: one line for each shape and pass, wall, host and device."""
    columns = [
        "B,T,S,D",
        "pass",
        *(f"{name}, {each}" for each in ("wall", "host", "device") for name in NAMES),
    ]
    lines = [f"| {' | '.join([*columns, 'wall, of the best peer'])} |", f"|{' --- |' * (len(columns) + 1)}"]
    found = {(row.shape, row.kind, row.peer): row for row in rows}
    for shape, kind in dict.fromkeys((row.shape, row.kind) for row in rows):
        each = {name: found.get((shape, kind, name), Row(shape, name, kind)) for name in NAMES}
        cells = [
            _milliseconds(getattr(each[name], what)) for what in ("wall", "host", "device") for name in NAMES
        ]
        walls = [each[name].wall for name in NAMES]
        peers = [wall for wall in walls[1:] if wall is not None]
        ratio = f"{walls[0] / min(peers):.2f}" if walls[0] is not None and peers else ""
        lines.append(f"| {' | '.join([shape, kind, *cells, ratio])} |")
    missing = [f"- {row.shape}, {row.peer}, {row.kind}: {row.missing}" for row in rows if row.missing]
    return "\n".join([*lines, "", *missing]).rstrip()


def scale_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table: device time for each scale, and the ratio to standard deviation 1."""
    lines = [
        "| B,T,S,D | pass | scale | device ms | of standard deviation 1 |",
        "| --- | --- | --- | --- | --- |",
    ]
    unit = {(row.shape, row.kind): row.device for row in rows if row.peer == "1"}
    for row in rows:
        of = unit.get((row.shape, row.kind))
        ratio = f"{row.device / of:.2f}" if row.device and of else ""
        lines.append(f"| {row.shape} | {row.kind} | {row.peer} | {_milliseconds(row.device)} | {ratio} |")
    return "\n".join(lines)


def plain_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table in milliseconds with one line for each row."""
    lines = ["| B,T,S,D | pass | of | wall | host | device |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        times = " | ".join(map(_milliseconds, (row.wall, row.host, row.device)))
        lines.append(f"| {row.shape} | {row.kind} | {row.peer} | {times} |")
    return "\n".join(lines)


BACKWARD_NAMES = ("regard", "eager", "empty Python function", "one product")


def backward_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table in microseconds: host times of the backward pass, and the part that is ours."""
    columns = ["B,T,S,D", *BACKWARD_NAMES, "regard without the empty function", "regard, of eager"]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for shape in dict.fromkeys(row.shape for row in rows):
        host = {row.peer: row.host or 0.0 for row in rows if row.shape == shape}
        regard, eager, empty, _ = times = [host[name] for name in BACKWARD_NAMES]
        cells = [*(f"{time:.0f}" for time in (*times, regard - empty)), f"{regard / eager:.2f}"]
        lines.append(f"| {' | '.join([shape, *cells])} |")
    note = (
        "Microseconds on the host, `torch.autograd.grad()` of a graph that is kept. The empty function is an "
        "autograd function in Python that only allocates the gradients; `one product` is `query * 2`."
    )
    return "\n".join([note, "", *lines])


def write(folder: Path, name: str, text: str, rows: Sequence[Row]) -> None:
    """Write the results so far, as JSON and as a table."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, machine = folder / f"{datetime.date.today()}-{name}", environment()
    machine["device"] = torch.cuda.get_device_name()
    whole = {
        "date": str(datetime.date.today()),
        "environment": machine,
        "rows": [asdict(row) for row in rows],
    }
    stem.with_suffix(".json").write_text(f"{json.dumps(whole, indent=1)}\n")
    facts = ", ".join(f"{each} {value}" for each, value in machine.items())
    stem.with_suffix(".md").write_text(
        f"# Additive attention, bfloat16, {datetime.date.today()}\n\n{facts}.\n\n{text}\n"
    )


def main() -> None:
    """Measure additive attention as users call it, beside eager PyTorch and torch.compile."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    kinds = parser.add_mutually_exclusive_group()
    for name, (_, text) in KINDS.items():
        kinds.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="measuring time of each number [default: 0.1]"
    )
    parser.add_argument("--only", action="append", choices=NAMES, help="peer to measure (default: all)")
    parser.add_argument(
        "--part", default="0/1", help="measure only shapes i, i + n, ... of i/n [default: 0/1]"
    )
    parser.add_argument(
        "--limit", type=float, default=3600.0, help="stop after this many seconds [default: 3600]"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    first, step = map(int, arguments.part.split("/"))
    kind = next((name for name in KINDS if getattr(arguments, name)), None)
    rows, begun = list[Row](), time.monotonic()
    shapes = {None: SHAPES, "backward": BACKWARD}.get(kind, SCALED)
    for shape in shapes[first::step]:
        if time.monotonic() - begun > arguments.limit:
            break
        if kind is not None:
            rows += KINDS[kind][0](shape, arguments.seconds)
            shown = {"scales": scale_table, "backward": backward_table}.get(kind, plain_table)
            text = shown(rows)
        else:
            runs, missing = prepared(shape, arguments.only or NAMES)
            rows += [*measured(shape, runs, arguments.seconds), *missing]
            torch._dynamo.reset()
            text = table(rows)
        write(arguments.output, f"additive-{kind or 'calls'}", text, rows)
    print(text if rows else "nothing was measured")


if __name__ == "__main__":
    main()
