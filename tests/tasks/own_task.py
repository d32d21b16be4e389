"""A task outside the package: fit a line through points in a text file, one `x y` per line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import DataError, message
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.runs.run_task import RunTask, StoredRun
from regard.training.settings import Section, Training
from regard.training.task import Evaluation, Loss


class PointFiles(Section):
    points: list[str]


class LineModel(ModelSettings):
    name: str = "line"


class LineTraining(Training):
    batch_tokens: int | None = None
    batch_size: int | None = 4
    warmup_steps: int = 1


class LineSettings(RunSettings):
    paths = ("points",)

    data: PointFiles
    model: LineModel = LineModel()
    training: LineTraining = LineTraining()


@dataclass(frozen=True)
class Points:
    x: Tensor
    y: Tensor

    @property
    def fingerprints(self) -> Mapping[str, str]:
        return {"train": hashlib.sha256(self.x.numpy().tobytes() + self.y.numpy().tobytes()).hexdigest()}

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{len(self.x)} points",)

    def to(self, device: Any) -> Points:
        return Points(self.x.to(device), self.y.to(device))


class LineTask(RunTask):
    settings_type = LineSettings
    metrics = MappingProxyType({"loss": "lower", "slope": "higher"})
    best = "loss"
    counted = "points"

    @classmethod
    def read_data(cls, settings: LineSettings, fingerprints: Mapping[str, str] | None = None) -> Points:
        rows = []
        for path in settings.data.points:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            if not lines:
                expected = "two numbers per line"
                raise DataError(message(f"{path}, line 1", "the file is empty", expected=expected))
            for number, line in enumerate(lines, 1):
                try:
                    x, y = map(float, line.split())
                except ValueError:
                    place, expected = f"{path}, line {number}", "two numbers"
                    raise DataError(message(place, f"{line!r}", expected=expected)) from None
                rows.append((x, y))
        x_N, y_N = torch.tensor(rows).unbind(1)
        return Points(x_N[:, None], y_N[:, None])

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> nn.Module:
        return nn.Linear(1, 1, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> nn.Module:
        model = nn.Linear(1, 1)
        model.load_state_dict(run.checkpoint.tensors("weights"))
        return model

    def batches(self, epoch: int, start: int = 0) -> Iterator[Points]:
        order = torch.randperm(len(self.corpus.x), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(self.settings.training.batch_size)[start:]:
            yield Points(self.corpus.x[rows], self.corpus.y[rows])

    def len_epoch(self, epoch: int) -> int:
        return -(-len(self.corpus.x) // self.settings.training.batch_size)

    def count(self, batch: Points) -> int:
        return len(batch.x)

    def loss(self, batch: Points) -> Loss:
        squared = ((self.model(batch.x) - batch.y) ** 2).sum()
        return Loss(squared, {"loss": squared.detach()})

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        loss = float(((self.model(self.corpus.x) - self.corpus.y) ** 2).mean())
        return Evaluation({"loss": loss, "slope": float(self.model.weight)})


class Wrong(LineTask):
    """A task whose loss is NaN."""

    def loss(self, batch: Points) -> Loss:
        loss = super().loss(batch)
        return loss._replace(total=loss.total * torch.nan)
