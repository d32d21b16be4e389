"""Benchmark of the looking pass: its time beside the forward pass, for several lengths and head sizes.

python -m benchmarks.looking_speed [--device cuda] prints a table in Markdown. Before a row is measured, the
looks of one head are compared with float64. Ratios are (forward + looking) / forward.

On a GPU, times are device times (replays of CUDA graphs, in turns), and a second table has wall times of
plain calls of regard.attention(), without and with looks. `eager` computes the weights and the output in
PyTorch, without looks; `eager, all three` also computes entropy, alignment and mass from the weights;
`transformers, eager` is the function of transformers that returns weights, whose softmax is in float32. They
are measured where the weights fit in memory.

With --score additive, the score is v . tanh(q + k), and there is no eager: it needs T x S x D numbers.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.device import graphed
from benchmarks.measure import require_device
from regard.call import Call, Forward
from regard.checking import check
from regard.looking import PASSES

LOOKS = {
    "all three": regard.Look(entropy=True, alignment=True, mass=True),
    "entropy": regard.Look(entropy=True),
    "alignment": regard.Look(alignment=True),
    "entropy, mass, top 8": regard.Look(entropy=True, mass=True, top=8),
}

LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
SIZES: dict[str, list[tuple[int, int, int, int]]] = {
    "cuda": [
        (16384 // length or 1, heads if length < 65536 else heads // 2, length, width)
        for heads, width in ((16, 128), (32, 64))
        for length in LENGTHS
    ],
    "cpu": [(1, 8, 1024, 64), (1, 8, 2048, 64), (1, 4, 4096, 64), (1, 8, 2048, 128)],
}
"""For each device, (B, H, N, D)."""

ADDITIVE = {
    "cuda": [(64, 1, 50, 1000), (80, 1, 64, 512), (8, 1, 512, 256), (4, 1, 2048, 128), (1, 1, 16384, 128)],
    "cpu": [(16, 1, 50, 256), (2, 1, 512, 128)],
}
"""The same for --score additive."""

PASS = {"cuda": "fused", "cpu": "blocked"}

EAGERS = ("eager", "eager, all three", "transformers, eager")
"""Attention with the whole matrix of weights in PyTorch, see above."""

LONGEST_EAGER = 16384
"""Longest sequence for which eager is measured: 4.3 billion weights, 8.6 GB in bfloat16."""


def median_ms(function: Callable[[], object], device: str, seconds: float = 0.1) -> float:
    """Return the median time of a call, after one call that is not timed: device time, or processor time."""
    if device == "cuda":
        return replayed_ms([function], seconds)[0]
    function()
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < 5 * seconds:
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return 1000 * statistics.median(taken)


def replayed_ms(functions: Sequence[Callable[[], object]], seconds: float = 0.1) -> list[float]:
    """Return the median device time of each function: of replays of its CUDA graph, so without the host.

    The graphs are replayed in turns, so that a change of the clock of the GPU affects all of them.
    """
    replays = [graphed(function) for function in functions]
    for replay in replays:
        replay()
    taken: list[list[float]] = []
    while len(taken) < 5 or (sum(map(sum, taken)) < 1000 * seconds * len(replays) and len(taken) < 100):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * len(replays))]
        for i, replay in enumerate(replays):
            events[2 * i].record()
            replay()
            events[2 * i + 1].record()
        torch.cuda.synchronize()
        taken.append([events[2 * i].elapsed_time(events[2 * i + 1]) for i in range(len(replays))])
    return [statistics.median(times) for times in zip(*taken, strict=True)]


def wall_ms(function: Callable[[], object], seconds: float = 0.1) -> float:
    """Return the time of a call on a GPU as a user sees it: of several calls, one after the other."""
    function()
    torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < seconds:
        for _ in range(5):
            function()
        torch.cuda.synchronize()
        count += 5
    return 1000 * (time.perf_counter() - start) / count


def gate(call: Call, forward: Forward, name: str) -> None:
    """Raise ValueError if the looks of the first head differ from float64 by more than rounding."""
    seen = PASSES[name].run(call, forward, LOOKS["all three"])
    top = PASSES[name].run(call, forward, LOOKS["entropy, mass, top 8"]).top
    assert seen.entropy is not None and seen.mass is not None and seen.alignment is not None
    assert top is not None
    query, key = call.query[0, 0].double(), call.key[0, 0].double()
    scores = query @ key.T * call.scale
    if call.vector is not None:
        scores = torch.stack([torch.tanh(each + key) @ call.vector[0].double() for each in query])
    if call.mask.causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    weights = scores.softmax(-1)
    errors = {
        "entropy": (seen.entropy[0, 0] - torch.special.entr(weights).sum(-1)).abs().max().item(),
        "mass": (seen.mass[0, 0] / weights.sum(0) - 1).abs().max().item(),
        "alignment": (seen.alignment[0, 0] != weights.argmax(-1)).double().mean().item(),
        "top": (top.weights[0, 0] - weights.topk(8).values).abs().max().item(),
    }
    limits = {"entropy": 1e-3, "mass": 1e-4, "alignment": 0.01, "top": 1e-4}
    if call.vector is not None:  # tanh is computed in less precision
        limits = {"entropy": 2e-3, "mass": 5e-2, "alignment": 0.2, "top": 2e-2}
    if not all(errors[each] < limits[each] for each in errors):
        raise ValueError(f"the looks of {tuple(call.query.shape)} are wrong: {errors}")


def row(size: Sequence[int], causal: bool, device: str, additive: bool = False) -> list[str]:
    """Measure one row of each table: device times (or processor times), and on a GPU wall times."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    query, key, value = (torch.randn(*size, device=device, dtype=dtype) for _ in range(3))
    score: regard.Score = regard.ScaledDot()
    if additive:
        score = regard.Additive(size[3], size[3]).to(device, dtype).requires_grad_(False)
    options: dict[str, Any] = {"mask": regard.causal() if causal else None, "score": score}
    attended = regard.attention(query, key, value, **options)
    forward = Forward(attended.output, attended.lse)
    call = check(query, key, value, select=regard.Soft(), **options)
    if size[2] <= 8192:
        gate(call, forward, PASS[device])
    functions: list[Callable[[], object]] = [_attending(query, key, value, options)]
    functions += [_looking(call, forward, look, PASS[device]) for look in LOOKS.values()]
    if device == "cuda":
        base, *times = replayed_ms(functions)
    else:
        base, *times = (median_ms(function, device) for function in functions)
    name = [",".join(map(str, size)), "yes" if causal else "no"]
    cells = [*name, f"{base:.3f}"]
    for taken in times:
        cells += [f"{taken:.3f}", f"{(base + taken) / base:.2f}"]
    if device != "cuda":
        return [f"| {' | '.join(cells)} |"]
    fits = size[2] <= LONGEST_EAGER and not additive
    for eager in _eagers(query, key, value, causal) if fits else ():
        cells.append(f"{median_ms(eager, device):.1f}")
    cells += [""] * (0 if fits else len(EAGERS))
    walls = [*name, f"{wall_ms(_attending(query, key, value, options)):.3f}"]
    walls += [
        f"{wall_ms(_attending(query, key, value, options | {'look': look})):.3f}" for look in LOOKS.values()
    ]
    return [f"| {' | '.join(cells)} |", f"| {' | '.join(walls)} |"]


def _looking(call: Call, forward: Forward, look: regard.Look, name: str) -> Callable[[], Tensor | None]:
    return lambda: PASSES[name].run(call, forward, look).entropy


def _attending(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Callable[[], object]:
    return lambda: regard.attention(query, key, value, **options)


def _eager(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, looks: bool = False
) -> tuple[Tensor, ...]:
    """Attention with the whole matrix of weights; with entropy, alignment and mass if `looks`."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if causal:
        length = query.shape[-2]
        hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores.masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(-1)
    seen = (torch.special.entr(weights).sum(-1), weights.argmax(-1), weights.sum(-2)) if looks else ()
    return weights @ value, *seen


def _eagers(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> list[Callable[[], object]]:
    """Return a function for each of EAGERS."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    length, layer = query.shape[-2], SimpleNamespace(num_key_value_groups=1, training=False)
    mask = None
    if causal:  # as transformers builds it, once for all layers
        mask = torch.full((length, length), torch.finfo(query.dtype).min, device=query.device).triu(1)
        mask = mask.to(query.dtype)[None, None]
    scale = query.shape[-1] ** -0.5
    return [
        functools.partial(_eager, query, key, value, causal),
        functools.partial(_eager, query, key, value, causal, looks=True),
        functools.partial(eager_attention_forward, layer, query, key, value, mask, scale),
    ]


def table(titles: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table in Markdown."""
    return "\n".join([f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}", *rows])


def report(rows: Sequence[Sequence[str]], device: str) -> str:
    """Return the tables of all rows so far."""
    titles = ["B,H,N,D", "causal", "forward", *(each for name in LOOKS for each in (name, "ratio"))]
    if device != "cuda":
        return table(titles, [each[0] for each in rows])
    titles += EAGERS
    walls = ["B,H,N,D", "causal", "forward", *(f"with {name}" for name in LOOKS)]
    return (
        f"Device times, ms:\n\n{table(titles, [each[0] for each in rows])}\n\n"
        f"Wall times of attention(), ms:\n\n{table(walls, [each[1] for each in rows])}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=PASS)
    parser.add_argument("--score", default="inner", choices=["inner", "additive"])
    parser.add_argument("--longest", type=int, default=65536, help="leave out longer sequences")
    parser.add_argument("--output", type=Path, help="also write the tables to this file, after each row")
    parser.add_argument("--limit", type=float, default=1e9, help="start no row after this many seconds")
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    rows, begun, additive = [], time.perf_counter(), arguments.score == "additive"
    sizes = (ADDITIVE if additive else SIZES)[arguments.device]
    for size in sorted(sizes, key=lambda size: size[2]):
        for causal in (False, True):
            if size[2] > arguments.longest or time.perf_counter() - begun > arguments.limit:
                print(f"left out: {size}, causal {causal}", file=sys.stderr, flush=True)
                continue
            rows.append(row(size, causal, arguments.device, additive))
            print("\n".join(rows[-1]), file=sys.stderr, flush=True)
            if arguments.output is not None:
                arguments.output.write_text(f"{report(rows, arguments.device)}\n")
    print(report(rows, arguments.device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
