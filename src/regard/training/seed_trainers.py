"""SeedTrainers: train one model per random seed in one process. Each model has a run folder of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from regard.errors import RegardError
from regard.training.checkpoints.checkpoints import Checkpoint
from regard.training.interrupts import Interruption
from regard.training.logs.seed_log import SeedLog
from regard.training.loop import Trainer
from regard.training.nonfinite_steps import NonFinite
from regard.training.progress import Progress
from regard.training.step_results import Sent, StepRequest

__all__ = ["SeedTrainers", "SharedClock"]


class SharedClock:
    """A clock for several trainers. Its time changes only in tick(), which is called once per training step.

    So all trainers see the same time. A checkpoint that is due after ten minutes is written after the same
    step by all trainers. So all trainers can be resumed at the same step.

    >>> clock = SharedClock()
    >>> clock() == clock()
    True
    """

    def __init__(self) -> None:
        self._now = time.monotonic()

    def __call__(self) -> float:
        return self._now

    def tick(self) -> None:
        """Set the time that the clock shows to the current time, time.monotonic()."""
        self._now = time.monotonic()


class SeedTrainers:
    """Train one model per random seed, in turns: each model takes one step while the others wait.

    A "seed" below means the model that is trained with this seed.

    trainers: the trainer of each seed. All trainers use `clock` as their clock.
    clock: the clock that all trainers share.
    log: prints and writes means over the seeds.
    failed: the seeds with a loss, gradient or weight that became NaN or infinite, with the step and the
        error. The training of the other seeds continues.
    on_failure: called with the seed, the step and the error when a seed fails.

    Seeds that are resumed at an earlier step than the others are first trained alone, until they reach
    the step of the others.
    """

    def __init__(
        self,
        trainers: Mapping[int, Trainer],
        clock: SharedClock,
        log: SeedLog,
        on_failure: Callable[[int, int, NonFinite], None] = lambda seed, step, error: None,
    ):
        self.trainers, self.clock, self.log, self.on_failure = dict(trainers), clock, log, on_failure
        self.failed: dict[int, tuple[int, NonFinite]] = {}
        self._running: dict[int, Generator[StepRequest, Any, Progress]] = {}
        self._pending: dict[int, StepRequest] = {}
        self._stopped = False
        self._error: RegardError | None = None

    def resume(self, failures: Mapping[int, int]) -> dict[int, int | None]:
        """Load a checkpoint for the model of each seed, all of the same step if possible.

        Returns the step of the checkpoint of each seed, or None if a seed has no checkpoint yet.

        The newest checkpoints of the seeds can have different steps, because a process can be killed after it
        has saved only some of the seeds. The common step is the smallest of these steps. Seeds that have
        ended or failed do not count. A seed with a newer checkpoint is resumed at the common step, if it has
        a checkpoint of this step.

        failures: the seeds that failed in an earlier process, with the step of the failure. A seed that
            failed at the common step or before is left out.
        """
        newest = {seed: trainer.checkpoints.latest() for seed, trainer in self.trainers.items()}
        steps = {seed: 0 if each is None else each.step for seed, each in newest.items()}
        open_ = [
            seed
            for seed, each in newest.items()
            if seed not in failures and not (each is not None and each.state.get("ended"))
        ]
        common = min((steps[seed] for seed in open_), default=max(steps.values()))
        resumed: dict[int, int | None] = {}
        for seed, trainer in list(self.trainers.items()):
            if seed in failures and failures[seed] <= common:
                del self.trainers[seed]
                continue
            earlier = _checkpoint_at(trainer, common) if steps[seed] > common else None
            checkpoint = trainer.resume(earlier)
            if checkpoint is not None:
                trainer.log.event("resumed", f"resumed at step {checkpoint.step:,}", step=checkpoint.step)
            resumed[seed] = None if checkpoint is None else checkpoint.step
        return resumed

    def run(self, requested: Interruption) -> dict[int, Progress]:
        """Train the models of all seeds until the end or until a stop is requested, and save checkpoints.

        requested: a flag that becomes true when a stop is requested.

        Returns the progress of each seed.
        """
        self._running = {seed: trainer.steps(requested) for seed, trainer in self.trainers.items()}
        try:
            self.clock.tick()
            for trainer in self.trainers.values():
                if not trainer.checkpoints.all():
                    trainer.save()  # at step 0, so that all seeds always have a checkpoint of a common step
            for seed in self.trainers:
                self._advance(seed, None)
            self.log.end_step(0)  # log evaluations that are repeated because an earlier process was killed
            while self._pending:
                self._take_step()
        except (KeyboardInterrupt, SystemExit):
            for trainer in self.trainers.values():
                trainer.log_unsaved()
            raise
        finally:
            for trainer in self.trainers.values():
                trainer.task.close()
        if self._error is not None:
            raise self._error
        return {seed: trainer.progress for seed, trainer in self.trainers.items()}

    def _take_step(self) -> None:
        """Take one training step with the models that have done the fewest steps. The other models wait."""
        step = min(request.step for request in self._pending.values())
        requests = {seed: each for seed, each in self._pending.items() if each.step == step}
        losses: dict[int, Sent] = {}
        try:
            for seed, request in requests.items():
                losses[seed] = self.trainers[seed].add_gradients(request)
        except RegardError as error:  # run() raises it after the seeds are saved
            self._stopped, self._error = True, error
        self.clock.tick()
        for seed in losses:
            self._advance(seed, losses[seed])
        self.log.end_step(step)
        if self._stopped:
            for seed in list(self._pending):
                self._advance(seed, None)

    def _advance(self, seed: int, losses: Sent) -> None:
        """Let the trainer of a seed continue until it needs the gradients of its next step.

        losses: the losses of the step whose gradients were just computed. For the first call, it is None. In
            a later call, None means that training must stop.

        A trainer that has ended or failed is not called again.
        """
        self._pending.pop(seed, None)
        try:
            self._pending[seed] = self._running[seed].send(losses)
        except StopIteration as end:
            self._stopped |= not end.value.ended
        except NonFinite as error:
            self.failed[seed] = self.trainers[seed].progress.step, error
            self.on_failure(seed, self.trainers[seed].progress.step, error)
        except RegardError as error:  # run() raises it after the other seeds are saved
            self._stopped, self._error = True, self._error or error


def _checkpoint_at(trainer: Trainer, step: int) -> Checkpoint | None:
    """Return the checkpoint of this trainer at a training step, or None if it is missing or damaged."""
    for checkpoint in trainer.checkpoints.all():
        if checkpoint.step == step:
            try:
                checkpoint.verify()
            except RegardError:
                return None
            return checkpoint
    return None
