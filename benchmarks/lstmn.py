"""Benchmark of training an LSTMN language model: tokens per second, beside an LSTM and a plain Python loop.

python -m benchmarks.lstmn                         on a CUDA device: check correctness, then measure
python -m benchmarks.lstmn --device cpu --quick    small sizes, without CUDA graphs

The sizes are those of Cheng et al. (2016): embeddings of 150, states of 300, one and three layers, batches of
40, here with windows of 35 words of a vocabulary of 10,000. A step is a whole training step: loss, gradients,
gradient clipping, SGD. The tapes cover the window.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.eager_loop import Learned
from benchmarks.measure import RESULTS, environment, write_results
from regard.data.batch import TextBatch
from regard.models import LanguageModel, build_language_model
from regard.training.gradients import Gradients

__all__ = ["WAYS", "Sizes", "gate", "measured", "plain_loss", "table"]

DEPTHS = (1, 3)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the models and of a batch."""

    words: int = 10_000
    embedding: int = 150
    width: int = 300
    rows: int = 40
    window: int = 35


QUICK = Sizes(words=500, embedding=24, width=32, rows=8, window=12)

LossOf = Callable[[LanguageModel], Callable[[TextBatch], tuple[Tensor, Tensor]]]


def our_loss(model: LanguageModel) -> Callable[[TextBatch], tuple[Tensor, Tensor]]:
    """Return the loss of a language model of Regard."""

    def loss(batch: TextBatch) -> tuple[Tensor, Tensor]:
        total = functional.cross_entropy(model(batch).flatten(0, 1), batch.targets.flatten(), reduction="sum")
        return total, total.detach()

    return loss


def plain_loss(model: LanguageModel) -> Callable[[TextBatch], tuple[Tensor, Tensor]]:
    """Return the loss of an LSTMN in plain PyTorch, with its weights: the equations in a Python loop.

    Each step concatenates the tapes and projects all of their states; autograd computes the backward pass.
    """
    layers: Any = model.layers

    def states_of(layer: Any, xs: list[Tensor]) -> list[Tensor]:
        of_x, of_summary = layer.score.query_weight.tensor_split((xs[0].shape[-1],))
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        summary = xs[0].new_zeros(len(xs[0]), layer.width)
        for x in xs:
            cell = torch.zeros_like(summary)
            query = x @ of_x + summary @ of_summary
            summary = torch.zeros_like(summary)
            if hidden:
                tape_BSM, memory_BSM = torch.stack(hidden, 1), torch.stack(cells, 1)
                scores = torch.tanh(tape_BSM @ layer.score.key_weight + query[:, None]) @ layer.score.vector
                weights = torch.softmax(scores, -1)[..., None]
                summary, cell = (weights * tape_BSM).sum(1), (weights * memory_BSM).sum(1)
            take, forget, show, new = (layer.input(x) + layer.summary(summary)).chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(new)
            cells.append(cell)
            hidden.append(torch.sigmoid(show) * torch.tanh(cell))
        return hidden

    def loss(batch: TextBatch) -> tuple[Tensor, Tensor]:
        xs = list(model.embedding(batch.inputs).unbind(1))
        outputs = xs
        for k, layer in enumerate(layers.layers):
            outputs = states_of(
                layer, [torch.cat(pair, -1) for pair in zip(outputs, xs, strict=True)] if k else xs
            )
        output: Any = model.output
        logits = output(torch.stack(outputs, 1))
        total = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
        return total, total.detach()

    return loss


@dataclass(frozen=True)
class Way:
    """A way to train. model: its name. loss: the loss function. captured: as a CUDA graph."""

    about: str
    model: str = "lstmn"
    loss: LossOf = our_loss
    captured: bool = False


WAYS = {
    "lstm": Way("torch.nn.LSTM of the same width (cuDNN on CUDA)", "lstm"),
    "lstm, captured": Way("the same in a CUDA graph", "lstm", captured=True),
    "plain loop": Way("LSTMN in plain PyTorch, a Python loop over the steps", loss=plain_loss),
    "lstmn": Way("LSTMN of Regard"),
    "lstmn, captured": Way("the same in a CUDA graph, as regard train does on CUDA", captured=True),
}


class Trained:
    """A way to train, with a model and an optimizer of its own; the models of all ways are equal at first."""

    def __init__(self, way: Way, depth: int, sizes: Sizes, device: torch.device, precision: str = "tf32"):
        torch.manual_seed(0)
        options: dict[str, Any] = {"width": sizes.width, "embedding": sizes.embedding, "depth": depth}
        if way.model == "lstmn":
            options["tape"] = "window"
        model = build_language_model(way.model, sizes.words, **options)
        self.model = copy.deepcopy(model).to(device).train()
        self.said: list[str] = []
        self.task = Learned(self.model, way.loss(self.model))  # type: ignore[arg-type]
        self.tokens = sizes.rows * sizes.window
        chosen: dict[str, Any] = {"captured": way.captured, "precision": precision, "say": self.said.append}
        self.gradients = Gradients(self.task, seed=1, device=device, **chosen)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def add(self, step: int, batch: TextBatch) -> Tensor:
        """Return the loss of a batch; its gradients are then in the parameters."""
        return self.gradients.add(step, [batch], self.tokens)[""]

    def step(self, step: int, batch: TextBatch) -> None:
        """Run one training step."""
        self.add(step, batch)
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def batch_of(sizes: Sizes, seed: int, device: torch.device) -> TextBatch:
    """Return a batch of random words."""
    source = torch.Generator().manual_seed(seed)
    words = torch.randint(4, sizes.words, (sizes.rows, sizes.window + 1), generator=source).to(device)
    lengths = torch.full((sizes.rows,), sizes.window, device=device)
    rows = torch.arange(sizes.rows, device=device)
    return TextBatch(words[:, :-1].contiguous(), words[:, 1:].contiguous(), lengths, rows)


def gate(sizes: Sizes, device: torch.device, names: list[str]) -> dict[str, float]:
    """Return the relative error of the loss and of all gradients of each LSTMN against the plain loop.

    The oracle is the plain loop in float32 without TF32. Exits if an error is larger than 1e-4.
    """
    errors = {}
    for depth in DEPTHS:
        vectors = {}
        for name in ("plain loop", *names):
            trained = Trained(WAYS[name], depth, sizes, device, precision="float32")
            loss = trained.add(1, batch_of(sizes, 7, device))
            gradients = [each.grad.flatten() for each in trained.model.parameters() if each.grad is not None]
            if trained.said:
                sys.exit(f"correctness check failed: {name}: {trained.said[0]}")
            vectors[name] = torch.cat((loss.flatten(), *gradients))
        oracle = vectors.pop("plain loop")
        for name, each in vectors.items():
            error = max(
                ((mine - right).norm() / right.norm()).item()
                for mine, right in ((each[:1], oracle[:1]), (each[1:], oracle[1:]))
            )
            errors[f"{name}, depth {depth}"] = error
            if not error < 1e-4:
                sys.exit(f"correctness check failed: {name}, depth {depth}: error {error:.1e}")
    return errors


def measured(name: str, depth: int, sizes: Sizes, device: torch.device, seconds: float) -> dict[str, Any]:
    """Return the times of a way: wall-clock time of single steps, and the device time of its kernels."""
    row: dict[str, Any] = {"way": name, "depth": depth}
    try:
        trained, batches = (
            Trained(WAYS[name], depth, sizes, device),
            [batch_of(sizes, s, device) for s in range(4)],
        )
        for step in range(3):
            trained.step(step, batches[step])
        if trained.said:
            raise RuntimeError(trained.said[0])
        times: list[float] = []
        wait(device)
        begun = time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begun < seconds:
            start = time.perf_counter()
            for step in range(2):
                trained.step(step, batches[step])
            wait(device)
            times.append((time.perf_counter() - start) / 2 * 1000)
        low, median, high = statistics.quantiles(times, n=4)
        row |= {"milliseconds": median, "low": low, "high": high}
        row["tokens a second"] = trained.tokens / median * 1000
        row["device milliseconds"] = device_time(trained, batches[0]) if device.type == "cuda" else None
    except Exception as error:
        row["missing"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return row


def device_time(trained: Trained, batch: TextBatch) -> float:
    """Return the milliseconds that the kernels of one step take, without the gaps between them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for step in range(2):
            trained.step(step, batch)
        torch.cuda.synchronize()
    return sum(each.self_device_time_total for each in profile.key_averages()) / 2 / 1000


def wait(device: torch.device) -> None:
    """Wait for the kernels of a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per way and number of layers."""
    plain = {row["depth"]: row for row in rows if row["way"] == "plain loop" and "missing" not in row}
    columns = (
        "layers",
        "way",
        "tokens/s",
        "speed-up over the plain loop",
        "ms per step (quartiles)",
        "device ms",
    )
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for row in rows:
        head = f"| {row['depth']} | {row['way']}: {WAYS[row['way']].about} |"
        if "missing" in row:
            lines.append(f"{head} {row['missing']} | | | |")
            continue
        base = plain.get(row["depth"])
        times = f"{base['milliseconds'] / row['milliseconds']:.1f}" if base else ""
        spread = f"{row['milliseconds']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        device = "" if row["device milliseconds"] is None else f"{row['device milliseconds']:.2f}"
        lines.append(f"{head} {row['tokens a second']:,.0f} | {times} | {spread} | {device} |")
    return "\n".join(lines)


def keep(folder: Path, stem: str, record: dict[str, Any]) -> None:
    """Write the results as JSON and as a Markdown table."""
    sizes = record["sizes"]
    about = (
        f"LSTMN language model: embeddings of {sizes['embedding']}, states of {sizes['width']}, "
        f"{sizes['words']:,} words, batches of {sizes['rows']} windows of {sizes['window']} words; a whole "
        "training step (loss, gradients, clipping, SGD), matrix products in TF32 on CUDA. "
        f"{record['device']}, torch {record['torch']}, wall-clock time; device ms: sum of the kernels. "
        "Correctness check: the largest relative error of loss or gradients against the plain loop in "
        f"float32 is {max(record['errors'].values()):.1e}."
    )
    write_results(folder, stem, record, f"{about}\n\n{table(record['rows'])}\n")


def main() -> None:
    """Check correctness, then measure the training of LSTMN language models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lstmn", description=main.__doc__)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=here, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes and short measurements")
    parser.add_argument("--seconds", type=float, default=3.0, help="measuring time per row (default: 3)")
    parser.add_argument("--into", metavar="FOLDER", type=Path, default=RESULTS, help="output folder")
    parser.add_argument("--no-write", action="store_true", help="print the table without writing files")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; use --device cpu")
    device, sizes = torch.device(arguments.device), QUICK if arguments.quick else Sizes()
    names = [name for name, way in WAYS.items() if not way.captured or device.type == "cuda"]
    errors = gate(sizes, device, [name for name in names if name.startswith("lstmn")])
    print(f"correctness check passed; relative errors: {errors}", flush=True)
    seconds, rows = 0.3 if arguments.quick else arguments.seconds, []
    for depth in DEPTHS:
        for name in names:
            rows.append(measured(name, depth, sizes, device, seconds))
            print(json.dumps(rows[-1]), flush=True)
    print("\n" + table(rows))
    if not arguments.no_write:
        named = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        head = {"date": f"{datetime.date.today()}", "device": named, "sizes": vars(sizes), **environment()}
        stem = f"{datetime.date.today()}-lstmn" + ("" if device.type == "cuda" else "-cpu")
        keep(arguments.into, stem, {**head, "errors": errors, "rows": rows})
        print(f"Wrote {stem}.json and .md")


if __name__ == "__main__":
    main()
