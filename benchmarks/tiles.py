"""Tuning of the additive kernels: other tile sizes, and the time of each kernel.

benchmarks/additive.py runs this with --sweep and --profile.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import torch

from benchmarks.additive import CASES, Shape, passes
from benchmarks.device import timed
from regard.kernels.additive import tile_sizes

__all__ = ["profile", "sweep"]

TILES = [(16, 32), (16, 64), (32, 32), (64, 32), (32, 64), (64, 64)]
GROUPS = [(4, 1), (2, 2), (2, 1), (1, 4)]
WARPS = (1, 2, 4)


def sweep(name: str, dtype: torch.dtype) -> None:
    """Time other tile sizes for a case: those of the forward pass, then those of the backward pass."""
    shape = CASES[name]
    kind = tile_sizes.Shape(1, 1, 1, shape.queries, shape.keys, shape.width, shape.width).kind
    own = tile_sizes.LAUNCHES[kind]
    tile_sizes.CHANGES.clear()  # so that the printed launch settings are those that are timed
    scores = [
        replace(own, rows=rows, columns=columns, group=group, unroll=unroll, fill=fill)
        for (rows, columns), (group, unroll), fill in itertools.product(TILES, GROUPS, (8, 16))
    ]
    reads = [
        replace(own, read_rows=rows, read_columns=columns, depth=depth)
        for rows, columns, depth in itertools.product((16, 32, 64), (32, 64, 128), (64, 128))
    ]
    some = [
        replace(own, some=some, width=32 * warps, warps=warps)
        for some, warps in itertools.product((8, 16, 32), WARPS)
    ]
    if kind == "decode":
        best = _quickest(name, kind, shape, dtype, "forward", [own, *some])
        gradients = some
    else:
        best = _quickest(name, kind, shape, dtype, "forward", [own, *scores, *reads])
        other = itertools.product((1, 2, 4), WARPS)
        gradients = [replace(best, fours=fours, warps=fours * warps) for fours, warps in other]
    best = _quickest(name, kind, shape, dtype, "both", [best, *gradients])
    print(f"{name}: {kind}: {best}")


def _quickest(
    name: str, kind: str, shape: Shape, dtype: torch.dtype, which: str, tried: list[tile_sizes.Launch]
) -> tile_sizes.Launch:
    taken = {}
    for each in tried:
        tile_sizes.LAUNCHES[kind] = each
        try:
            taken[each] = timed(passes("regard", shape, dtype)[which], 0.03).median
        except Exception as error:  # a tile size may not fit this device; try the others
            print(f"  {each}: {type(error).__name__}", flush=True)
    if not taken:
        sys.exit(f"none of {len(tried)} tile sizes runs")
    order = sorted(taken, key=lambda each: taken[each])
    for each in order[:8]:
        print(f"  {name} {which} {taken[each]:.4f} ms  {each}", flush=True)
    tile_sizes.LAUNCHES[kind] = order[0]
    return order[0]


def profile(name: str, dtype: torch.dtype) -> None:
    """Print the time of each kernel of forward and backward."""
    run = passes("regard", CASES[name], dtype)["both"]
    run(), run(), torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            run()
        torch.cuda.synchronize()
    print(f"{name}, {dtype}: ten passes")
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=16, max_name_column_width=48))
