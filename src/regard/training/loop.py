"""Trainer: the training loop for any Task. It does not depend on a specific model or data format.

A BatchStream reads the batches of all epochs in order, or prepares them ahead in a thread. At the end, the
speed of training steps on this machine is measured, and the fastest number of threads is found.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Full, Queue
from statistics import median
from typing import Any, NamedTuple, NoReturn

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.data.batch import map_tensors, pack, tensors_in
from regard.errors import DataError, UnknownName, message
from regard.fast.captured.graphs import Uncaptured, capture_chosen
from regard.fast.captured.steps import CapturedSteps, DeviceUpdate
from regard.files.folder_lock import FolderLock, FolderMoved
from regard.training.checkpoints.checkpoints import STATE, Checkpoint, Checkpoints
from regard.training.distributed import Processes
from regard.training.gradients import (
    Average,
    Gradients,
    build_optimizer,
    coarse_products,
    load_optimizer,
    optimizer_tensors,
    scheduled_rate,
)
from regard.training.interrupts import Interruption
from regard.training.logs.log import Log
from regard.training.precision import Precision, chosen_precision
from regard.training.progress import (
    LATE,
    NonFinite,
    Progress,
    Slowdown,
    StepDone,
    StepLate,
    StepRequest,
    UnreadSteps,
    WallClock,
    budget_warning,
    check_surroundings,
    count,
    evaluation_due,
    first_nonfinite,
    total_steps,
)
from regard.training.settings import Training
from regard.training.task import Stopped, Task

AHEAD = {"cuda": 64}
"""Number of batches that a thread prepares ahead, for each device type. The default is 0, because on a CPU
the thread would take time from the training steps. With few batches ahead, a GPU would wait at the end of
each epoch, when the pairs of the next epoch are sorted into batches."""

WAIT = 0.1
"""Seconds after which the thread checks again whether the stream was closed."""


class Position(NamedTuple):
    """A position in the data: the index of an epoch, and the index of the next batch in this epoch."""

    epoch: int
    batch: int


class BatchStream:
    """Yield the batches of an epoch from a batch on, then of all later epochs.

    task: the task. The batches come from task.batches().
    position: the position of the first batch.

    position is always the position after the batches that next() has returned. Batches that a thread has
    prepared ahead do not count. So a checkpoint can save this position.

    After start(), a thread prepares batches ahead. An error in task.batches() is raised by next(), at the
    batch that has the error.
    """

    def __init__(self, task: Task, position: Position):
        self.task, self.position = task, position
        self._source: Iterator[tuple[Any, Position]] | None = None
        self._queue: Queue[tuple[Any, Position] | Exception] = Queue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._pinning = threading.Lock()
        self._ahead, self._device = 0, torch.device("cpu")

    def start(self, device: torch.device) -> None:
        """From now on, prepare batches in a thread, if Speed.ahead is True and the device type is in AHEAD.

        device: the device that batches are used on. For a GPU, the tensors are copied to pinned memory, so
            that the host does not wait when it copies them to the GPU.
        """
        self.close()
        self._ahead, self._device = AHEAD.get(device.type, 0) if self.task.speed.ahead else 0, device

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Any:
        if not self._ahead:
            if self._source is None:
                self._source = self._batches(self.position)
            batch, self.position = next(self._source)
            return batch
        if self._thread is None:
            self._queue = Queue(self._ahead)
            self._closed = threading.Event()
            arguments = self._batches(self.position), self._queue, self._closed, self._device, self._pinning
            self._thread = threading.Thread(target=_fill, args=arguments, daemon=True, name="batches")
            self._thread.start()
        received = self._queue.get()
        if isinstance(received, Exception):
            self.close()
            raise received
        batch, self.position = received
        return batch

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the `with` block, the thread does not allocate pinned memory.

        This would be an error while another part of the program captures a CUDA graph, as decoding does.
        """
        with self._pinning:
            yield

    def close(self) -> None:
        """End the thread. The batches that it has prepared ahead are dropped; next() computes them again."""
        self._closed.set()
        if self._thread is not None:
            while self._thread.is_alive():
                try:
                    self._queue.get_nowait()
                except Empty:
                    self._thread.join(WAIT)
            self._thread = None
        self._source, self._ahead = None, 0

    def _batches(self, position: Position) -> Iterator[tuple[Any, Position]]:
        """Yield each batch with the position after it."""
        epoch, number = position
        while True:
            for batch in self.task.batches(epoch, number):
                number += 1
                yield batch, Position(epoch, number)
            epoch, number = epoch + 1, 0


def _fill(
    source: Iterator[tuple[Any, Position]],
    queue: Queue[tuple[Any, Position] | Exception],
    closed: threading.Event,
    device: torch.device,
    pinning: threading.Lock,
) -> None:
    """Put batches into a queue until `closed` is set. An error is put into the queue, too."""
    pins = device.type == "cuda"
    if pins and device.index is not None:
        torch.cuda.set_device(device)
    while not closed.is_set():
        item: tuple[Any, Position] | Exception
        try:
            batch, position = next(source)
            with pinning:
                item = (pinned(batch) if pins else batch), position
        except Exception as error:  # raised again by BatchStream.__next__()
            item = error
        while not closed.is_set():
            try:
                queue.put(item, timeout=WAIT)
                break
            except Full:
                continue
        if isinstance(item, Exception):
            return


def pinned(batch: Any) -> Any:
    """Return a copy of a batch with its CPU tensors in pinned memory, as parts of one buffer.

    A batch is a tensor, or a tuple or dataclass of batches. Values of other types are not changed.
    """
    tensors = [each for each in tensors_in(batch) if each.device.type == "cpu"]
    parts = iter(pack(tensors, pin_memory=True))
    return map_tensors(lambda each: next(parts) if each.device.type == "cpu" else each, batch)


TASK = "task"
"""The name of the tensor file for the state of a task."""

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
        self._saved: tuple[Any, ...] = ()  # Progress.state() of the last checkpoint
        self._tensors_step: int | None = None  # the last step whose tensors this process has saved
        self.progress = Progress(total=total_steps(settings, task.len_epoch(0)), minutes=settings.minutes)
        self.precision = chosen_precision(settings.precision, self.device, self.model)
        captured, self._uncaptured = task.speed.capture or capture_chosen(
            settings, task.speed.uncapturable, self.device.type, self.processes.world
        )
        self.gradients = Gradients(
            task,
            seed=seed,
            device=self.device,
            processes=self.processes,
            precision=self.precision.name,
            compiled=settings.compile,
            captured=captured,
            say=lambda text: self._event("capture", text),
        )
        self._stream = BatchStream(task, Position(0, 0))
        self._began = self._last_save = clock()
        self._save_after = FIRST_SAVE_SECONDS
        self._stop, self._out_of_time, self._save_wanted, self._replan_wanted = False, 0, 0, 0
        self._budget, self._unread = WallClock(settings), UnreadSteps(clock)
        self._slowdown = Slowdown(task.counted)
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
        state, place = checkpoint.state, str(checkpoint.path / STATE)
        check_surroundings(state, place)
        self._load_tensors(checkpoint)
        fresh, self.progress = self.progress, Progress.read(state, place)
        self._saved = self.progress.state()
        self.progress.ended = ""
        if fresh.minutes is None or fresh.minutes != self.progress.minutes:  # training may be longer now
            self.progress.total, self.progress.minutes, self.progress.every = fresh.total, fresh.minutes, None
        if self.processes.first:
            self.log.restore(state["log"].get("state"), place)
            self.log.rewind(state["log"]["position"])
            for note in self.checkpoints.notes:
                self.log.event("damaged", note)
            best = (
                self.progress.best_step
            )  # the process may have been killed before it marked this checkpoint
            if any(each.step == best for each in self.checkpoints.all()):
                self.checkpoints.mark_best(best)
        self._keep_precision(state)
        now = self._surroundings()
        batches = state["batches"]
        if batches != now["batches"]:  # continue at the same fraction of the epoch
            batch = self.progress.batch * now["batches"] // max(batches, 1)
            self.progress.batch = min(batch, now["batches"])
        for name, value in now.items():
            if state.get(name, value) != value:
                name_shown = "batches per epoch" if name == "batches" else name
                text = f"{name_shown}: {state[name]} before, {value} now"
                self._event("changed", f"{text}; the weights will differ from those of an uninterrupted run")
        self._stream = BatchStream(self.task, Position(self.progress.epoch, self.progress.batch))
        return checkpoint

    def _keep_precision(self, state: Mapping[str, Any]) -> None:
        """Continue in the precision in which the run was started, unless it is set, or the device is another.

        Runs before the state had a precision were in float32 on a CPU.
        """
        before = state.get("precision", "float32")
        device = self.device.type
        if self.settings.precision != "auto" or device != "cpu" or state.get("device", device) != device:
            return
        if before in ("float32", "bfloat16") and before != self.precision.name:
            reason = f"here, it would be {self.precision.name}, because {self.precision.reason}"
            self._event("precision", f"the run continues in {before}; {reason}")
            self.precision = Precision(before, "the run was started in it")
            self.gradients.use(before)

    def _load_tensors(self, checkpoint: Checkpoint) -> None:
        """Load weights, moving average, optimizer and task state from a checkpoint."""
        averaged = checkpoint.tensors("weights")
        try:
            self.model.load_state_dict(checkpoint.tensors("raw") if checkpoint.has("raw") else averaged)
        except RuntimeError as error:
            hint = "restore the model settings with which the run was started, or start a new run"
            raise DataError(message(str(checkpoint.path), str(error).splitlines()[0], hint=hint)) from None
        if self.average is not None:
            self.average.load(averaged)
        load_optimizer(self.model, self.optimizer, checkpoint.tensors("optimizer"), str(checkpoint.path))
        kept = checkpoint.tensors(TASK) if checkpoint.has(TASK) else {}
        self.task.state.load(kept, str(checkpoint.path))

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
            self.log.flush()
            saved, text = self.checkpoints.pointed_step("latest"), "nothing is saved"
            if saved is not None and saved < self.progress.step:
                text = f"the steps since step {saved:,} are not saved"
            elif saved is not None:
                text = f"step {saved:,} was already saved"
            self._event("stopped", f"stopped without saving a checkpoint: {text}")
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
        self._out_of_time = self.processes.share(int(self._seconds() > self._budget.budget))
        if at.step:
            self._plan_steps()
            if evaluation_due(self.settings, at) and not self._stop:
                self._evaluate(requested)
        while not self._stop and not self._over():
            self._step(requested)
            self._plan_steps()
            if evaluation_due(self.settings, at) and not self._stop:
                self._evaluate(requested)
            every = self.settings.save_every
            if self._stop or self._save_wanted or (every is not None and at.step % every == 0):
                self._save_if_changed()
        self._read_steps()
        self.log.flush()
        if not self._stop and at.evaluated != at.step:
            self._evaluate(requested)
        if self._stop:
            at.ended = ""  # the run has not ended: its last evaluation is still missing
        self._save_if_changed()

    def take_step(self) -> None:
        """Train for one step, without an evaluation or a checkpoint, to measure the speed."""
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
        clocks = (elapsed > self._budget.budget, self.clock() - self._last_save > self._save_after, replan)
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
        moved = self._follow_folder() if self.processes.first else None
        if not isinstance(result, StepLate):
            self._log_step(step, done, self.clock() - began)
        self._read_steps(LATE if moved is None else 0)
        if moved is not None:
            if not self._nonfinite():
                self._write()
            raise moved

    def _read_steps(self, left: int = 0) -> None:
        """Wait for the results of steps on the device, and log them. Raise NonFinite at the first bad step.

        left: number of latest steps whose results stay unread.
        """
        for taken, done, bad, seconds in self._unread.read(left):
            if bad is not None:  # the device has skipped the update of this step and of all later steps
                self.progress.step = taken.step
                self._refuse(bad)
            self._log_step(taken, done, seconds)

    def _log_step(self, taken: StepRequest, done: StepDone, seconds: float) -> None:
        """Log a step and its duration in seconds."""
        means = {name: value / taken.tokens for name, value in done.losses.items()}
        self._budget.add_step(seconds)
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        slower = self._slowdown.add_step(taken.tokens, seconds, threads)
        step, _, tokens, rate = taken
        if self.processes.first:
            loss = means.pop("loss")
            self.log.step(step, loss=loss, tokens=tokens, rate=rate, norm=done.norm, parts=means)
        if slower:
            self._event("slowdown", slower)

    def _update(self, parts: Mapping[str, Tensor], rate: float) -> StepDone:
        """Clip the gradients and update the weights. Raise NonFinite if the loss or a gradient is not finite.

        parts: the summed losses by name. The last loss is the one that is minimised.
        """
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm or math.inf)
        *sums, total, size = torch.stack([*parts.values(), norm.detach()]).tolist()
        if not math.isfinite(total) or not math.isfinite(size):
            self._refuse(size if math.isfinite(total) else total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with coarse_products(self.gradients.products):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepDone(dict(zip(parts, sums, strict=False)), size)

    def _refuse(self, value: float) -> NoReturn:
        """Stop, because the loss or the gradient norm of this step is NaN or infinite."""
        hint = "try a lower learning rate, a longer warm-up or precision='float32'"
        self._raise(f"the loss or its gradient is {value}", "a finite loss", hint)

    def _raise(self, problem: str, expected: str, hint: str) -> NoReturn:
        """Raise NonFinite for the current step, and log the first line of the error."""
        step = self.progress.step
        last = (
            f"the last checkpoint is step {self._saved[0]}" if self._saved else "there is no checkpoint yet"
        )
        error = NonFinite(message(f"step {step}", f"{problem}; {last}", expected=expected, hint=hint))
        error.step = step
        self._event("nonfinite", str(error).splitlines()[0], step=step)
        raise error

    def _event(self, kind: str, text: str, **fields: Any) -> None:
        if self.processes.first:
            self.log.event(kind, text, **fields)

    def _seconds(self) -> float:
        return self.clock() - self._began

    def _surroundings(self) -> dict[str, Any]:
        """Return the conditions of the run that affect its random numbers or rounding errors, for state.json.

        If one of them changes when the run is resumed, the weights are no longer exactly the same as in an
        uninterrupted run.
        """
        return {
            "threads": torch.get_num_threads(),
            "processes": self.processes.world,
            "device": self.device.type,
            "precision": self.precision.name,
            "torch": torch.__version__,
            "batches": self.task.len_epoch(self.progress.epoch),
        }

    def _over(self) -> bool:
        """Set Progress.ended: why the run ends after this step. Return whether it ends."""
        at, minutes, patience = self.progress, self.settings.minutes, self.settings.patience
        completed = at.total is not None and at.step >= at.total
        at.ended = "completed all steps" if completed else ""
        if minutes is not None and (completed or self._out_of_time):
            at.ended = f"stopped after {count(minutes, 'minute')} at step {at.step:,}"
        elif not completed and patience is not None and at.stale >= patience:
            at.ended = f"{self.best} has not improved in {at.stale} evaluations"
        return bool(at.ended)

    def _plan_steps(self) -> None:
        """Convert the length of the run in minutes to a number of steps, as soon as enough steps were timed.

        The number is corrected later, so that the run ends in time. If it has changed, log this, and save a
        checkpoint with the new number.
        """
        at = self.progress
        if self.settings.minutes is None or self._stop:
            return
        if at.total is not None and (self._out_of_time or not self._replan_wanted):
            return
        self._read_steps()
        text = self._budget.plan(at, self._seconds(), self.processes)
        self.log.total = at.total
        if text and at.total is not None:
            few = budget_warning(at.total, self.task.len_epoch(0) / self.settings.accumulation_steps)
            text = f"{text}; {few}: the model will learn little" if few else text
            self._event("budget", text, total=at.total)
            self.save()

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
        if self._tensors_step != at.step:
            self._check_weights()
        if self.processes.first:
            moved = self._follow_folder()
            self._write()
            if moved is not None:
                raise moved
        self._saved, self._tensors_step = at.state(), at.step
        self._last_save, self._save_after = self.clock(), SAVE_SECONDS
        self.processes.wait()

    def _write(self) -> None:
        """Write a checkpoint. If the tensors of this step are already saved, write only state.json.

        With a moving average, the tensor file "weights" contains the averages, and the tensor file "raw" the
        weights themselves. The tensor file "task" has the state of the task, if it has one.
        """
        log = {"position": self.log.position(), "state": self.log.state()}
        step, state = self.progress.step, {**asdict(self.progress), "log": log, **self._surroundings()}
        if self._tensors_step == step:  # the tensors have not changed since they were saved
            with suppress(DataError):
                self.checkpoints.save(step, None, state)
                return
        weights = self.model.state_dict()
        tensors = {"weights": weights, "optimizer": optimizer_tensors(self.model, self.optimizer)}
        if self.average is not None:
            with self.average.applied():
                averaged = {name: value.clone() for name, value in self.model.state_dict().items()}
            tensors |= {"weights": averaged, "raw": weights}
        if kept := self.task.state.tensors():
            tensors[TASK] = kept
        self.log.tell("checkpoint", step, path=str(self.checkpoints.save(step, tensors, state).path))

    def _follow_folder(self) -> FolderMoved | None:
        """Check whether the run folder was deleted or moved since training started.

        If the folder was deleted, raise FolderMoved. If it was moved, use the new path from now on, and
        return the error. The caller first saves a checkpoint in the new path, so that no step is lost, and
        then raises the error. Return None if the folder was not moved.
        """
        try:
            if self.lock is not None:
                self.lock.check()
            return None
        except FolderMoved as moved:
            if moved.place is None:
                raise
            self.checkpoints.folder = moved.place
            self.log.move(moved.place)
            return moved

    def _nonfinite(self) -> str:
        """Return the name of a parameter that is NaN or infinite, or of such a moving average; else ""."""
        averages = {} if self.average is None else self.average.tensors()
        return first_nonfinite(dict(self.model.named_parameters())) or first_nonfinite(averages)

    def _check_weights(self) -> None:
        """Raise NonFinite in every process if a weight is NaN or infinite in any process."""
        name = self._nonfinite()
        if int(self.processes.sum(torch.tensor([int(bool(name))]))):
            problem = f"{name or 'a weight in another process'} is NaN or infinite; this step is not saved"
            rate, norm = self.settings.learning_rate, self.settings.max_grad_norm
            hint = (
                f"resume with a lower learning rate (training.learning_rate is {rate:g}), a longer warm-up "
            )
            hint += f"(training.warmup_steps) or gradient clipping (training.max_grad_norm is {norm:g})"
            self._raise(problem, "finite weights", hint)

    def _save_if_changed(self) -> None:
        if self._saved != self.progress.state():
            self.save()


SECONDS, LEAST, MOST = 0.6, 3, 50
"""Training steps are timed for SECONDS seconds, but at least LEAST and at most MOST steps."""

UNTIMED = {"cuda": 6}
"""Number of first steps that are not timed, for each device type, e.g. because they compile kernels. The
default is 1."""


def tokens_per_second(task: Task, settings: Training, device: torch.device) -> float:
    """Run training steps, and return their median speed in target tokens per second.

    The steps change the weights of the model, but write no file. The first steps are not timed.
    """
    trainer = Trainer(task, settings, Path(), device=device)
    for _ in range(UNTIMED.get(device.type, 1)):
        trainer.take_step()
    began, speeds = time.perf_counter(), list[float]()
    while len(speeds) < LEAST or (len(speeds) < MOST and time.perf_counter() - began < SECONDS):
        before, tokens = time.perf_counter(), trainer.progress.tokens
        trainer.take_step()
        tokens = trainer.progress.tokens - tokens
        speeds.append(tokens / max(time.perf_counter() - before, 1e-9))
    return median(speeds)
