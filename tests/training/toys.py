"""A regression task with steps of milliseconds, and hooks to inject faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.training.checkpoints.checkpoints import Checkpoint, Checkpoints
from regard.training.logs.log import Log
from regard.training.loop import Trainer
from regard.training.settings import Training
from regard.training.task import Direction, Evaluation, Loss, Stopped, Task


@dataclass(frozen=True)
class Numbers:
    """A batch: inputs (B, 3) and targets (B, 1)."""

    x: Tensor
    y: Tensor

    def to(self, device: Any) -> Numbers:
        return Numbers(self.x.to(device), self.y.to(device))


class Toy(Task):
    """Linear regression on 24 points.

    each: points per batch. scores: the scores of each evaluation in turn; by default they are computed.
    on_loss, on_evaluation: called at the start of loss() and evaluate(), with the number of calls so far.
    bad: fault in a batch with an input above 100: "nan" or "inf" (the loss) or "gradient".
    """

    metrics: Mapping[str, Direction] = MappingProxyType({"loss": "lower", "bleu": "higher", "chrf": "higher"})

    def __init__(self, *, each: int = 4, dropout: float = 0.0, scores: list[dict[str, float]] | None = None):
        torch.manual_seed(0)
        self.x = torch.randn(24, 3)
        self.y = self.x.sum(1, keepdim=True)
        layers = nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)
        self.model = nn.Sequential(*layers)
        self.each, self.scores, self.bad = each, scores, ""
        self.losses = self.evaluations = 0
        self.on_loss: Callable[[int], None] = lambda count: None
        self.on_evaluation: Callable[[int], None] = lambda count: None

    def batches(self, epoch: int, start: int = 0) -> Iterator[Numbers]:
        order = torch.randperm(24, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(self.each)[start:]:
            yield Numbers(self.x[rows], self.y[rows])

    def len_epoch(self, epoch: int) -> int:
        return -(-24 // self.each)

    def count(self, batch: Numbers) -> int:
        return len(batch.x)

    def loss(self, batch: Numbers) -> Loss:
        if not torch.compiler.is_compiling():
            self.losses += 1
            self.on_loss(self.losses)
        wrong = (self.model(batch.x) - batch.y).float() ** 2
        if self.bad == "gradient" and bool((batch.x > 100).any()):
            wrong = (0 * wrong).sqrt()  # the value is 0, its gradient 0 * inf = NaN
        elif self.bad and bool((batch.x > 100).any()):
            wrong = wrong * float(self.bad)
        return Loss(wrong.sum(), {"loss": wrong.sum().detach()})

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        self.evaluations += 1
        self.on_evaluation(self.evaluations)
        if stopping():
            raise Stopped
        if self.scores is not None:
            return Evaluation(self.scores[min(self.evaluations, len(self.scores)) - 1])
        loss = float(((self.model(self.x) - self.y) ** 2).mean())
        return Evaluation({"loss": loss, "bleu": -loss, "chrf": -loss})


def trainer(folder: Path, task: Task | None = None, log: bool = False, **settings: Any) -> Trainer:
    """Return a trainer of 12 steps, changed by `settings`."""
    lengths = {"steps", "epochs", "minutes"} & set(settings)
    usual = {} if lengths else {"steps": 12}
    chosen = Training(
        **{**usual, "learning_rate": 0.05, "warmup_steps": 2, "log_every": 1, "best": "loss", **settings}
    )
    written = Log(folder / "log.jsonl", console=Console(quiet=True), record=1) if log else None
    return Trainer(task or Toy(), chosen, folder, seed=5, log=written)


def last(folder: Path) -> Checkpoint:
    """Return the last checkpoint of a run."""
    checkpoint = Checkpoints(folder).latest()
    assert checkpoint is not None
    return checkpoint


def bits(folder: Path) -> dict[str, bytes]:
    """Return the tensor files of the last checkpoint of a run."""
    return {path.name: path.read_bytes() for path in last(folder).path.glob("*.safetensors")}


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind in the log of a run."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]
