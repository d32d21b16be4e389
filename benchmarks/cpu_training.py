"""Benchmark of training on a CPU: target tokens per CPU second of whole steps, peers in the same run.

python -m benchmarks.cpu_training [--case transformer-256] [--rounds 7]
python -m benchmarks.cpu_training --name cpu-training

A step is the loss, its gradients, clipping and AdamW. Each way trains in turn for a moment, and the medians
of the rounds are compared. One thread; process time, so that other programs on the machine disturb less.
Before, the gradients of Regard in bfloat16 are compared with those of plain PyTorch in float64; the error is
at most twice that of plain autocast. Peers: Marian of Hugging Face of the same size, and an eager PyTorch
loop with the same weights as Bahdanau's model, without its dropout; each in float32 and in bfloat16.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.eager_loop import eager_loss
from benchmarks.measure import RESULTS, environment
from benchmarks.training_cases import SMOOTHING
from benchmarks.training_peers import marian_loss
from regard.data.batch import EOS, Batch
from regard.fast.twins import Twins
from regard.models import build_model
from regard.training.gradients import build_optimizer, coarse_products
from regard.training.losses import cross_entropy, model_loss

WORDS, TOKENS, WIDTH, LENGTH, DROPOUT = 8_000, 2_000, 256, 20, 0.1

CASES: dict[str, dict[str, Any]] = {
    "transformer-256": {"name": "transformer", "layers": 4, "heads": 4, "inner": 1024},
    "bahdanau-256": {"name": "bahdanau"},
}

Loss = Callable[[Batch], Tensor]


def batch_of(seed: int) -> Batch:
    """Return random pairs of 15 to 20 tokens, TOKENS tokens with padding."""
    random = torch.Generator().manual_seed(seed)
    sides = []
    for _ in range(2):
        lengths = torch.randint(LENGTH - 6, LENGTH, (TOKENS // LENGTH,), generator=random).tolist()
        sides.append([torch.randint(EOS + 1, WORDS, (n,), generator=random).tolist() for n in lengths])
    return Batch.collate(*sides)


class Way:
    """A way to train: a model, its loss of a batch, and its precision."""

    def __init__(self, model: nn.Module, loss: Loss, half: bool, products: str = "highest"):
        self.model, self.loss, self.half, self.products = model.train(), loss, half, products
        self.optimizer = build_optimizer(model, beta2=0.98, weight_decay=0.01)
        self.batches, self.steps = [batch_of(seed) for seed in range(4)], 0

    def gradients(self, batch: Batch) -> int:
        """Compute the gradients of the mean loss, and return the number of target tokens."""
        tokens = int(batch.target_lengths.sum())
        with coarse_products(self.products):
            with torch.autocast("cpu", torch.bfloat16) if self.half else nullcontext():
                total = self.loss(batch)
            (total / tokens).backward()
        return tokens

    def step(self) -> int:
        tokens = self.gradients(self.batches[self.steps % len(self.batches)])
        self.steps += 1
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-4
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return tokens


def our_loss(model: Any, fast: bool = True) -> Loss:
    """Return the loss of a training step. fast: whether to use the twins and the chunked loss."""
    if not fast:
        return lambda batch: cross_entropy(model(batch), batch.labels, SMOOTHING)[0]
    twins = Twins(model)

    def loss(batch: Batch) -> Tensor:
        with twins:
            return model_loss(model, batch, batch.labels, SMOOTHING)[0]

    return loss


def ways(options: dict[str, Any]) -> dict[str, Way]:
    def model(dropout: float = DROPOUT) -> Any:
        torch.manual_seed(0)
        return build_model(options["name"], WORDS, WORDS, width=WIDTH, dropout=dropout, **_others(options))

    made: dict[str, Way] = {}
    for name, half in (("float32", False), ("bfloat16", True)):
        own = model()
        made[f"regard, {name}"] = Way(own, our_loss(own), half, "medium" if half else "highest")
        if options["name"] == "transformer":
            marian, loss = marian_loss(WORDS, WIDTH, options["layers"], options["heads"], options["inner"])
            made[f"Hugging Face Marian, {name}"] = Way(marian, loss, half)
        else:
            plain = model(dropout=0.0)  # without dropout, which makes it faster
            made[f"eager PyTorch loop, {name}"] = Way(plain, first_of(eager_loss(plain)), half)
    return made


def first_of(loss: Callable[[Batch], tuple[Tensor, Tensor]]) -> Loss:
    return lambda batch: loss(batch)[0]


def _others(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "name"}


def check(options: dict[str, Any]) -> float:
    """Compare the gradients in bfloat16; return the largest ratio of our error to that of plain autocast."""
    torch.manual_seed(0)
    small = {**_others(options), "width": 64, "dropout": 0.0}
    model = build_model(options["name"], WORDS, WORDS, **small).train()
    exact, plain, ours = (copy.deepcopy(model) for _ in range(3))
    found = []
    for each, half, fast in ((exact.double(), False, False), (plain, True, False), (ours, True, True)):
        Way(each, our_loss(each, fast), half, "medium" if fast else "highest").gradients(batch_of(0))
        gradients: list[Any] = [parameter.grad for parameter in each.parameters()]
        found.append([gradient.double() for gradient in gradients])
    ratios = [
        ((three - one).norm() / ((two - one).norm() + 2**-9 * one.norm())).item()
        for one, two, three in zip(*found, strict=True)
    ]
    assert max(ratios) <= 2, f"gradients in bfloat16 are wrong: {max(ratios):.2f} times the error of autocast"
    return max(ratios)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="CPU seconds of a way in a round")
    parser.add_argument("--name", help="write results/DATE-NAME.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = ["| case | way | target tokens per CPU second | spread |", "| --- | --- | --- | --- |"]
    for case in arguments.case:
        ratio, all_ways = check(CASES[case]), ways(CASES[case])
        print(f"{case}: gradients have at most {ratio:.2f} times the error of plain autocast", flush=True)
        speeds: dict[str, list[float]] = {name: [] for name in all_ways}
        for each in all_ways.values():
            each.step()
        for _ in range(arguments.rounds):
            for name, each in all_ways.items():
                began, tokens = time.process_time(), 0
                while time.process_time() - began < arguments.seconds:
                    tokens += each.step()
                speeds[name].append(tokens / (time.process_time() - began))
        for name, values in speeds.items():
            middle = f"{statistics.median(values):,.0f}"
            rows.append(f"| {case} | {name} | {middle} | {min(values):,.0f} to {max(values):,.0f} |")
            print(rows[-1], flush=True)
    if arguments.name:
        path = RESULTS / f"{datetime.date.today()}-{arguments.name}.md"
        path.write_text("\n".join([f"# Training on a CPU\n\n{environment()}\n", *rows]) + "\n")


if __name__ == "__main__":
    main()
