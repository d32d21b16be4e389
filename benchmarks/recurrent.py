"""Benchmark of training Bahdanau's model: target tokens per second, compared with a loop in plain PyTorch.

python -m benchmarks.recurrent --into FOLDER checks correctness, then measures. Embeddings of 620, states of
1,000, 30,000 words, batches of 80 sentences. A step is a whole training step: loss, gradients, gradient
clipping, AdamW.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import functools
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.eager_loop import (
    EMBEDDING,
    ROWS,
    WIDTH,
    WORDS,
    Learned,
    batch_of,
    eager_loss,
    our_loss,
    packed,
)
from benchmarks.measure import environment, write_results
from regard.backends import choose_backend
from regard.call import Call
from regard.data.batch import Batch
from regard.models.bahdanau import Bahdanau
from regard.training.gradients import Gradients, build_optimizer

LENGTHS, DEVICE = (30, 50), torch.device("cuda")


BEFORE: dict[str, Any] = {
    "regard.fast.recurrent.recurrent.encode_padded": packed,
    "regard.training.losses.by_kernel": lambda logits: False,
}
STEP_BY_STEP: dict[str, Any] = {"regard.fast.recurrent.bahdanau.FastBahdanau._steps": lambda *_: None}


@dataclass(frozen=True)
class Way:
    """A way to train.

    loss: the loss function. backend: of attention. captured: as CUDA graphs. otherwise: functions of the
    library to replace, by name, to measure earlier versions.
    """

    about: str
    loss: Callable[[Bahdanau], Callable[[Batch], tuple[Tensor, Tensor]]] = our_loss
    backend: str = "auto"
    captured: bool = False
    otherwise: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Apply the backend and the replaced functions of this way."""

        def choose(call: Call, name: str = "auto") -> str:
            return choose_backend(call, self.backend)

        with ExitStack() as stack:
            for name, replacement in {"regard.attention.choose_backend": choose, **self.otherwise}.items():
                stack.enter_context(mock.patch(name, replacement))
            yield


STEPWISE = Way("regard, step by step, fused", backend="fused", otherwise=STEP_BY_STEP)
DEFERRED = Way("regard, gradients of weights and memory computed after the last step", backend="fused")
WAYS = {
    "eager loop": Way("plain PyTorch, a Python loop over the steps", eager_loss),
    "eager loop, captured": Way(
        "the same in a CUDA graph", functools.partial(eager_loss, one_length=True), captured=True
    ),
    "before": Way(
        "earlier version of regard, step by step, blocked", backend="blocked", otherwise=BEFORE | STEP_BY_STEP
    ),
    "fused": STEPWISE,
    "fused, captured": replace(STEPWISE, about="the same in a CUDA graph", captured=True),
    "deferred gradients": DEFERRED,
    "deferred gradients, captured": replace(DEFERRED, about="the same in a CUDA graph", captured=True),
}


@functools.cache
def untrained() -> Bahdanau:
    """Return the initial model, the same for every way."""
    torch.manual_seed(0)
    return Bahdanau(WORDS, WORDS, WIDTH, embedding=EMBEDDING)


class Trained:
    """A way to train with its own model and optimizer."""

    def __init__(self, way: Way, half: bool = True):
        self.model = copy.deepcopy(untrained()).to(DEVICE).train()
        self.way, self.said = way, list[str]()
        task = Learned(self.model, way.loss(self.model))
        precision = "bfloat16" if half else "float32"
        options: dict[str, Any] = {"precision": precision, "captured": way.captured, "say": self.said.append}
        self.gradients = Gradients(task, seed=1, device=DEVICE, **options)
        self.task, self.optimizer = task, build_optimizer(self.model, beta2=0.98, weight_decay=0.01)

    def added(self, step: int, batch: Batch) -> Tensor:
        """Return the loss of a batch; its gradients are in the parameters."""
        sums = self.gradients.add(step, [batch], self.task.count(batch))
        return sums[""]

    def step(self, step: int, batch: Batch) -> None:
        """Run one training step."""
        self.added(step, batch)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-4
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


PEER = "eager loop, captured"
"""A peer that needs sentences of one length; the correctness check has others."""


def gate(half: bool, names: Iterable[str] = WAYS) -> dict[str, float]:
    """Return the relative error of each way against the eager loop in float32: of the loss and all gradients.

    The batch has sequences of different lengths. Exits if an error is larger than twice the error of the
    eager loop in the same precision plus one rounding step of bfloat16; in float32, where the eager loop is
    the reference itself, if it is larger than 1e-4.
    """
    batch, found = batch_of(20, 7, ragged=True), dict[str, list[Tensor]]()
    plain = WAYS["eager loop"]
    ways = {"oracle": (plain, False), "eager loop": (plain, half)}
    ways |= {name: (WAYS[name], half) for name in names if name != PEER}
    torch.backends.cudnn.allow_tf32 = False
    for name, (way, low) in ways.items():
        trained = Trained(way, half=low)
        with way.entered():
            loss = trained.added(1, batch)
        if trained.said:
            sys.exit(trained.said[0])
        gradients = [each.grad.float().flatten() for each in trained.model.parameters()]  # type: ignore[union-attr]
        found[name] = [loss.float().flatten(), torch.cat(gradients)]
        del trained, gradients
        gc.collect()
    torch.backends.cudnn.allow_tf32 = True
    step = torch.finfo(torch.bfloat16 if half else torch.float32).eps
    oracle, errors = found.pop("oracle"), {}
    for name, each in found.items():
        parts = [(mine - right).norm() / right.norm() for mine, right in zip(each, oracle, strict=True)]
        errors[name] = max(parts).item()
        allowed = 2 * errors["eager loop"] + (step if half else 1e-4)
        if not errors[name] <= allowed:
            sys.exit(f"correctness check failed: {name}: error {errors[name]:.2e}, allowed {allowed:.2e}")
    return errors


@dataclass
class Row:
    """The measurements of one way at one length."""

    way: str
    length: int
    milliseconds: list[float] = field(default_factory=list)
    peak: float = 0.0
    missing: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def rate(self) -> float:
        """Target tokens per second."""
        return ROWS * self.length / self.median * 1000

    def written(self, eager: float | None) -> dict[str, Any]:
        """Return the row for JSON; eager: the rate of the eager loop."""
        if self.missing:
            return {"way": self.way, "length": self.length, "missing": self.missing}
        low, _, high = statistics.quantiles(self.milliseconds, n=4)
        times = {"milliseconds": self.median, "low": low, "high": high, "tokens a second": self.rate}
        times |= {"times the eager loop": self.rate / eager} if eager else {}
        return {"way": self.way, "length": self.length, **times, "peak MiB": self.peak}


def measured(name: str, length: int, seconds: float = 2.0, each: int = 3) -> Row:
    """Measure a way at a length: the wall-clock time of windows of `each` steps, for about `seconds`."""
    row, way = Row(name, length), WAYS[name]
    try:
        trained, batches = Trained(way), [batch_of(length, seed) for seed in range(4)]
        with way.entered():
            for step in range(4):
                trained.step(step, batches[step % 4])
            if trained.said:
                raise RuntimeError(trained.said[0])
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            while len(row.milliseconds) < 5 or time.perf_counter() - begun < seconds:
                start = time.perf_counter()
                for step in range(each):
                    trained.step(step, batches[step % 4])
                torch.cuda.synchronize()
                row.milliseconds.append((time.perf_counter() - start) / each * 1000)
        row.peak = torch.cuda.max_memory_allocated() / 2**20
    except Exception as error:
        row.missing = f"{type(error).__name__}: {error}".splitlines()[0]
    return row


def profiled(length: int) -> str:
    """Return a table of the kernels of five captured steps, by total time."""
    way = WAYS["deferred gradients, captured"]
    trained, batch = Trained(way), batch_of(length, 0)
    with way.entered():
        for step in range(3):
            trained.step(step, batch)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for step in range(5):
                trained.step(step, batch)
            torch.cuda.synchronize()
    return seen.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=70)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per way and length."""
    lines = [
        "| batch | implementation | tokens/s | speed-up over the eager loop |"
        " ms per step (quartiles) | peak MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        head = f"| {ROWS} x {row['length']} | {row['way']}: {WAYS[row['way']].about} |"
        if "missing" in row:
            lines.append(f"{head} {row['missing']} | | | |")
            continue
        spread = f"{row['milliseconds']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        times = f"{row.get('times the eager loop', 0):.2f}"
        lines.append(f"{head} {row['tokens a second']:,.0f} | {times} | {spread} | {row['peak MiB']:,.0f} |")
    return "\n".join(lines)


def keep(folder: Path, errors: dict[str, dict[str, float]], rows: list[dict[str, Any]]) -> None:
    """Write the results so far."""
    head = {"date": f"{datetime.date.today()}", "device": torch.cuda.get_device_name(), **environment()}
    whole = {**head, "gate, error against the eager loop in float32": errors, "rows": rows}
    worst = "; ".join(
        f"{precision} {max(found.values()):.1e} (eager loop {found['eager loop']:.1e})"
        for precision, found in errors.items()
    )
    about = (
        f"Bahdanau's model, embeddings of {EMBEDDING}, states of {WIDTH:,}, {WORDS:,} words per side, "
        f"batches of {ROWS} sentences of one length; a whole training step in bfloat16: loss, gradients, "
        f"clipping, fused AdamW. {head['device']}, torch {torch.__version__}, wall-clock time. "
        "Correctness check, on batches with different lengths: the largest relative error of loss or "
        f"gradients against the eager loop in float32 is {worst}."
    )
    write_results(folder, f"{datetime.date.today()}-recurrent", whole, f"{about}\n\n{table(rows)}\n")


def main() -> None:
    """Check correctness, then measure the training of Bahdanau's model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recurrent", description=main.__doc__)
    parser.add_argument(
        "--into", metavar="FOLDER", type=Path, help="write the numbers and a table to this folder"
    )
    parser.add_argument("--profile", action="store_true", help="also time each kernel")
    parser.add_argument("--only", action="append", choices=list(WAYS), help="row to measure (default: all)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    captured = [name for name, way in WAYS.items() if way.captured]
    errors = {"float32": gate(False, captured), "bfloat16": gate(True)}
    print(f"correctness check passed; error against float32: {errors}", flush=True)
    rows = []
    for length in LENGTHS:
        eager = None
        for name in arguments.only or WAYS:
            row = measured(name, length)
            gc.collect()
            torch.cuda.empty_cache()
            eager = row.rate if name == "eager loop" and not row.missing else eager
            rows.append(row.written(eager))
            print(json.dumps(rows[-1]), flush=True)
            if arguments.into:
                keep(arguments.into, errors, rows)
    print("\n" + table(rows))
    if arguments.profile:
        for length in LENGTHS:
            print(profiled(length))


if __name__ == "__main__":
    main()
