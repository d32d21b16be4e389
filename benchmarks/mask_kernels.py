"""Which kernel is fastest for a mask: python -m benchmarks.mask_kernels, on a CUDA device.

Dot-product attention in bfloat16, with the layout that linear layers return. For each shape and mask, every
backend that can run the call is timed on the device (a replayed CUDA graph): forward, and forward and
backward pass together. `F.sdpa` is torch's function with the same mask as a bool tensor. Each result is
compared with that of F.sdpa before it is timed. Files are written after each mask. The first call of a kernel
compiles it, which takes seconds. Several processes with different --part compile at the same time.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from benchmarks.additive_calls import device_time
from benchmarks.measure import RESULTS, environment

__all__ = ["MASKS", "SHAPES", "Row", "table"]

SHAPES = {"32,8,512,64": (32, 8, 512, 64), "8,16,2048,64": (8, 16, 2048, 64), "128,8,64,64": (128, 8, 64, 64)}
NAMES = ("F.sdpa", "sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "masked", "short", "flex")


def _seen(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return lengths between S / 2 and S, and which keys they leave visible, (B, 1, 1, S)."""
    lengths = torch.linspace(length // 2, length, batch, device="cuda").long()
    return lengths, (torch.arange(length, device="cuda") < lengths[:, None])[:, None, None]


def _lower(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device="cuda").tril()


def _random(length: int) -> Tensor:
    table = torch.rand(length, length, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) < 0.9
    return table | torch.eye(length, dtype=torch.bool, device="cuda")


MASKS: dict[str, Callable[[int, int], tuple[Any, Tensor]]] = {
    "padding": lambda batch, length: (regard.padding(_seen(batch, length)[0]), _seen(batch, length)[1]),
    "causal and padding": lambda batch, length: (
        regard.causal() & regard.padding(_seen(batch, length)[0]),
        _seen(batch, length)[1] & _lower(length),
    ),
    "bool tensor, causal": lambda batch, length: (_lower(length),) * 2,
    "bool tensor, random": lambda batch, length: (_random(length),) * 2,
    "bool tensor, padding": lambda batch, length: (_seen(batch, length)[1],) * 2,
}
"""By name: a function of batch size and length. It returns the mask for Regard, and the same as a tensor."""


@dataclass(frozen=True)
class Row:
    """The device times of one kernel in microseconds; `missing` says why there are none."""

    shape: str
    mask: str
    name: str
    forward: float | None = None
    both: float | None = None
    missing: str = ""


def measured(shape: str, mask: str, name: str, seconds: float) -> Row:
    """Measure one kernel with one mask."""
    batch, heads, length, width = SHAPES[shape]
    source = torch.Generator("cuda").manual_seed(0)
    leaves = [
        torch.randn(batch, length, heads, width, generator=source, device="cuda").bfloat16().transpose(1, 2)
        for _ in range(3)
    ]
    doutput = torch.randn_like(leaves[0])
    ours, theirs = MASKS[mask](batch, length)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return sdpa(query, key, value, attn_mask=theirs)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if name == "F.sdpa":
            return plain(query, key, value)
        return regard.attention(query, key, value, mask=ours, backend=name).output

    grown = [leaf.detach().requires_grad_() for leaf in leaves]
    try:
        with torch.no_grad():
            found, expected = attend(*leaves), plain(*leaves)
            error = torch.linalg.norm((found - expected).float()) / torch.linalg.norm(expected.float())
            if not error < 0.03:
                return Row(shape, mask, name, missing=f"wrong: relative error {error:.1e}")
            forward = device_time(lambda: attend(*leaves), seconds)
        both = device_time(lambda: torch.autograd.grad(attend(*grown), grown, doutput), seconds)
    except (RuntimeError, regard.RegardError) as problem:
        torch.cuda.synchronize()
        return Row(shape, mask, name, missing=f"{type(problem).__name__}: {str(problem).splitlines()[-1]}")
    return Row(shape, mask, name, forward, both)


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table in microseconds: forward / both for each kernel."""
    lines = [f"| B,H,N,D | mask | {' | '.join(NAMES)} |", f"|{' --- |' * (2 + len(NAMES))}"]
    found = {(row.shape, row.mask, row.name): row for row in rows}
    for shape, mask in dict.fromkeys((row.shape, row.mask) for row in rows):
        cells = []
        for name in NAMES:
            row = found.get((shape, mask, name))
            times = row is not None and row.forward is not None and row.both is not None
            cells.append(f"{row.forward:.0f} / {row.both:.0f}" if times and row is not None else "")
        lines.append(f"| {shape} | {mask} | {' | '.join(cells)} |")
    reasons = [f"- {row.shape}, {row.mask}, {row.name}: {row.missing}" for row in rows if row.missing]
    return "\n".join([*lines, "", *reasons]).rstrip()


def write(folder: Path, rows: Sequence[Row]) -> None:
    """Write the results so far, as JSON and as a table."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, machine = folder / f"{datetime.date.today()}-mask-kernels", environment()
    machine["device"] = torch.cuda.get_device_name()
    whole = {"environment": machine, "rows": [asdict(row) for row in rows]}
    stem.with_suffix(".json").write_text(f"{json.dumps(whole, indent=1)}\n")
    facts = ", ".join(f"{each} {value}" for each, value in machine.items())
    about = "Device time in microseconds by replayed CUDA graphs: forward / forward and backward pass."
    head = f"# Kernels for masks, bfloat16, {datetime.date.today()}\n\n{facts}.\n\n{about}"
    stem.with_suffix(".md").write_text(f"{head}\n\n{table(rows)}\n")


def main() -> None:
    """Measure all kernels with all masks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=0.1, help="time of each number [default: 0.1]")
    parser.add_argument(
        "--limit", type=float, default=600.0, help="stop after this many seconds [default: 600]"
    )
    parser.add_argument("--only", action="append", choices=NAMES, help="kernel to measure (default: all)")
    parser.add_argument("--part", default="0/1", help="only masks i, i + n, ... of i/n [default: 0/1]")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    rows, begun = list[Row](), time.monotonic()
    first, step = map(int, arguments.part.split("/"))
    for shape, mask in [(shape, mask) for shape in SHAPES for mask in MASKS][first::step]:
        for name in arguments.only or NAMES:
            if time.monotonic() - begun < arguments.limit:
                rows.append(measured(shape, mask, name, arguments.seconds))
                gc.collect()
        write(arguments.output, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
