"""SeedTrainers: train several seeds of one task step by step together, each in a run folder of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from regard.errors import RegardError
from regard.training.checkpoints.checkpoints import Checkpoint
from regard.training.interrupts import Interruption
from regard.training.logs.seed_log import SeedLog
from regard.training.loop import StepRequest, Trainer
from regard.training.nonfinite_steps import NonFinite
from regard.training.progress import Progress
from regard.training.stacked_gradients import StackedGradients

__all__ = ["SeedTrainers", "SharedClock"]


class SharedClock:
    """A clock for several trainers, which advances only by tick(): once a step, for all of them.

    All seeds then write their checkpoints after the same steps, also those that are written every ten
    minutes, so that all of them can be resumed at the same step.

    >>> clock = SharedClock()
    >>> clock() == clock()
    True
    """

    def __init__(self) -> None:
        self._now = time.monotonic()

    def __call__(self) -> float:
        return self._now

    def tick(self) -> None:
        """Set the clock to the current time."""
        self._now = time.monotonic()


class SeedTrainers:
    """Take each step of several trainers together, with gradients of one stacked model.

    trainers: by seed, with one SharedClock as their clock. log: prints and writes the mean of the seeds.
    failed: seeds whose loss, gradient or weights became NaN or infinite, with the error. The other seeds go
    on without them. on_failure: called with the seed, the step and the error. unstacked: why the gradients of
    each seed are computed alone; "" to stack them.

    Seeds whose checkpoints are of an earlier step are trained alone until they reach the others.
    """

    def __init__(
        self,
        trainers: Mapping[int, Trainer],
        clock: SharedClock,
        log: SeedLog,
        on_failure: Callable[[int, int, NonFinite], None] = lambda seed, step, error: None,
        unstacked: str = "",
    ):
        self.trainers, self.clock, self.log, self.on_failure = dict(trainers), clock, log, on_failure
        self.gradients = StackedGradients(self.trainers, self._say, unstacked)
        self.failed: dict[int, tuple[int, NonFinite]] = {}
        self._running: dict[int, Generator[StepRequest, Any, Progress]] = {}
        self._pending: dict[int, StepRequest] = {}
        self._stopped = False
        self._error: RegardError | None = None

    def _say(self, text: str) -> None:
        self.log.event("stacking", text)

    def resume(self, failures: Mapping[int, int]) -> dict[int, int | None]:
        """Load the checkpoints of all seeds, at the same step if possible.

        Returns the step of each seed; None if it has no checkpoint yet.

        failures: the step at which a seed failed in an earlier process. It is left out from then on. The
        others are resumed at the newest step of which all have a checkpoint: a process can be killed between
        the checkpoints of two seeds.
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
        self.gradients.trainers = self.trainers
        return resumed

    def run(self, requested: Interruption) -> dict[int, Progress]:
        """Train all seeds to the end or until interrupted, and save checkpoints; return their progress."""
        self._running = {seed: trainer.steps(requested) for seed, trainer in self.trainers.items()}
        try:
            self.clock.tick()
            for trainer in self.trainers.values():
                if not trainer.checkpoints.all():
                    trainer.save()  # so that all seeds have a checkpoint of one step, whenever this is killed
            for seed in self.trainers:
                self._advance(seed, None)
            self.log.end_step(0)  # evaluations that a killed process had not finished
            while self._pending:
                self._take_step()
        except (KeyboardInterrupt, SystemExit):
            for trainer in self.trainers.values():
                trainer.log_unsaved()
            raise
        if self._error is not None:
            raise self._error
        return {seed: trainer.progress for seed, trainer in self.trainers.items()}

    def _take_step(self) -> None:
        """Take the next step of all seeds that are not ahead of the others."""
        step = min(request.step for request in self._pending.values())
        requests = {seed: each for seed, each in self._pending.items() if each.step == step}
        losses = self.gradients.add(requests)
        self.clock.tick()
        for seed in requests:
            self._advance(seed, losses[seed])
        self.log.end_step(step)
        if self._stopped:
            for seed in list(self._pending):
                self._advance(seed, None)

    def _advance(self, seed: int, losses: Mapping[str, Any] | None) -> None:
        """Let a trainer continue until its next step; a trainer that has ended or failed is left out."""
        self._pending.pop(seed, None)
        try:
            self._pending[seed] = self._running[seed].send(losses)
        except StopIteration as end:
            self._stopped |= not end.value.ended
        except NonFinite as error:
            self.failed[seed] = self.trainers[seed].progress.step, error
            self.on_failure(seed, self.trainers[seed].progress.step, error)
        except RegardError as error:  # such as a moved folder: the other seeds save before it is raised
            self._stopped, self._error = True, self._error or error


def _checkpoint_at(trainer: Trainer, step: int) -> Checkpoint | None:
    """Return the checkpoint of a step, or None if there is none or it is damaged."""
    for checkpoint in trainer.checkpoints.all():
        if checkpoint.step == step:
            try:
                checkpoint.verify()
            except RegardError:
                return None
            return checkpoint
    return None
