"""Trainer: the training loop. It depends on a task, settings and a run folder, not on models or data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from regard.errors import DataError, UnknownName, message
from regard.files.folder_lock import FolderLock, FolderMoved
from regard.training.budget import (
    TOLERANCE,
    WallClock,
    budget_warning,
    count,
    evaluation_interval,
    pace_is_known,
    total_steps,
)
from regard.training.checkpoints.checkpoints import STATE, Checkpoint, Checkpoints
from regard.training.cuda_graphs import capture_chosen
from regard.training.distributed import Processes
from regard.training.gradients import Gradients, in_half
from regard.training.interrupts import Interruption, unsaved_steps
from regard.training.logs.log import Log
from regard.training.nonfinite_steps import NonFinite, first_nonfinite, keep_batches
from regard.training.optimizer import Average, build_optimizer, load_optimizer, optimizer_tensors
from regard.training.progress import Progress, check_surroundings
from regard.training.schedule import learning_rate
from regard.training.settings import Training
from regard.training.slowdown import Slowdown, slowdown_warning
from regard.training.task import Stopped, Task

__all__ = ["Trainer"]

SAVE_SECONDS = 600.0
"""A checkpoint is written at least this often, in seconds."""


class Trainer:
    """Train a task and save checkpoints to a run folder, from the start or from the last checkpoint.

    settings: the learning rate, the number of steps and so on. device: the model is moved there. processes:
    those of distributed training. log: where progress is reported; nowhere by default. clock: returns
    seconds. lock: the lock of the run folder, checked after each step and before each save.

    A run that was killed at any moment resumes from its last checkpoint with the same bits: the order of the
    data depends on (seed, epoch), random numbers in a step on (seed, step), the learning rate on the step.
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
        self.task, self.settings, self.folder, self.seed, self.clock = task, settings, folder, seed, clock
        if task.metrics and settings.best not in task.metrics:
            raise UnknownName("metric in training.best:", settings.best, task.metrics)
        self.lock = lock
        self.device = torch.device(device)
        self.processes = processes or Processes()
        self.log = Log(None, console=Console(quiet=True)) if log is None else log
        self.log.best_by = settings.best
        self.model = task.model.to(self.device)
        self.optimizer = build_optimizer(self.model, beta=settings.beta, weight_decay=settings.weight_decay)
        self.average = Average(self.model, settings.ema) if settings.ema else None
        self.checkpoints = Checkpoints(folder, settings.keep)
        self.progress = Progress(total=total_steps(settings, task.len_epoch(0)), minutes=settings.minutes)
        self._half = in_half(settings.precision, self.device)
        captured, self._uncaptured = task.capture or capture_chosen(
            settings, task, self.device.type, self.processes.world
        )
        self._gradients = Gradients(
            task,
            seed=seed,
            device=self.device,
            processes=self.processes,
            half=self._half,
            coarse=settings.precision == "tf32",
            compiled=settings.compile,
            captured=captured,
            say=lambda text: self._event("capture", text),
        )
        self._stream = self._batches()
        self._began = self._last_save = clock()
        self._saved: tuple[Any, ...] = ()
        self._tensors_saved: int | None = None  # the step whose tensors this process has written
        self._stop, self._out_of_time, self._save_wanted, self._replan_wanted = False, 0, 0, 0
        self._budget, self._slowdown = WallClock(settings), Slowdown()

    def resume(self) -> Checkpoint | None:
        """Load the newest undamaged checkpoint and return it; None if there is none.

        Damaged checkpoints that were skipped are logged.
        """
        checkpoint = self.checkpoints.latest()
        if checkpoint is None:
            self.log.rewind(0)  # remove the log of a process that was killed before its first checkpoint
            return None
        state, place = checkpoint.state, str(checkpoint.path / STATE)
        check_surroundings(state, place)
        averaged = checkpoint.tensors("weights")
        try:
            self.model.load_state_dict(checkpoint.tensors("raw") if checkpoint.has("raw") else averaged)
        except RuntimeError as error:
            hint = "the settings of the model have changed: start a new run, or use --init-from"
            raise DataError(message(str(checkpoint.path), str(error).splitlines()[0], hint=hint)) from None
        if self.average is not None:
            self.average.load(averaged)
        load_optimizer(self.model, self.optimizer, checkpoint.tensors("optimizer"), str(checkpoint.path))
        fresh, self.progress = self.progress, Progress.read(state, place)
        self._saved = self.progress.state()
        self.progress.continue_from(fresh)
        if self.processes.first:
            self.log.restore(state["log"].get("state"), place)
            self.log.rewind(state["log"]["position"])
            for note in self.checkpoints.notes:
                self.log.event("damaged", note)
            if any(each.step == self.progress.best_step for each in self.checkpoints.all()):
                self.checkpoints.mark_best(self.progress.best_step)  # the process may have been killed before
        self._log_changes(state)
        self._stream = self._batches()
        return checkpoint

    def run(self, interruption: Interruption | None = None) -> Progress:
        """Train until the end of the run or until interrupted, and save a checkpoint.

        interruption: from interruptible(). A second signal raises: then the log says which steps are lost.
        """
        # Not "or": an interruption that was not requested yet is falsy.
        requested = Interruption() if interruption is None else interruption
        try:
            return self._run(requested)
        except (KeyboardInterrupt, SystemExit):
            self._log_unsaved()
            raise

    def _run(self, requested: Interruption) -> Progress:
        at = self.progress
        self._began = self.clock() - at.seconds
        self.log.total = at.total
        if self.settings.minutes is not None:
            self.log.time_left = lambda: max(self._budget.budget - self._seconds(), 0.0)
        if self._uncaptured:
            self._event("capture", self._uncaptured)
        if self.device.type == "cpu":
            self._event("threads", f"training on the CPU with {count(torch.get_num_threads(), 'thread')}")
        self._budget.replan_due(self._seconds())  # the parts of the budget that an earlier process used
        self._out_of_time = self.processes.share(int(self._budget.is_over(self._seconds())))
        if at.step:
            self._settle_minutes()
            if self._due() and at.evaluated != at.step and not self._stop:
                self._evaluate(requested)
        while not self._stop and not self._over():
            self._step(requested)
            self._settle_minutes()
            if self._replan_wanted and not (self._stop or self._out_of_time):
                self._replan()
            if self._due() and at.evaluated != at.step and not self._stop:
                self._evaluate(requested)
            if self._stop or self._save_due():
                self._save_if_changed()
        self.log.flush()
        if not self._stop and at.evaluated != at.step:
            self._evaluate(requested)
        if self._stop:
            at.ended = ""  # an evaluation is missing
        self._save_if_changed()
        return at

    def _log_unsaved(self) -> None:
        """Log which steps are lost when the run ends without saving a checkpoint."""
        self.log.flush()
        self._event("stopped", unsaved_steps(self.progress.step, self.checkpoints.latest_step()))

    def _over(self) -> bool:
        at, settings = self.progress, self.settings
        completed = at.total is not None and at.step >= at.total
        if settings.minutes is not None and (completed or self._out_of_time):
            at.ended = f"stopped after {count(settings.minutes, 'minute')} at step {at.step:,}"
        elif completed:
            at.ended = "completed all steps"
        elif settings.patience is not None and at.stale >= settings.patience:
            at.ended = f"{settings.best} has not improved in {at.stale} evaluations"
        return bool(at.ended)

    def _seconds(self) -> float:
        return self.clock() - self._began

    def _settle_minutes(self) -> None:
        """Turn minutes into a number of steps as soon as the pace is known; _replan() may correct it."""
        at, minutes = self.progress, self.settings.minutes
        if at.total is not None or minutes is None or self._stop:
            return
        if not self.processes.share(pace_is_known(60 * minutes, self._seconds(), at.step)):
            return
        plan = self.processes.share(self._budget.plan(self._seconds(), at.step))
        self._announce(f"{count(minutes, 'minute')}: {count(plan[0], 'step')} at the current speed", plan)

    def _replan(self) -> None:
        """Correct the number of steps if the pace has changed, so that the schedule ends with the minutes."""
        at = self.progress
        total, every = self.processes.share(self._budget.plan(self._seconds(), at.step))
        assert at.total is not None
        if abs(total - at.total) > TOLERANCE * at.total:
            self._announce(f"the speed has changed: {total:,} steps instead of {at.total:,}", (total, every))
        else:
            at.total, at.every, self.log.total = total, every, total

    def _announce(self, text: str, plan: tuple[int, int]) -> None:
        """Log the number of steps of a wall-clock budget, and save it in a checkpoint."""
        self.progress.total, self.progress.every = plan
        self.log.total, epoch = plan[0], self.task.len_epoch(0) / self.settings.accumulate
        few = budget_warning(plan[0], epoch)
        self._event("budget", f"{text}; {few}: the model will learn little" if few else text, total=plan[0])
        self.save()

    def _due(self) -> bool:
        """Whether an evaluation is due. With minutes, the interval counts from the last evaluation."""
        at = self.progress
        if at.every and at.total and self.settings.evaluate_every is None:
            return at.step - at.evaluated >= at.every and at.total - at.step >= at.every / 2
        every = at.every or evaluation_interval(self.settings, at.total)
        return bool(every and at.step and at.step % every == 0)

    def _save_due(self) -> bool:
        every = self.settings.save_every
        return bool(self._save_wanted) or (every is not None and self.progress.step % every == 0)

    def _batches(self) -> Iterator[Any]:
        """Yield the batches of one epoch after another, starting where the progress is."""
        while True:
            for batch in self.task.batches(self.progress.epoch, self.progress.batch):
                self.progress.batch += 1
                yield batch
            self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0

    def _step(self, requested: Interruption) -> None:
        """Take one step: add the gradients of its batches in all processes, then update the weights."""
        at, settings, began = self.progress, self.settings, self.clock()
        batches = [next(self._stream) for _ in range(settings.accumulate)]
        at.step += 1
        own = sum(self.task.count(batch) for batch in batches)
        # The clock of the first process decides; any process may request a stop. One all-reduce carries both.
        elapsed = self._seconds()
        replan = at.total is not None and self._budget.replan_due(elapsed)
        clocks = (self._budget.is_over(elapsed), self.clock() - self._last_save > SAVE_SECONDS, replan)
        flags = [int(bool(requested)), *(int(self.processes.first and each) for each in clocks)]
        exchanged = self.processes.sum(torch.tensor([own, *flags])).tolist()
        tokens, stopping, self._out_of_time, self._save_wanted, self._replan_wanted = exchanged
        tokens = max(tokens, 1)
        rate = learning_rate(
            at.step, rate=settings.rate, schedule=settings.schedule, warm_up=settings.warm_up, total=at.total
        )
        self.model.train()
        parts = self._gradients.add(at.step, batches, tokens)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        *sums, total, size = torch.stack([*parts.values(), norm.detach()]).tolist()
        if not math.isfinite(total) or not math.isfinite(size):
            self._refuse(batches, tokens, size if math.isfinite(total) else total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(at.step)
        at.tokens += tokens
        # A single process need not wait for the next exchange to learn of an interrupt.
        self._stop = bool(stopping) or (self.processes.world == 1 and bool(requested))
        means = {name: value / tokens for name, value in zip(parts, sums, strict=False)}
        loss = means.pop("loss")
        self._budget.add_step(self.clock() - began)
        slower = self._slowdown.add_step(tokens, self.clock() - began)
        if self.processes.first:
            moved = self._follow_folder()
            self.log.step(at.step, loss=loss, tokens=tokens, rate=rate, norm=size, parts=means)
            if slower is not None:
                threads = torch.get_num_threads() if self.device.type == "cpu" else 1
                self._event("slowdown", slowdown_warning(*slower, threads))
            if moved is not None:
                if not self._nonfinite():
                    self._write_checkpoint()
                raise moved

    def _refuse(self, batches: list[Any], tokens: int, value: float) -> None:
        """Raise NonFinite for a step whose loss or gradient is not finite; its batches are saved first."""
        step = self.progress.step
        tensors = [self.task.tensors(batch) for batch in batches]
        coarse = self.settings.precision == "tf32"
        state = {"step": step, "seed": self.seed, "tokens": tokens, "half": self._half, "coarse": coarse}
        try:
            place = keep_batches(self.folder, self.processes.rank, tensors, self.model.state_dict(), state)
            replay = f"regard.training.nonfinite_steps.replay() computes the step again from {place.name}"
        except OSError as error:
            replay = f"the batch could not be saved for replay: {error.strerror}"
        hint = f"{replay}; a lower learning rate, a longer warm-up or precision='float32' may help"
        problem = f"the loss or its gradient is {value}; {self._last()}"
        text = message(f"step {step}", problem, expected="a finite loss", hint=hint)
        self._event("nonfinite", text.splitlines()[0], step=step)
        raise NonFinite(text)

    def _evaluate(self, requested: Interruption) -> None:
        """Save, then evaluate the model, in the first process, and save its scores.

        An error in the evaluation loses no steps; an interrupted evaluation is done again when resumed.
        """
        at, evaluation = self.progress, None
        ended, at.ended = at.ended, ""  # without this evaluation, the run has not ended
        self._save_if_changed()
        at.ended, began = ended, self.clock()
        if self.processes.first:
            self.model.eval()
            with self.average.applied() if self.average is not None else nullcontext():
                try:
                    evaluation = self.task.evaluate(requested)
                except Stopped:
                    evaluation = None
        self._budget.evaluation = self.clock() - began
        scores = self.processes.share(None if evaluation is None else dict(evaluation.scores))
        if scores is None:
            self._stop = True
            return
        if self.settings.best not in scores:
            raise UnknownName("metric in training.best:", self.settings.best, scores)
        lower = self.settings.best == "loss"
        better = at.update_best(scores[self.settings.best], lower, scores.get("loss"))
        if evaluation is not None:
            self.log.evaluation(at.step, scores, best=better, shown=evaluation.shown)
        self.save()
        if better and self.processes.first:
            self.checkpoints.mark_best(at.step)

    def save(self) -> None:
        """Write a checkpoint, in the first process; the others wait for it.

        Raises NonFinite, in every process, if a weight is NaN or infinite.
        """
        at = self.progress
        at.seconds = self._seconds()
        if self._tensors_saved != at.step:
            self._check_weights()
        if self.processes.first:
            moved = self._follow_folder()
            self._write_checkpoint()
            if moved is not None:
                raise moved
        self._saved, self._tensors_saved, self._last_save = at.state(), at.step, self.clock()
        self.processes.wait()

    def _write_checkpoint(self) -> None:
        at = self.progress
        log = {"position": self.log.position(), "state": self.log.state()}
        state = {**at.written(), "log": log, **self._surroundings()}
        if self._tensors_saved == at.step:  # they have not changed since
            with suppress(DataError):
                self.checkpoints.save_state(at.step, state)
                return
        weights = self.model.state_dict()
        tensors = {"weights": weights, "optimizer": optimizer_tensors(self.model, self.optimizer)}
        if self.average is not None:
            with self.average.applied():
                averaged = {name: value.clone() for name, value in self.model.state_dict().items()}
            tensors |= {"weights": averaged, "raw": weights}
        self.checkpoints.save(at.step, tensors, state)

    def _check_weights(self) -> None:
        """Raise NonFinite, in every process, if a weight is NaN or infinite."""
        name = self._nonfinite()
        if not int(self.processes.sum(torch.tensor([int(bool(name))]))):
            return
        step, rate = self.progress.step, self.settings.rate
        problem = f"{name or 'a weight in another process'} is NaN or infinite; this step is not saved"
        hint = f"resume with a lower learning rate (training.rate is {rate:g}), a longer warm-up "
        hint += f"(training.warm_up) or gradient clipping (training.clip is {self.settings.clip:g})"
        text = message(f"step {step}", f"{problem}; {self._last()}", expected="finite weights", hint=hint)
        self._event("nonfinite", text.splitlines()[0], step=step)
        raise NonFinite(text)

    def _nonfinite(self) -> str:
        """The name of a weight that is NaN or infinite; "" if there is none."""
        averages = {} if self.average is None else self.average.tensors()
        return first_nonfinite(dict(self.model.named_parameters())) or first_nonfinite(averages)

    def _follow_folder(self) -> FolderMoved | None:
        """Raise if the run folder was deleted; if it was moved, write to its new path, and return the error.

        The caller saves there and then raises the error, so that no step is lost.
        """
        try:
            if self.lock is not None:
                self.lock.check()
            return None
        except FolderMoved as moved:
            if moved.place is None:
                raise
            self.folder = self.checkpoints.folder = moved.place
            self.log.move(moved.place)
            return moved

    def _last(self) -> str:
        return (
            f"the last checkpoint is step {self._saved[0]}" if self._saved else "there is no checkpoint yet"
        )

    def _save_if_changed(self) -> None:
        if self._saved != self.progress.state():
            self.save()

    def _surroundings(self) -> dict[str, Any]:
        """Everything that the bits of a run depend on besides its settings and its data."""
        return {
            "threads": torch.get_num_threads(),
            "processes": self.processes.world,
            "device": self.device.type,
            "torch": torch.__version__,
            "batches": self.task.len_epoch(self.progress.epoch),
        }

    def _log_changes(self, state: Mapping[str, Any]) -> None:
        """Log changes of threads, devices and the like since the checkpoint: the bits may differ."""
        at = self.progress
        for name, now in self._surroundings().items():
            before = state.get(name, now)
            if before == now:
                continue
            if name == "batches":  # continue at the same fraction of the epoch
                at.batch = min(at.batch * now // max(before, 1), now)
                name = "batches per epoch"
            text = f"{name}: {before} before, {now} now; training continues, but not with the same bits"
            self._event("changed", text)

    def _event(self, kind: str, text: str, **fields: Any) -> None:
        if self.processes.first:
            self.log.event(kind, text, **fields)
