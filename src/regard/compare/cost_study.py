"""Study "cost": time, memory and operations of layers, against the number of positions n and the width d."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from regard.compare.comparison_options import Options
from regard.compare.confidence import interval, judge, judge_near
from regard.compare.curve_fit import crossing, fitted_slope
from regard.compare.layer_costs import (
    BATCH,
    LAYERS,
    measure_layer,
    measure_projection,
    peak_operations,
)
from regard.compare.study import Claim, Figure, PlannedRun, Series, Study, StudyResult, Table, Verdict
from regard.compare.study_context import StudyContext

__all__ = ["COST"]

REPEATED = "repetitions"
TOLERANCE = 0.3
"""A fitted exponent agrees with the theory if it differs by at most this much."""

CPU_THREADS = 1
"""Threads on a CPU, if --threads is not set. On a busy machine, several threads wait for each other, and the
times become many times longer."""

LARGE = 4.0
"""A size is large if its time is at least this many times the shortest time."""

CLAIMS = (
    Claim("cost.attention", "Self-attention takes time O(n^2 d): the time grows as n^2 for large n."),
    Claim(
        "cost.recurrent", "A recurrent layer takes time O(n d^2): the time grows as n, in n sequential steps."
    ),
    Claim("cost.short", "If n is smaller than d, self-attention is faster than a recurrent layer."),
    Claim("cost.once", "Additive attention is faster if U h is computed once, not at every decoder step."),
)


def _grid(options: Options, device: str) -> tuple[list[int], int, list[int], int]:
    """Return the values of n with their d, and the values of d with their n."""
    if device.startswith("cuda"):
        top = 8192 if options.quick else 32768  # below about n = 4096, launching the kernels takes most time
        return [2**p for p in range(6, top.bit_length())], 128, [32, 64, 128, 256, 512, 1024], 128
    return [32, 64, 128, 256, 512, *([] if options.quick else [1024])], 64, [32, 64, 128, 256, 512], 64


def _no_runs(options: Options) -> list[PlannedRun]:
    return []


def _measure(context: StudyContext) -> StudyResult:
    options, cache = context.options, context.cache
    device = cache.device
    before = torch.get_num_threads()
    if options.threads is not None or device == "cpu":
        torch.set_num_threads(options.threads or CPU_THREADS)
    threads = torch.get_num_threads()
    try:
        lengths, width, widths, length = _grid(options, device)
        sizes = [*((n, width, "n") for n in lengths), *((length, d, "d") for d in widths)]
        base = {"device": _device_name(device), "threads": threads, "batch": BATCH}
        peak = cache.measured(None, "cost-peak", base, lambda: peak_operations(device))
        rows = []
        for name in LAYERS:
            context.say(f"timing {name} ...")
            rows += [_row(context, base, peak, name, *size) for size in sizes]
        once = cache.measured(None, "cost-once", base, lambda: measure_projection(64, 128, 256, device))
    finally:
        torch.set_num_threads(before)
    where = f"float32, batch size {BATCH}, {base['device']}"
    where += f", {threads} thread{'s' * (threads != 1)}" if device == "cpu" else ""
    exponents = _exponents(rows)
    tables = (
        Table(
            "cost",
            f"Time in seconds, peak memory in bytes and operations of layers: {where}, 3 repetitions.",
            _plain(rows),
        ),
        Table(
            "cost-exponents",
            f"Exponents of the time, fitted to sizes that take {LARGE:g} times as long as the shortest, and "
            f"of operations and memory, fitted to the upper half of the sizes: {where}, 3 repetitions.",
            exponents,
        ),
        Table(
            "cost-crossings",
            f"n from which self-attention costs more, d = {width}: {where}, mean of 3 repetitions.",
            _crossings(rows),
        ),
        Table(
            "cost-once",
            f"Seconds for 64 decoder steps over 128 states, d = 256: {where}, 3 repetitions.",
            _once_rows(once),
        ),
    )
    figures = (*_figures(rows, where),)
    return StudyResult("cost", COST.title, tables, figures, _verdicts(rows, once))


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def _row(
    context: StudyContext, base: dict[str, Any], peak: float, name: str, n: int, d: int, varied: str
) -> dict[str, Any]:
    device = context.cache.device
    about = {**base, "layer": name, "n": n, "d": d}
    measured = context.cache.measured(None, f"cost-{name}", about, lambda: measure_layer(name, n, d, device))
    layer = LAYERS[name]
    operations = BATCH * layer.operations(n, d)
    return {
        "layer": name,
        "varied": varied,
        "n": n,
        "d": d,
        **measured,
        "operations": operations,
        "sequential": layer.sequential(n),
        "path": layer.path(n),
        "share_of_peak": operations / statistics.median(measured["forward"]) / peak,
    }


def _plain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the mean of each time instead of its repetitions."""
    return [{**row, **{key: statistics.fmean(row[key]) for key in ("forward", "both")}} for row in rows]


def _of(rows: Sequence[dict[str, Any]], layer: str, varied: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["layer"] == layer and row["varied"] == varied]


def _fits(rows: Sequence[dict[str, Any]], layer: str, varied: str, of: str) -> list[float]:
    """Return the exponent of the time in n or d, fitted to the large sizes, for each round."""
    large = _large(_of(rows, layer, varied), of)
    rounds = range(len(large[0][of]))
    return [fitted_slope([r[varied] for r in large], [r[of][k] for r in large], log="xy") for k in rounds]


def _large(rows: Sequence[dict[str, Any]], of: str) -> Sequence[dict[str, Any]]:
    """Return the rows of the large sizes: from the first that takes LARGE times as long as the shortest.

    For smaller sizes, most of the time is launch overhead, which does not depend on the size. At least
    the two largest sizes are returned.
    """
    times = [statistics.median(row[of]) for row in rows]
    first = next((at for at in range(len(times)) if min(times[at:]) >= LARGE * min(times)), len(rows))
    return rows[min(first, len(rows) - 2) :]


def _exponents(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    table = []
    for name, layer in LAYERS.items():
        for varied, theory in zip("nd", layer.exponents, strict=True):
            own = _of(rows, name, varied)
            upper = own[len(own) // 2 :]
            counted = fitted_slope([r[varied] for r in upper], [r["operations"] for r in upper], log="xy")
            memory = fitted_slope([r[varied] for r in upper], [r["memory"] for r in upper], log="xy")
            for of in ("forward", "both"):
                found = interval(_fits(rows, name, varied, of))
                fit = {"exponent": found.mean, "low": found.low, "high": found.high}
                row = {"layer": name, "of": varied, "pass": of, **fit, "theory": theory}
                table.append({**row, "operations": counted, "memory": memory})
    return table


def _crossings(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    table = []
    for other in ("recurrent", "convolutional"):
        first, second = _of(rows, "self-attention", "n"), _of(rows, other, "n")
        x = [row["n"] for row in first]
        for of in ("forward", "both", "operations", "memory"):
            curves = [[_number(row[of]) for row in own] for own in (first, second)]
            at = crossing(x, *curves)
            note = "" if at is not None else _never(curves[0], curves[1])
            table.append({"layer": other, "by": of, "n": at, "note": note})
    return table


def _never(first: Sequence[float], second: Sequence[float]) -> str:
    return "self-attention is cheaper at every n" if first[-1] < second[-1] else "no crossing in this range"


def _number(value: Any) -> float:
    return statistics.fmean(value) if isinstance(value, list) else float(value)


def _once_rows(once: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {"U h": name, "round": k, "seconds": value}
        for name, values in once.items()
        for k, value in enumerate(values)
    ]


def _figures(rows: Sequence[dict[str, Any]], where: str) -> list[Figure]:
    figures = []
    for varied, of, text in (
        ("n", "forward", "seconds, forward"),
        ("n", "both", "seconds, forward and backward"),
        ("d", "both", "seconds, forward and backward"),
        ("n", "memory", "peak memory in bytes, forward and backward"),
    ):
        series = []
        for name in LAYERS:
            own = _of(rows, name, varied)
            series.append(Series(name, [row[varied] for row in own], [_number(row[of]) for row in own]))
        fixed = "d" if varied == "n" else "n"
        value = _of(rows, "recurrent", varied)[0][fixed]
        kind = text.partition(",")[0]
        what = f"{kind.capitalize()} of one layer against {varied}, {fixed} = {value}"
        ends = "; ".join(f"{line.label}: {line.y[0]:.2g} to {line.y[-1]:.2g}" for line in series)
        caption = f"{what} ({text.partition(', ')[2] or 'forward'}): {where}, mean of 3 repetitions."
        alt = f"Lines on logarithmic scales: {what}. {ends}."
        figures.append(Figure(f"cost-{of}-{varied}", caption, alt, series, x=varied, y=text, log="xy"))
    return figures


def _verdicts(rows: Sequence[dict[str, Any]], once: dict[str, list[float]]) -> tuple[Verdict, ...]:
    attention, recurrent, short, projected = CLAIMS
    what = "exponent of n in the time of {}, forward and backward"
    verdicts = [
        judge_near(claim, _fits(rows, name, "n", "both"), what.format(name), theory, TOLERANCE, REPEATED)
        for claim, name, theory in ((attention, "self-attention", 2.0), (recurrent, "recurrent", 1.0))
    ]
    narrow = [row for row in _of(rows, "self-attention", "d") if row["n"] < row["d"]][-1]
    same = next(row for row in _of(rows, "recurrent", "d") if row["d"] == narrow["d"])
    gains = [math.log(b / a) for a, b in zip(narrow["both"], same["both"], strict=True)]
    what = f"log of the time of recurrent over self-attention, n = {narrow['n']}, d = {narrow['d']}"
    verdicts.append(judge(short, gains, what, REPEATED))
    gains = [math.log(b / a) for a, b in zip(once["once"], once["every"], strict=True)]
    what = "log of the time with U h at every step over the time with U h once"
    verdicts.append(judge(projected, gains, what, REPEATED))
    return tuple(verdicts)


COST = Study("cost", "Cost of layers", CLAIMS, _no_runs, _measure)
