"""A task of a few numbers, trained in milliseconds a step, in which everything can be made to happen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.training.checkpoints.checkpoints import Checkpoint, Checkpoints
from regard.training.logs.log import Log
from regard.training.loop import Trainer
from regard.training.settings import Training
from regard.training.task import Evaluation, Loss, Stopped, Task


@dataclass(frozen=True)
class Numbers:
    """A batch: points (B, 3), and what is to be said of them (B, 1)."""

    x: Tensor
    y: Tensor

    def to(self, device: Any) -> Numbers:
        return Numbers(self.x.to(device), self.y.to(device))


class Toy(Task):
    """Learn a line through 24 points.

    each: points a batch. scores: of each evaluation in turn; of the model itself unless given. on_loss,
    on_evaluation: called with how often that was done, before it is done. bad: what becomes wrong at the
    batch of a point whose first number is over 100, "nan", "inf" or "gradient".
    """

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
            wrong = (0 * wrong).sqrt()  # 0, and what it costs to change it is 0 times infinity
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

    def restored(self, tensors: dict[str, Tensor]) -> Numbers:
        return Numbers(**tensors)


def trainer(folder: Path, task: Task | None = None, log: bool = False, **settings: Any) -> Trainer:
    """A trainer of 12 steps, or as the settings say."""
    lengths = {"steps", "epochs", "minutes"} & set(settings)
    usual = {} if lengths else {"steps": 12}
    chosen = Training(
        **{**usual, "learning_rate": 0.05, "warmup_steps": 2, "log_every": 1, "best": "loss", **settings}
    )
    written = Log(folder / "log.jsonl", console=Console(quiet=True), record=1) if log else None
    return Trainer(task or Toy(), chosen, folder, seed=5, log=written)


def last(folder: Path) -> Checkpoint:
    """The last checkpoint of a run."""
    found = Checkpoints(folder).latest()
    assert found is not None
    return found


def bits(folder: Path) -> dict[str, bytes]:
    """What the last checkpoint of a run holds of tensors."""
    return {path.name: path.read_bytes() for path in last(folder).path.glob("*.safetensors")}


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in the log of a run."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]
