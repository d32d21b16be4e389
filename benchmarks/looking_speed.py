"""Benchmark of the looking pass: its time beside the forward pass, for several lengths and head sizes.

python -m benchmarks.looking_speed [--device cuda] prints a table in Markdown. Before a row is measured, the
looks of one head are compared with float64. Ratios are (forward + looking) / forward.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import regard
from regard.call import Call, Forward
from regard.checking import check
from regard.looking import PASSES

LOOKS = {
    "all three": regard.Look(entropy=True, alignment=True, mass=True),
    "entropy": regard.Look(entropy=True),
    "alignment": regard.Look(alignment=True),
}

SIZES: dict[str, list[tuple[int, int, int, int]]] = {
    "cuda": [
        *((16384 // length or 1, 16, length, 128) for length in (2048, 4096, 8192, 16384, 32768)),
        *((16384 // length or 1, 32, length, 64) for length in (2048, 4096, 8192, 16384, 32768)),
    ],
    "cpu": [(1, 8, 1024, 64), (1, 8, 2048, 64), (1, 4, 4096, 64), (1, 8, 2048, 128)],
}
"""For each device, (B, H, N, D)."""

PASS = {"cuda": "fused", "cpu": "blocked"}


def median_ms(function: Callable[[], object], device: str, seconds: float = 0.5) -> float:
    """Return the median time of a call, after one call that is not timed: device time, or processor time."""
    function()
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(function, warmup=10, rep=int(seconds * 200), return_mode="median"))
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < seconds:
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return 1000 * statistics.median(taken)


def gate(call: Call, forward: Forward, name: str) -> None:
    """Raise ValueError if the looks of the first head differ from float64 by more than rounding."""
    seen = PASSES[name].run(call, forward, LOOKS["all three"])
    assert seen.entropy is not None and seen.mass is not None and seen.alignment is not None
    scores = call.query[0, 0].double() @ call.key[0, 0].double().T * call.scale
    if call.mask.causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    weights = scores.softmax(-1)
    errors = {
        "entropy": (seen.entropy[0, 0] - torch.special.entr(weights).sum(-1)).abs().max().item(),
        "mass": (seen.mass[0, 0] / weights.sum(0) - 1).abs().max().item(),
        "alignment": (seen.alignment[0, 0] != weights.argmax(-1)).double().mean().item(),
    }
    if not (errors["entropy"] < 1e-3 and errors["mass"] < 1e-4 and errors["alignment"] < 0.01):
        raise ValueError(f"the looks of {tuple(call.query.shape)} are wrong: {errors}")


def row(size: Sequence[int], causal: bool, device: str) -> str:
    """Measure one row of the table."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    query, key, value = (torch.randn(*size, device=device, dtype=dtype) for _ in range(3))
    mask = regard.causal() if causal else None
    attended = regard.attention(query, key, value, mask=mask)
    forward = Forward(attended.output, attended.lse)
    call = check(query, key, value, score=regard.ScaledDot(), select=regard.Soft(), mask=mask)
    if size[2] <= 8192:
        gate(call, forward, PASS[device])
    base = median_ms(lambda: regard.attention(query, key, value, mask=mask), device)
    cells = [",".join(map(str, size)), "yes" if causal else "no", f"{base:.3f}"]
    for look in LOOKS.values():
        taken = median_ms(_looking(call, forward, look, PASS[device]), device)
        cells += [f"{taken:.3f}", f"{(base + taken) / base:.2f}"]
    return f"| {' | '.join(cells)} |"


def _looking(call: Call, forward: Forward, look: regard.Look, name: str) -> Callable[[], Tensor | None]:
    return lambda: PASSES[name].run(call, forward, look).entropy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=PASS)
    parser.add_argument("--longest", type=int, default=32768, help="leave out longer sequences")
    arguments = parser.parse_args()
    titles = ["B,H,N,D", "causal", "forward", *(each for name in LOOKS for each in (name, "ratio"))]
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    for size in SIZES[arguments.device]:
        for causal in (False, True):
            if size[2] <= arguments.longest:
                print(row(size, causal, arguments.device), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
