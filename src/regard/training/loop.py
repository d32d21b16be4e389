"""Trainer: the training loop for any Task. It does not depend on a specific model or data format."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.errors import UnknownName
from regard.fast.captured.graphs import Uncaptured, capture_chosen
from regard.fast.captured.steps import CapturedSteps, DeviceUpdate
from regard.files.folder_lock import FolderLock
from regard.training.batch_stream import BatchStream, Position
from regard.training.budget import WallClock, budget_warning, count, end_reason, evaluation_due, total_steps
from regard.training.checkpoints.checkpoint_saver import CheckpointSaver
from regard.training.checkpoints.checkpoints import Checkpoint, Checkpoints
from regard.training.distributed import Processes
from regard.training.gradients import Gradients, chosen_precision
from regard.training.interrupts import Interruption, unsaved_steps
from regard.training.logs.log import Log
from regard.training.nonfinite_steps import NonFinite, step_error, weight_error
from regard.training.optimizer import Average, build_optimizer
from regard.training.progress import Progress, changes, surroundings
from regard.training.schedule import scheduled_rate
from regard.training.settings import Training
from regard.training.slowdown import Slowdown, slowdown_warning
from regard.training.step_results import LATE, StepDone, StepLate, StepRequest, UnreadSteps
from regard.training.task import Stopped, Task

__all__ = ["Trainer"]


FIRST_SAVE_SECONDS, SAVE_SECONDS = 60.0, 600.0
"""A checkpoint is written if the last checkpoint is older than SAVE_SECONDS.

The first checkpoint is written after FIRST_SAVE_SECONDS, so that a run that is killed early can be resumed.
"""


class Trainer:
    """Train the model of a task, and save checkpoints to a run folder.

    Training starts anew, or continues from a checkpoint after resume().

    task: the model, the batches, the loss and the evaluation.
    settings: the learning rate, the number of steps and so on.
    folder: the run folder.
    seed: random seed of the random numbers in training steps, such as dropout.
    device: the model is moved to this device.
    processes: the processes of distributed training. Default: this process only.
    log: prints and records losses, scores and events. Default: nothing is printed or recorded.
    clock: a function that returns the time in seconds.
    lock: the lock of the run folder. It is checked after each step and before each save, to detect whether
        the folder was moved or deleted.

    A run can be killed at any moment, and resumed from its last checkpoint. Its weights are then exactly the
    same as without the interruption. For this, the order of the data depends only on the seed and the epoch,
    the random numbers in a step depend only on the seed and the step, and the learning rate depends only on
    the step.
    """

    def __init__(
        self,
        task: Task,
        settings: Training,
        folder: Path,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        processes: Processes | None = None,
        log: Log | None = None,
        clock: Callable[[], float] = time.monotonic,
        lock: FolderLock | None = None,
    ):
        self.task, self.settings, self.seed, self.clock = task, settings, seed, clock
        self.best = settings.best or task.best
        if self.best not in task.metrics:
            raise UnknownName("metric in training.best:", self.best, task.metrics)
        self.lock = lock
        self.device = torch.device(device)
        self.processes = processes or Processes()
        self.log = Log(None, console=Console(quiet=True)) if log is None else log
        self.log.display.best_by, self.log.counted = self.best, task.counted
        self.log.has_perplexity = "perplexity" in task.metrics
        self.model = task.model.to(self.device)
        self.optimizer = build_optimizer(
            self.model,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay,
            name=settings.optimizer,
            momentum=settings.momentum,
        )
        self.average = Average(self.model, settings.ema) if settings.ema else None
        self.checkpoints = Checkpoints(folder, settings.keep)
        self._saver = CheckpointSaver(self.checkpoints, task, self.optimizer, self.average, self.log)
        self.progress = Progress(total=total_steps(settings, task.len_epoch(0)), minutes=settings.minutes)
        precision = chosen_precision(settings.precision, self.device, self.model)
        self._half, self._coarse = precision == "bfloat16", precision == "tf32"
        captured, self._uncaptured = task.speed.capture or capture_chosen(
            settings, task.speed.uncapturable, self.device.type, self.processes.world
        )
        self.gradients = Gradients(
            task,
            seed=seed,
            device=self.device,
            processes=self.processes,
            half=self._half,
            coarse=self._coarse,
            compiled=settings.compile,
            captured=captured,
            say=lambda text: self._event("capture", text),
        )
        self._stream = BatchStream(task, Position(0, 0))
        self._began = self._last_save = clock()
        self._save_after = FIRST_SAVE_SECONDS
        self._stop, self._out_of_time, self._save_wanted, self._replan_wanted = False, 0, 0, 0
        self._budget, self._slowdown, self._unread = WallClock(settings), Slowdown(), UnreadSteps(clock)
        self._captured: CapturedSteps | None = None
        if captured:
            limit = settings.max_grad_norm or math.inf
            update = DeviceUpdate(self.optimizer, self.average, self.device, limit)
            self._captured = CapturedSteps(self.gradients, update, task.speed.shapes)

    def resume(self, checkpoint: Checkpoint | None = None) -> Checkpoint | None:
        """Load the newest undamaged checkpoint and return it. Return None if the run has no checkpoint.

        checkpoint: load this checkpoint instead of the newest one.

        Damaged checkpoints that were skipped are logged. Changes since the checkpoint was saved are logged
        too: the number of threads, processes or batches, the device, and the torch version.
        """
        checkpoint = checkpoint or self.checkpoints.latest()
        if checkpoint is None:
            self.log.rewind(0)  # an earlier process may have logged steps, but saved no checkpoint
            return None
        self._save_after = SAVE_SECONDS
        state = checkpoint.state
        fresh, self.progress = self.progress, self._saver.load(checkpoint, state)
        self.progress.continue_from(fresh)
        if self.processes.first:
            self._saver.restore_log(checkpoint, state, self.progress.best_step)
        now = self._surroundings()
        self.progress.rescale_epoch(state["batches"], now["batches"])
        for text in changes(state, now):
            self._event("changed", text)
        self._stream = BatchStream(self.task, Position(self.progress.epoch, self.progress.batch))
        return checkpoint

    def run(self, interruption: Interruption | None = None) -> Progress:
        """Train until the run ends or a stop is requested, save a checkpoint, and return the progress.

        interruption: the flag from interruptible(). The first signal (Ctrl-C, SIGTERM or SIGHUP) requests a
            stop. The second signal raises KeyboardInterrupt or SystemExit. Then no checkpoint is saved, and
            the log says which steps are lost.
        """
        # Do not write "interruption or Interruption()": an interruption is false until a stop is requested.
        requested = Interruption() if interruption is None else interruption
        self._stream.start(self.device)
        try:
            self._train(requested)
        except (KeyboardInterrupt, SystemExit):
            self.log_unsaved()
            raise
        finally:
            self._stream.close()
            self.task.close()
        return self.progress

    def _train(self, requested: Interruption) -> None:
        """Train until the run ends or a stop is requested, and save a checkpoint.

        requested: a flag that becomes true when a stop is requested.
        """
        at = self.progress
        self._began = self.clock() - at.seconds
        self.log.total = at.total
        if self.settings.minutes is not None:
            self.log.time_left = lambda: max(self._budget.budget - self._seconds(), 0.0)
        if self._uncaptured:
            self._event("capture", self._uncaptured)
        if self.device.type == "cpu":
            self._event("threads", f"training on the CPU with {count(torch.get_num_threads(), 'thread')}")
        self._budget.replan_due(self._seconds())  # a resumed run replans at later times only
        self._out_of_time = self.processes.share(int(self._budget.is_over(self._seconds())))
        if at.step:
            self._settle_minutes()
            if evaluation_due(self.settings, at) and not self._stop:
                self._evaluate(requested)
        while not self._stop and not self._over():
            self._step(requested)
            self._settle_minutes()
            if self._replan_wanted and not (self._stop or self._out_of_time):
                self._replan()
            if evaluation_due(self.settings, at) and not self._stop:
                self._evaluate(requested)
            if self._stop or self._save_due():
                self._save_if_changed()
        self._read_steps()
        self.log.flush()
        if not self._stop and at.evaluated != at.step:
            self._evaluate(requested)
        if self._stop:
            at.ended = ""  # the run has not ended: its last evaluation is still missing
        self._save_if_changed()

    def take_step(self) -> None:
        """Train for one step, without an evaluation or a checkpoint, for StepTimer."""
        self._step(Interruption())
        self._read_steps()

    def _taken(self, request: StepRequest) -> StepLate | dict[str, Tensor]:
        """Take a training step with a CUDA graph. Without CUDA graphs, only compute its gradients.

        In the second case, the result is the summed losses by name.
        """
        if self._captured is not None:
            try:
                return self._captured.take(request)
            except Uncaptured as error:
                self._captured = None
                self.gradients.stop_capturing(error)
                self._read_steps()
        return self.gradients.add(request.step, request.batches, request.tokens)

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
            done = self._update(result, rate)
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
                self._raise(step_error(taken.step, bad, self._saver.last()))
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

    def _update(self, parts: Mapping[str, Tensor], rate: float) -> StepDone:
        """Clip the gradients and update the weights. Raise NonFinite if the loss or a gradient is not finite.

        parts: the summed losses by name. The last loss is the one that is minimised.
        """
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm or math.inf)
        *sums, total, size = torch.stack([*parts.values(), norm.detach()]).tolist()
        if not math.isfinite(total) or not math.isfinite(size):
            bad = size if math.isfinite(total) else total
            self._raise(step_error(self.progress.step, bad, self._saver.last()))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepDone(dict(zip(parts, sums, strict=False)), size)

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

    def log_unsaved(self) -> None:
        """Log which steps are lost, because the run ends now without saving a checkpoint."""
        self.log.flush()
        self._event("stopped", unsaved_steps(self.progress.step, self.checkpoints.pointed_step("latest")))

    def _over(self) -> bool:
        self.progress.ended = end_reason(self.settings, self.progress, bool(self._out_of_time), self.best)
        return bool(self.progress.ended)

    def _settle_minutes(self) -> None:
        """Convert the length of the run in minutes to a number of steps, when enough steps were timed."""
        if self.progress.total is None and self.settings.minutes is not None and not self._stop:
            self._read_steps()
            self._announce(self._budget.settle(self.progress, self._seconds(), self.processes))

    def _replan(self) -> None:
        """Correct the number of steps if the duration of a step has changed, so that the run ends in time."""
        self._read_steps()
        self._announce(self._budget.correct(self.progress, self._seconds(), self.processes))

    def _announce(self, text: str) -> None:
        """Log that the number of steps of the run has changed, and save a checkpoint with the new number.

        text: what has changed, such as "the speed has changed: 900 steps instead of 1,000". If it is "",
            nothing is logged or saved.
        """
        total = self.log.total = self.progress.total
        if text and total is not None:
            few = budget_warning(total, self.task.len_epoch(0) / self.settings.accumulation_steps)
            self._event("budget", f"{text}; {few}: the model will learn little" if few else text, total=total)
            self.save()

    def _save_due(self) -> bool:
        every = self.settings.save_every
        return bool(self._save_wanted) or (every is not None and self.progress.step % every == 0)

    def _evaluate(self, requested: Interruption) -> None:
        """Save a checkpoint, evaluate the model in the first process, and save the scores.

        The checkpoint is saved first, so no steps are lost if the evaluation fails. If a stop is requested
        during the evaluation, there are no scores, and the resumed run repeats the evaluation.

        requested: a flag that becomes true when a stop is requested.
        """
        at, evaluation = self.progress, None
        ended, at.ended = at.ended, ""  # in this checkpoint, the run has not ended: the evaluation is missing
        self._save_if_changed()
        at.ended, began = ended, self.clock()
        if self.processes.first:
            self.model.eval()
            averaged = nullcontext() if self.average is None else self.average.applied()
            with averaged, self._stream.paused():
                try:
                    evaluation = self.task.evaluate(requested)
                except Stopped:
                    evaluation = None
        self._budget.evaluation = self.clock() - began
        scores = self.processes.share(None if evaluation is None else dict(evaluation.scores))
        if scores is None:
            self._stop = True
            return
        if self.best not in scores:
            raise UnknownName("metric in training.best:", self.best, scores)
        lower = self.task.metrics[self.best] == "lower"
        better = at.update_best(scores[self.best], lower, scores.get("loss"))
        if evaluation is not None:
            self.log.evaluation(at.step, scores, best=better, shown=evaluation.shown)
        self.save()
        if better and self.processes.first:
            self.checkpoints.mark_best(at.step)

    def save(self) -> None:
        """Write a checkpoint in the first process. The other processes wait until it is written.

        If a weight is NaN or infinite in any process, every process raises NonFinite, and nothing is written.
        """
        self._read_steps()
        at = self.progress
        at.seconds = self._seconds()
        if not self._saver.has_tensors(at.step):
            self._check_weights()
        if self.processes.first:
            moved = self._saver.follow_folder(self.lock)
            self._saver.write(at, self._surroundings())
            if moved is not None:
                raise moved
        self._saver.mark_saved(at)
        self._last_save, self._save_after = self.clock(), SAVE_SECONDS
        self.processes.wait()

    def _check_weights(self) -> None:
        """Raise NonFinite in every process if a weight is NaN or infinite in any process."""
        name = self._saver.nonfinite()
        if int(self.processes.sum(torch.tensor([int(bool(name))]))):
            self._raise(weight_error(self.progress.step, name, self.settings, self._saver.last()))

    def _save_if_changed(self) -> None:
        if not self._saver.is_saved(self.progress):
            self.save()
