"""Task: all that the trainer knows of what it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import RenderableType
from torch import Tensor, nn

__all__ = ["Evaluation", "Loss", "Stopped", "Task"]


class Stopped(Exception):
    """Somebody asked for the end while an evaluation was under way."""


class Loss(NamedTuple):
    """What a batch cost, summed over what it is counted by.

    total: what is minimised. shown: what people read, without gradients; "loss" is the one perplexity is made
    of, so it has no smoothing in it.
    """

    total: Tensor
    shown: dict[str, Tensor]


@dataclass(frozen=True)
class Evaluation:
    """How good a model is by now: scores by name, and what can be shown of it, as sample translations."""

    scores: Mapping[str, float]
    shown: Sequence[RenderableType] = field(default=(), repr=False)


class Task(ABC):
    """What is trained: a model, its batches, its loss, and how it is judged.

    The trainer asks for nothing else, so another task is trained without touching the loop.
    """

    model: nn.Module
    shapes: int = 8
    """How many shapes a loss that is compiled may see: one more is an error. So many graphs are captured."""
    small_steps: bool = False
    """Whether a loss is made of many small steps, so that to launch them takes longer than to run them."""
    metrics: tuple[str, ...] = ()
    """The names of the scores that evaluate() returns, checked before training; () if they are not known."""
    uncapturable: str = ""
    """Why a loss of this task cannot be captured in a CUDA graph, in words; "" where it can."""

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch for this process, from number `start` on."""

    @abstractmethod
    def len_epoch(self, epoch: int) -> int:
        """How many batches an epoch has, the same for every process."""

    @abstractmethod
    def count(self, batch: Any) -> int:
        """By what the loss of a batch is divided: its target tokens, say."""

    @abstractmethod
    def loss(self, batch: Any) -> Loss:
        """What a batch costs; calls the model once."""

    @abstractmethod
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        """Judge the model as it is; raises Stopped soon after `stopping` says so."""

    def tensors(self, batch: Any) -> dict[str, Tensor]:
        """A batch as named tensors, to be written down when something went wrong with it."""
        return dict(vars(batch))

    @abstractmethod
    def restored(self, tensors: dict[str, Tensor]) -> Any:
        """The batch that tensors() gave these of."""

    def prepare(self, batch: Any, device: Any) -> Any:
        """The batch as the model takes it there."""
        return batch.to(device)
