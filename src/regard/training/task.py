"""Task: what the Trainer trains. A task has a model, data, a loss and an evaluation."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from rich.console import RenderableType
from torch import Generator, Tensor, nn

from regard.errors import DataError, message

Direction = Literal["higher", "lower"]
"""Whether higher or lower values of a metric are better."""


class Stopped(Exception):
    """Raised by Task.evaluate() if a stop, such as Ctrl-C, was requested during the evaluation."""


class Loss(NamedTuple):
    """The loss of a batch, summed over its target tokens (or over what Task.count() counts).

    total: the value to minimise, not detached.
    shown: detached values for the log, by name. "loss" is required. It must be the loss without label
        smoothing, because the perplexity is computed from it (see Task.metrics).
    state: detached tensors that the task needs for its next batch; see CarriedState.
    """

    total: Tensor
    shown: dict[str, Tensor]
    state: tuple[Tensor, ...] = ()


class Capture(NamedTuple):
    """The decision whether training steps are captured in CUDA graphs.

    chosen: whether steps are captured.
    problem: a message if the settings request CUDA graphs, but CUDA graphs cannot be used. Otherwise "".
    """

    chosen: bool
    problem: str = ""


@dataclass(frozen=True)
class Speed:
    """What a task knows about its batches and its loss that makes training faster.

    shapes: maximum number of CUDA graphs. With torch.compile, it is also the maximum number of different
        batch shapes: more shapes are an error.
    uncapturable: a message that says why the loss cannot be captured in a CUDA graph. "" if it can be
        captured.
    ahead: whether a thread may call batches() ahead, while the model is trained on a GPU. This is possible if
        batches() uses no global random number generator, and nothing that loss() or evaluate() changes.
    capture: the decision whether steps are captured in CUDA graphs. A task that pads its batches for CUDA
        graphs sets it. If it is None, the trainer decides.
    """

    shapes: int = 8
    uncapturable: str = ""
    ahead: bool = False
    capture: Capture | None = None

    @property
    def captures(self) -> bool:
        """Whether the task has decided that steps are captured in CUDA graphs."""
        return self.capture is not None and self.capture.chosen


class CarriedState:
    """What a task carries from one batch to the next besides the weights, such as a recurrent state.

    This class carries nothing. loss() itself must not store tensors: in a CUDA graph, the next batch
    overwrites them. It returns them as Loss.state instead.
    """

    def keep(self, batch: Any, state: tuple[Tensor, ...]) -> None:
        """Store Loss.state for the next batch. Called after each batch."""
        if state:
            raise TypeError("loss() returned a state, but the task has no attribute `state` that keeps it")

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that the next batch needs, by name. They are saved in each checkpoint.

        Only the tensors of the first process are saved. So a task with such tensors must raise an error in
        distributed training.
        """
        return {}

    def load(self, tensors: dict[str, Tensor], place: str) -> None:
        """Restore the state when a run is resumed.

        tensors: the result of tensors() in the checkpoint. {} if the checkpoint has none.
        place: the path of the checkpoint, for error messages.
        """
        if tensors:
            names = ", ".join(sorted(tensors))
            problem = f"the checkpoint has a task state ({names}) that this task cannot load"
            hint = "resume with the task that wrote the checkpoint, or define its attribute `state`"
            raise DataError(message(place, problem, hint=hint))


@dataclass(frozen=True)
class Evaluation:
    """The result of Task.evaluate().

    scores: the scores by name, such as "loss" and "bleu".
    shown: text or pictures to print, such as sample translations.
    """

    scores: Mapping[str, float]
    shown: Sequence[RenderableType] = field(default=(), repr=False)


def epoch_generator(seed: int, epoch: int) -> Generator:
    """Return a random number generator for the order of the examples of an epoch.

    Its numbers depend only on the seed of the run and on the epoch, so that a resumed run gets the same
    batches.

    >>> import torch
    >>> order = torch.randperm(5, generator=epoch_generator(seed=1, epoch=0))
    >>> torch.equal(order, torch.randperm(5, generator=epoch_generator(1, 0)))
    True
    """
    digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=6).digest()
    return Generator().manual_seed(int.from_bytes(digest))


class Task(ABC):
    """Base class of tasks. The Trainer needs a model, batches, a loss and an evaluation from a task.

    To train a model on other data or with another loss, write a subclass.
    """

    model: nn.Module
    metrics: Mapping[str, Direction] = MappingProxyType({"loss": "lower"})
    """The scores that evaluate() returns, and whether higher or lower is better. With the metric
    "perplexity", the loss is a cross-entropy per token, and the log shows the perplexity, exp(loss)."""
    best: str = "loss"
    """The metric that selects the best checkpoint, if the setting training.best is not set."""
    counted: str = "examples"
    """What count() counts, for the log and `regard show`, such as "target tokens"."""
    speed: Speed = Speed()
    """What makes training faster. Most tasks need not set it."""
    state: CarriedState = CarriedState()
    """What is carried from one batch to the next besides the weights. Most tasks carry nothing."""

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch for this process, starting with the batch of index `start`."""

    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches that batches() yields in an epoch, the same for every process.

        By default, the batches are counted. Override this method if it takes long to make them.
        """
        return sum(1 for _ in self.batches(epoch))

    @abstractmethod
    def count(self, batch: Any) -> int:
        """Return the number by which the summed loss of a batch is divided, e.g. the number of its tokens."""

    @abstractmethod
    def loss(self, batch: Any) -> Loss:
        """Compute the loss of a batch that prepare() returned. This calls the model once."""

    @abstractmethod
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        """Evaluate the current model, e.g. on the validation set, and return the scores.

        stopping: a function that returns whether a stop was requested. Call it from time to time, and raise
            Stopped if it returns True.
        """

    def close(self) -> None:  # noqa: B027 - most tasks have nothing to end
        """End the threads and processes that prepare batches. The next call of batches() starts them again.

        The trainer calls this method at the end of the training. The default does nothing.
        """

    def prepare(self, batch: Any, device: Any) -> Any:
        """Move a batch to the device, in the form that loss() expects."""
        return batch.to(device)
