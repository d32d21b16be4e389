"""Task: what the Trainer trains. A task has a model, data, a loss and an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from rich.console import RenderableType
from torch import Tensor, nn

from regard.data.batch import BatchRows
from regard.errors import DataError, message

__all__ = ["Capture", "Direction", "Evaluation", "Loss", "Stopped", "Task"]


Direction = Literal["higher", "lower"]
"""Whether higher or lower values of a metric are better."""


class Stopped(Exception):
    """Raised by Task.evaluate() if a stop, such as Ctrl-C, was requested during the evaluation."""


class Loss(NamedTuple):
    """The loss of a batch, summed over its target tokens (or over what Task.count() counts).

    total: the value to minimise, not detached.
    shown: detached values for the log, by name. "loss" is required. It must be the loss without label
        smoothing, because the perplexity is computed from it (see Task.has_perplexity).
    state: detached tensors that the task needs for its next batch; see Task.keep_state().
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
class Evaluation:
    """The result of Task.evaluate().

    scores: the scores by name, such as "loss" and "bleu".
    shown: text or pictures to print, such as sample translations.
    """

    scores: Mapping[str, float]
    shown: Sequence[RenderableType] = field(default=(), repr=False)


class Task(ABC):
    """Base class of tasks. The Trainer needs a model, batches, a loss and an evaluation from a task.

    To train a model on other data or with another loss, write a subclass.
    """

    model: nn.Module
    shapes: int = 8
    """Maximum number of CUDA graphs. With torch.compile, it is also the maximum number of different batch
    shapes: more shapes are an error.
    """
    metrics: Mapping[str, Direction] = MappingProxyType({"loss": "lower"})
    """The scores that evaluate() returns, and whether higher or lower is better."""
    counted: str = "examples"
    """What count() counts, for the log and `regard show`, such as "target tokens"."""
    has_perplexity: bool = False
    """Whether the loss is a cross-entropy per token. If so, the log shows the perplexity, exp(loss)."""
    best: str = "loss"
    """The metric that selects the best checkpoint, if the setting training.best is not set."""
    uncapturable: str = ""
    """A message that says why the loss cannot be captured in a CUDA graph. "" if it can be captured."""
    ahead: bool = False
    """Whether a thread may call batches() ahead, while the model is trained on a GPU. This is possible if
    batches() uses no global random number generator, and nothing that loss() or evaluate() changes.
    """
    capture: Capture | None = None
    """The decision whether steps are captured in CUDA graphs. A task that pads its batches for CUDA graphs
    sets this attribute. If it is None, the trainer decides.
    """

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch for this process, starting with the batch of index `start`."""

    @abstractmethod
    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches that batches() yields in an epoch, the same for every process."""

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

    def tensors(self, batch: Any) -> dict[str, Tensor]:
        """Return a batch as named tensors. They are saved if the loss of the batch is NaN or infinite."""
        return batch.named_tensors() if isinstance(batch, BatchRows) else dict(vars(batch))

    @abstractmethod
    def restored(self, tensors: dict[str, Tensor]) -> Any:
        """Rebuild a batch from the result of tensors(), to compute its loss again with replay()."""

    def close(self) -> None:  # noqa: B027 - most tasks have nothing to end
        """End the threads and processes that prepare batches. The next call of batches() starts them again.

        The trainer calls this method at the end of the training. The default does nothing.
        """

    def prepare(self, batch: Any, device: Any) -> Any:
        """Move a batch to the device, in the form that loss() expects."""
        return batch.to(device)

    def keep_state(self, batch: Any, state: tuple[Tensor, ...]) -> None:
        """Store Loss.state, such as a recurrent state, for the next batch. Called after each batch.

        loss() itself must not store tensors: in a CUDA graph, the next batch overwrites them.
        """
        if state:
            raise TypeError(f"loss() returned a state, but {type(self).__name__} has no keep_state()")

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that the next batch needs besides the weights, by name: e.g. a recurrent state.

        They are saved in each checkpoint. Only the tensors of the first process are saved. So a task with
        such tensors must raise an error in distributed training.
        """
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor], place: str) -> None:
        """Restore the state of the task, such as a recurrent state, when a run is resumed.

        tensors: the result of state_tensors() in the checkpoint. {} if the checkpoint has none.
        place: the path of the checkpoint, for error messages.
        """
        if tensors:
            names = ", ".join(sorted(tensors))
            problem = f"the checkpoint has a task state ({names}) that {type(self).__name__} cannot load"
            hint = "resume with the task that wrote the checkpoint, or define load_state_tensors()"
            raise DataError(message(place, problem, hint=hint))
