"""Progress: the counters of a training run, such as its step and its best score. Checkpoints save them.

Steps and their results, which a device may finish later than the host, and the number of steps of a run, from
a budget in steps, epochs or minutes.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import DataError, RegardError, message
from regard.training.distributed import Processes
from regard.training.settings import Training

LARGEST = 10**18
"""Upper limit of numbers in state.json, such as steps and tokens. A file with a larger number is damaged."""


@dataclass
class Progress:
    """The counters of a training run. To resume a run, they are needed besides weights and optimizer state.

    step: number of completed steps.
    epoch: index of the current epoch, from 0.
    batch: index of the next batch within this epoch, from 0.
    total: number of steps of the whole run. None while it is unknown.
    minutes: the length of the run in minutes, from which `total` was computed. None if the length is not set
        in minutes.
    every: the number of steps between two evaluations, if the length of the run is set in minutes.
    evaluated: step of the last evaluation.
    best, best_loss, best_step: the best score so far, and the loss and the step of this evaluation.
    stale: number of evaluations since the best evaluation.
    seconds: duration of the run so far, without the time between a stop and a resume.
    tokens: number of target tokens so far.
    ended: why the run has ended, such as "completed all steps". "" while the run has not ended.

    >>> Progress.read({"step": 3}).step
    3
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    total: int | None = None
    minutes: float | None = None
    every: int | None = None
    evaluated: int = 0
    best: float | None = None
    best_loss: float | None = None
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    tokens: int = 0
    ended: str = ""

    def state(self) -> tuple[Any, ...]:
        """Return the counters (step, evaluated, total, ended), to decide whether a new checkpoint is needed.

        A new checkpoint is needed if one of these counters has changed since the last checkpoint. `step`
        alone is not enough, because the other counters can change while `step` stays the same.
        """
        return self.step, self.evaluated, self.total, self.ended

    def update_best(self, value: float, lower_is_better: bool, loss: float | None = None) -> bool:
        """Record the score of an evaluation at the current step; return whether it is the best so far.

        value: the score that selects the best checkpoint, such as BLEU.
        loss: the loss of the same evaluation.

        If the score equals the best score, the lower loss decides. For example, BLEU is 0 until a sequence of
        four words is right, but the loss decreases earlier.

        >>> at = Progress(step=5)
        >>> [at.update_best(loss, lower_is_better=True) for loss in (2.0, 2.5)], at.stale, at.best
        ([True, False], 1, 2.0)
        """
        self.evaluated = self.step
        sign = -1 if lower_is_better else 1
        better = self.best is None or math.isnan(self.best) or sign * value > sign * self.best
        if value == self.best and loss is not None and self.best_loss is not None:
            better = loss < self.best_loss or math.isnan(self.best_loss)
        if better:
            self.best, self.best_loss, self.best_step, self.stale = value, loss, self.step, 0
        else:
            self.stale += 1
        return better

    @classmethod
    def read(cls, state: Mapping[str, Any], place: str = "state.json") -> Progress:
        """Read the progress from the content of state.json. Keys that are not fields of Progress are ignored.

        place: the path of state.json, for error messages.
        """
        values = {each.name: state[each.name] for each in fields(cls) if each.name in state}
        for each in fields(cls):
            if each.name in values and not _valid(values[each.name], str(each.type)):
                raise _damaged(place, each.name, values[each.name], str(each.type))
        return cls(**values)


def check_surroundings(state: Mapping[str, Any], place: str) -> None:
    """Raise DataError if state.json has a damaged value, such as a negative number of threads.

    This function checks the values that Progress.read() does not read: "threads", "processes", "batches", and
    the "position" of the log.

    state: the content of state.json.
    place: the path of state.json, for error messages.
    """
    for name, most in (("threads", 4096), ("processes", 10**6), ("batches", LARGEST)):
        value = state.get(name)
        if type(value) is not int or not 0 <= value <= most or (not value and name != "batches"):
            raise _damaged(place, name, value, f"an integer up to {most:,}")
    log = state.get("log")
    position = log.get("position") if isinstance(log, dict) else None
    if not _valid(position, "int"):
        raise _damaged(place, "log.position", position, "int")


def _valid(value: object, kind: str) -> bool:
    """Return whether a value from JSON has the type `kind`, e.g. "int | None", and is not too large."""
    if value is None:
        return "None" in kind
    if kind.startswith("int"):
        return type(value) is int and 0 <= value < LARGEST
    if kind.startswith("float"):
        return type(value) is float or (type(value) is int and abs(value) < LARGEST)
    return isinstance(value, str)


def _damaged(place: str, name: str, value: object, expected: str) -> DataError:
    problem = f"{name} is {repr(value)[:60]}"
    return DataError(message(place, problem, expected=expected, hint="restore this file from a copy"))


def step_seed(seed: int, step: int, place: int, rank: int) -> int:
    """Return the random seed for one batch of one training step in one process.

    seed: random seed of the run.
    step: number of the step.
    place: index of the batch within the step.
    rank: index of the process.

    Every batch has its own seed. So checkpoints do not need the state of the random number generators.
    """
    text = f"{seed} {step} {place} {rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest())


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the random number generators of the CPU and of this device.

    torch.manual_seed() would seed the generators of all device types, which takes a quarter of a millisecond.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    elif device.type == "cuda":
        torch.default_generator.manual_seed(seed)
        torch.cuda.manual_seed(seed)
    else:
        torch.manual_seed(seed)


class NonFinite(RegardError):
    """Raised if a loss, a gradient or a weight of a training step is NaN or infinite.

    step: number of the step, counted from 1.
    """

    step: int = 0


@torch.no_grad()
def first_nonfinite(tensors: Mapping[str, Tensor]) -> str:
    """Return the name of the first tensor with a NaN or an infinite value, or "" if all values are finite.

    If all values are finite, the CPU waits for the GPU only once, not once per tensor.

    >>> first_nonfinite({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, math.inf])})
    'b'
    """
    floats = {name: each for name, each in tensors.items() if each.is_floating_point() and each.numel()}
    if not floats:
        return ""
    # Use the infinity norm (largest absolute value), because a sum of squares could overflow.
    norms = torch._foreach_norm(list(floats.values()), math.inf)
    finite = torch.stack([norm.isfinite() for norm in norms])
    if bool(finite.all()):
        return ""
    return list(floats)[finite.tolist().index(False)]


class StepRequest(NamedTuple):
    """A training step to take.

    step: number of the step, from 1.
    batches: the batches of this process.
    tokens: number of target tokens of the step, in all processes.
    rate: the learning rate.
    """

    step: int
    batches: list[Any]
    tokens: int
    rate: float


class StepDone(NamedTuple):
    """The result of a training step after the update of the weights.

    losses: the summed losses by name, without the loss that is minimised.
    norm: the norm of the gradient before clipping.
    """

    losses: Mapping[str, float]
    norm: float


class StepLate(NamedTuple):
    """The result of a training step that the device may not have finished yet.

    names: the names of the losses.
    row: the losses in this order, the minimised loss, the gradient norm, and 1 if this step or an earlier one
        had a loss or gradient that is NaN or infinite, else 0. The device copies these values to the host.
    finished: an event of the device after this copy; None if the row is already complete.
    """

    names: Sequence[str]
    row: Tensor
    finished: Any = None

    @classmethod
    def of(cls, names: Sequence[str], row: Tensor) -> StepLate:
        """Start to copy a row to the host, and return it without waiting for the device."""
        if row.device.type != "cuda":
            return cls(names, row.clone())
        host = torch.empty(row.shape, dtype=row.dtype, pin_memory=True).copy_(row, non_blocking=True)
        finished = torch.cuda.Event(blocking=True)
        finished.record()
        return cls(names, host, finished)

    def wait(self) -> tuple[StepDone, float | None]:
        """Wait for the device; return the result of the step and its first value that is NaN or infinite.

        The second value is None if the weights were updated. Otherwise, it is the minimised loss or, if this
        loss is finite, the gradient norm.
        """
        if self.finished is not None:
            self.finished.synchronize()
        *sums, total, norm, failed = self.row.tolist()
        bad = (norm if math.isfinite(total) else total) if failed else None
        return StepDone(dict(zip(self.names, sums, strict=True)), norm), bad


LATE = 8
"""The host reads the results of a step on the device this number of steps later. Until then, it prepares and
launches the next steps."""


class UnreadSteps:
    """A queue of steps on the device. Their results are read in order.

    The duration of a step is the time between two reads. The host launches steps faster than the device
    executes them, so the duration of a launch would be too short. If several steps are read at once, the time
    is divided equally between them.

    clock: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._queue: deque[tuple[StepRequest, StepLate]] = deque()
        self._since = 0.0

    def add(self, step: StepRequest, late: StepLate, began: float) -> None:
        """Add a step that was launched.

        began: the time at which the step began, before its batches were read.
        """
        if not self._queue:
            self._since = began
        self._queue.append((step, late))

    def read(self, left: int = 0) -> Iterator[tuple[StepRequest, StepDone, float | None, float]]:
        """Wait for the results of all steps but the latest `left` steps, and yield them in order.

        Yields the step, its result, its first value that is NaN or infinite (see StepLate.wait()), and its
        duration in seconds.
        """
        ready = [self._queue.popleft() for _ in range(len(self._queue) - left)]
        results = [(step, *late.wait()) for step, late in ready]
        now = self._clock()
        for step, done, bad in results:
            yield step, done, bad, (now - self._since) / len(results)
        if results:
            self._since = now


EPOCHS, MIN_STEPS, MAX_STEPS = 30, 2_000, 100_000
"""The length of a run without a budget: EPOCHS epochs, but at least MIN_STEPS and at most MAX_STEPS steps."""

EVALUATIONS = 10
"""Number of evaluations in a run, if the settings do not set the interval between evaluations."""

FIRST_STEPS, FIRST_PART = 20, 0.1
"""When a budget in minutes is converted to a number of steps for the first time: after FIRST_STEPS steps, or
after the fraction FIRST_PART of the minutes, whichever comes first."""

REPLAN = tuple(part / 20 for part in range(1, 20))
"""The fractions of a budget in minutes after which the number of steps is estimated again."""

TOLERANCE = 0.2
"""A new estimate of the number of steps is logged if it differs from the last estimate by more than this
fraction."""

FEW_STEPS = 200
"""A run with fewer steps than this, or with less than a quarter of an epoch, gets a warning."""

MANY_EPOCHS = 50
"""A run with more epochs than this gets no such warning: more data help, not more steps."""

EVALUATION_PART, RESERVED = 0.1, 0.04
"""How a budget in minutes is divided. Evaluations take at most the fraction EVALUATION_PART. The fraction
RESERVED is for writing the last checkpoint. Training steps take the rest."""

RECENT = 60
"""Number of recent steps whose median duration is used as the pace of a run (seconds per step)."""


UNTIMED = 3
"""Number of first steps that are not measured, because they allocate memory and compile kernels."""

WINDOW = 10
"""Number of steps in a median. The median speed of the recent steps is compared with the first steps."""

FRACTION = 1 / 3
"""A slowdown is reported if the recent speed is below this fraction of the speed at the start."""


class Slowdown:
    """Compare the speed of recent training steps with the speed at the start, and report a slowdown once.

    The speeds are medians over WINDOW steps, so that a single slow step is not reported.

    counted: the unit of the speeds, e.g. "target tokens".

    In this example, steps are slow from index 20 on. At index 25, six of the last ten steps are slow, so the
    median is slow:

    >>> slowdown = Slowdown("target tokens")
    >>> speeds = [5540.0] * 20 + [77.0] * 10
    >>> reports = [slowdown.add_step(tokens=speed, seconds=1.0, threads=1) for speed in speeds]
    >>> print(reports[25], reports.count(""))
    training has slowed down: 77 target tokens/s, 5,540 at the start; other programs may be using this \
machine 29
    """

    def __init__(self, counted: str) -> None:
        self.counted = counted
        self._steps = 0
        self._first: float | None = None
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._reported = False

    def add_step(self, tokens: float, seconds: float, threads: int) -> str:
        """Add the number of target tokens and the duration of a training step; return a report, or "".

        threads: number of CPU threads of this process. With several, the report suggests --threads 1.
        """
        self._steps += 1
        if self._steps <= UNTIMED or self._reported:
            return ""
        self._recent.append(tokens / max(seconds, 1e-9))
        if len(self._recent) < WINDOW:
            return ""
        speed = median(self._recent)
        if self._first is None:
            self._first = speed
        if speed >= FRACTION * self._first:
            return ""
        self._reported = True
        text = f"training has slowed down: {speed:,.0f} {self.counted}/s, {self._first:,.0f} at the start"
        text += "; other programs may be using this machine"
        return text if threads == 1 else f"{text}: stop with Ctrl-C and resume with --threads 1"


class WallClock:
    """The time budget of a run (training.minutes): estimates how many training steps fit into it.

    The estimate uses the median duration of the recent steps, so that a slow start does not distort it.

    budget: the budget in seconds.
    evaluation: the duration of one evaluation in seconds. None while it is unknown.
    """

    def __init__(self, settings: Training) -> None:
        self.budget = math.inf if settings.minutes is None else 60 * settings.minutes
        self.evaluation: float | None = None
        self._every = settings.evaluate_every
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._parts = 0

    def add_step(self, seconds: float) -> None:
        """Record how many seconds a training step took."""
        self._recent.append(seconds)

    def replan_due(self, elapsed: float) -> bool:
        """Return whether it is time to estimate the number of steps again.

        The result is True each time when the next fraction in REPLAN of the budget has been used.

        elapsed: seconds of the budget that are used.
        """
        before, self._parts = self._parts, sum(part * self.budget <= elapsed for part in REPLAN)
        return self._parts > before

    def plan(self, progress: Progress, elapsed: float, processes: Processes) -> str:
        """Set the number of steps of the run, or correct it, once the pace (seconds per step) is known.

        All processes of distributed training get the same number. Returns a message for the log, or "" while
        the pace is unknown, or if the number has changed by less than TOLERANCE.

        elapsed: seconds of the budget that are used.
        """
        before, step = progress.total, progress.step
        if before is None and not processes.share(pace_is_known(self.budget, elapsed, step)):
            return ""
        pace = median(self._recent) if self._recent else elapsed / max(step, 1)
        plan = plan_steps(self.budget, elapsed, step, pace, self.evaluation, self._every)
        progress.total, progress.every = processes.share(plan)
        if before is None:
            steps = count(progress.total, "step")
            return f"{count(self.budget / 60, 'minute')}: {steps} at the current speed"
        if abs(progress.total - before) <= TOLERANCE * before:
            return ""
        return f"the speed has changed: {progress.total:,} steps instead of {before:,}"


def total_steps(settings: Training, epoch: int) -> int | None:
    """Return the number of training steps of a run.

    Return None if the length of the run is set in minutes. Then the number of steps depends on the speed.

    epoch: number of batches per epoch.

    >>> total_steps(Training(epochs=2), epoch=50), total_steps(Training(minutes=3), epoch=50)
    (100, None)
    """
    if settings.steps is not None:
        return settings.steps
    if settings.minutes is not None:
        return None
    each = epoch / settings.accumulation_steps
    if settings.epochs is not None:
        return max(round(settings.epochs * each), 1)
    return min(max(round(EPOCHS * each), MIN_STEPS), MAX_STEPS)


def pace_is_known(budget: float, seconds: float, step: int) -> bool:
    """Return whether enough training steps were timed to estimate the seconds per step.

    budget: the time budget of the run, in seconds.
    seconds: the total duration of the timed steps.
    step: how many steps were timed.

    >>> pace_is_known(100, seconds=2, step=10)
    False
    """
    return step >= FIRST_STEPS or seconds >= FIRST_PART * budget


def plan_steps(
    budget: float, elapsed: float, step: int, pace: float, evaluation: float | None, every: int | None
) -> tuple[int, int]:
    """Return how many steps fit into a budget of seconds, and the number of steps between two evaluations.

    elapsed: seconds that the first `step` steps and their evaluations took.
    pace: seconds per step from now on.
    evaluation: seconds of one evaluation; None if unknown.
    every: the number of steps between two evaluations in the settings, or None.

    In the second of these examples, an evaluation takes longer. So there are fewer evaluations: one in 500
    steps instead of one in 50:

    >>> plan_steps(100, elapsed=10, step=50, pace=0.2, evaluation=1.0, every=None)
    (436, 50)
    >>> plan_steps(100, elapsed=10, step=50, pace=0.2, evaluation=10.0, every=None)
    (395, 500)
    """
    left = max(budget * (1 - RESERVED) - elapsed, 0.0)
    pace = max(pace, 1e-9)
    if evaluation is None:
        evaluation = EVALUATION_PART * budget / EVALUATIONS
    if every is None:
        # Evaluate 10 times in the run, or less often, so that evaluations take at most a tenth of the time.
        min_interval = evaluation / (EVALUATION_PART * pace)
        every = max(math.ceil(max((step + left / pace) / EVALUATIONS, min_interval)), 1)
    return step + int(max(left - evaluation, 0.0) / (pace + evaluation / every)), every


def count(number: float, unit: str) -> str:
    """Format a number with its unit, in the plural if the number is not 1.

    >>> count(1, "minute"), count(2.5, "minute"), count(1200, "step")
    ('1 minute', '2.5 minutes', '1,200 steps')
    """
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {unit}" if number == 1 else f"{text} {unit}s"


def budget_warning(steps: int, epoch: float) -> str:
    """Return a warning if a run has too few steps, otherwise "".

    steps: number of steps of the run.
    epoch: number of steps per epoch.

    After MANY_EPOCHS epochs there is no warning: then there are few data, and more of them help.

    >>> budget_warning(28, epoch=100), budget_warning(150, epoch=50), budget_warning(2000, epoch=100)
    ('only 28 steps, 0.28 of an epoch', 'only 150 steps, 3 epochs', '')
    >>> budget_warning(81, epoch=1)
    ''
    """
    epochs = steps / max(epoch, 1.0)
    if (steps >= FEW_STEPS and epochs >= 0.25) or epochs >= MANY_EPOCHS:
        return ""
    amount = f"{epochs:.2g} of an epoch" if epochs < 1 else epochs_text(epochs)
    return f"only {steps:,} steps, {amount}"


def epochs_text(epochs: float) -> str:
    """Format a number of epochs: with two significant digits below 10, without decimals from 10 on.

    >>> epochs_text(0.284), epochs_text(1.0), epochs_text(460.2), epochs_text(1e-9)
    ('0.28 epochs', '1 epoch', '460 epochs', 'less than 0.001 epochs')
    """
    if epochs < 0.001:
        return "less than 0.001 epochs"
    text = f"{epochs:.2g}" if epochs < 9.95 else f"{epochs:,.0f}"
    return f"{text} epoch{'s' * (text != '1')}"


def evaluation_due(settings: Training, progress: Progress) -> bool:
    """Return whether to evaluate the model after the training step progress.step.

    If the length of the run is set in minutes, the interval between evaluations can change. So the interval
    is counted from the last evaluation.
    """
    at = progress
    if at.evaluated == at.step:
        return False
    if at.every and at.total and settings.evaluate_every is None:
        return at.step - at.evaluated >= at.every and at.total - at.step >= at.every / 2
    # -(-a // b) rounds a / b up.
    tenth = None if at.total is None else max(-(-at.total // EVALUATIONS), 1)
    every = at.every or settings.evaluate_every or tenth
    return bool(every and at.step and at.step % every == 0)


def duration_text(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, as text.

    >>> duration_text(1), duration_text(150), duration_text(9000)
    ('1 second', '2 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} second{'s' * (f'{seconds:.0f}' != '1')}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
