"""TrainingSteps: one training step of a Trainer, from the next batches to the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from regard.fast.captured.graphs import Uncaptured
from regard.fast.captured.steps import CapturedSteps
from regard.files.folder_lock import FolderLock
from regard.training.batch_stream import BatchStream
from regard.training.budget import WallClock
from regard.training.checkpoints.checkpoint_saver import CheckpointSaver
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.distributed import Processes
from regard.training.gradients import Gradients
from regard.training.interrupts import Interruption
from regard.training.logs.log import Log
from regard.training.nonfinite_steps import NonFinite, batch_tensors, step_error
from regard.training.optimizer import Average
from regard.training.progress import Progress, surroundings
from regard.training.schedule import scheduled_rate
from regard.training.settings import Training
from regard.training.slowdown import Slowdown, slowdown_warning
from regard.training.step_results import LATE, StepDone, StepLate, StepRequest, UnreadSteps
from regard.training.task import Task

__all__ = ["TrainingSteps"]

FIRST_SAVE_SECONDS, SAVE_SECONDS = 60.0, 600.0
"""A checkpoint is written if the last checkpoint is older than SAVE_SECONDS.

The first checkpoint is written after FIRST_SAVE_SECONDS, so that a run that is killed early can be resumed.
"""


class TrainingSteps:
    """The part of a Trainer that takes single training steps. The Trainer sets the attributes below."""

    task: Task
    settings: Training
    seed: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None
    device: torch.device
    processes: Processes
    log: Log
    clock: Callable[[], float]
    lock: FolderLock | None
    checkpoints: Checkpoints
    progress: Progress
    gradients: Gradients
    _saver: CheckpointSaver
    _stream: BatchStream
    _captured: CapturedSteps | None
    _half: bool
    _coarse: bool
    _began: float
    _last_save: float
    _save_after: float
    _stop: bool
    _out_of_time: int
    _save_wanted: int
    _replan_wanted: int
    _budget: WallClock
    _slowdown: Slowdown
    _unread: UnreadSteps

    def add_gradients(self, request: StepRequest) -> dict[str, Tensor]:
        """Add the gradients of a training step to the parameters; return its summed losses by name.

        See Gradients.add().
        """
        return self.gradients.add(request.step, request.batches, request.tokens)

    def take_step(self) -> None:
        """Train for one step, without an evaluation or a checkpoint, for StepTimer."""
        self._step(Interruption())
        self._read_steps()

    def _taken(self, request: StepRequest) -> StepLate | dict[str, Tensor]:
        """Take a training step with a CUDA graph. Without CUDA graphs, only compute its gradients.

        In the second case, the result is the summed losses by name.
        """
        try:
            return self.add_gradients(request) if self._captured is None else self._captured.take(request)
        except Uncaptured as error:
            self._captured = None
            self.gradients.stop_capturing(error)
            self._read_steps()
            return self.add_gradients(request)

    def _step(self, requested: Interruption) -> None:
        """Take one training step: read its batches, compute the gradients, update the weights, and log it.

        requested: a flag that becomes true when a stop is requested.
        """
        at, settings, began = self.progress, self.settings, self.clock()
        batches = [next(self._stream) for _ in range(settings.accumulation_steps)]
        at.epoch, at.batch = self._stream.position
        at.step += 1
        own = sum(self.task.count(batch) for batch in batches)
        # One all-reduce sums the token counts and four flags of all processes. The first flag says whether a
        # stop is requested in a process. The other flags depend on the clock of rank 0: whether the time is
        # over, whether a checkpoint is due, and whether a new plan is due.
        elapsed = self._seconds()
        replan = at.total is not None and self._budget.replan_due(elapsed)
        clocks = (self._budget.is_over(elapsed), self.clock() - self._last_save > self._save_after, replan)
        flags = [int(bool(requested)), *(int(self.processes.first and each) for each in clocks)]
        exchanged = self.processes.sum(torch.tensor([own, *flags])).tolist()
        tokens, stopping, self._out_of_time, self._save_wanted, self._replan_wanted = exchanged
        tokens = max(tokens, 1)
        rate = scheduled_rate(settings, step=at.step, epoch=at.epoch + 1, total=at.total)
        if not self.model.training:
            self.model.train()
        step = StepRequest(at.step, batches, tokens, rate)
        result = self._taken(step)
        if isinstance(result, StepLate):
            self._unread.add(step, result, began)
        else:
            done = self._update(result, batches, tokens, rate)
            if self.average is not None:
                self.average.update(at.step)
        at.tokens += tokens
        # A single process can stop at once. Several processes stop together, after the next all-reduce.
        self._stop = bool(stopping) or (self.processes.world == 1 and bool(requested))
        moved = self._saver.follow_folder(self.lock) if self.processes.first else None
        if not isinstance(result, StepLate):
            self._log_step(step, done, self.clock() - began)
        self._read_steps(LATE if moved is None else 0)
        if moved is not None:
            if not self._saver.nonfinite():
                self._saver.write(at, self._surroundings())
            raise moved

    def _read_steps(self, left: int = 0) -> None:
        """Wait for the results of steps on the device, and log them. Raise NonFinite at the first bad step.

        left: number of latest steps whose results stay unread.
        """
        for taken, done, bad, seconds in self._unread.read(left):
            if bad is not None:  # the device has skipped the update of this step and of all later steps
                self.progress.step = taken.step
                self._refuse(taken.batches, taken.tokens, bad)
            self._log_step(taken, done, seconds)

    def _log_step(self, taken: StepRequest, done: StepDone, seconds: float) -> None:
        """Log a step and its duration in seconds."""
        means = {name: value / taken.tokens for name, value in done.losses.items()}
        self._budget.add_step(seconds)
        slower = self._slowdown.add_step(taken.tokens, seconds)
        step, _, tokens, rate = taken
        if self.processes.first:
            loss = means.pop("loss")
            self.log.step(step, loss=loss, tokens=tokens, rate=rate, norm=done.norm, parts=means)
        if slower is not None:
            threads = torch.get_num_threads() if self.device.type == "cpu" else 1
            self._event("slowdown", slowdown_warning(*slower, threads, self.task.counted))

    def _update(self, parts: Mapping[str, Tensor], batches: list[Any], tokens: int, rate: float) -> StepDone:
        """Clip the gradients and update the weights. Raise NonFinite if the loss or a gradient is not finite.

        parts: the summed losses by name. The last loss is the one that is minimised.
        """
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm or math.inf)
        *sums, total, size = torch.stack([*parts.values(), norm.detach()]).tolist()
        if not math.isfinite(total) or not math.isfinite(size):
            self._refuse(batches, tokens, size if math.isfinite(total) else total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepDone(dict(zip(parts, sums, strict=False)), size)

    def _refuse(self, batches: list[Any], tokens: int, value: float) -> NoReturn:
        """Stop, because the loss or the gradient norm is NaN or infinite: save the batches, raise NonFinite.

        value: the loss or the gradient norm, whichever is NaN or infinite.
        """
        tensors = [batch_tensors(self.task, batch) for batch in batches]
        state = {"step": self.progress.step, "seed": self.seed, "tokens": tokens}
        state |= {"half": self._half, "coarse": self._coarse}
        kept = self.checkpoints.folder, self.processes.rank, tensors, self.model.state_dict(), state
        self._raise(step_error(*kept, value=value, last=self._saver.last()))

    def _raise(self, error: NonFinite) -> NoReturn:
        """Log the first line of the error with the current step, and raise the error."""
        error.step = self.progress.step
        self._event("nonfinite", str(error).splitlines()[0], step=self.progress.step)
        raise error

    def _event(self, kind: str, text: str, **fields: Any) -> None:
        if self.processes.first:
            self.log.event(kind, text, **fields)

    def _seconds(self) -> float:
        return self.clock() - self._began

    def _surroundings(self) -> dict[str, Any]:
        batches = self.task.len_epoch(self.progress.epoch)
        return surroundings(self.processes.world, self.device.type, batches)
