"""Trainer: the loop. It knows a task, settings and a run folder, and nothing of models or data."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import DataError, message
from regard.training.budget import evaluation_interval, steps_in, total_steps
from regard.training.checkpoint import Checkpoint, Checkpoints
from regard.training.distributed import Processes
from regard.training.interrupting import Interruption
from regard.training.log import Log
from regard.training.optimizer import Average, build_optimizer, load_optimizer, optimizer_tensors
from regard.training.progress import Progress, step_seed
from regard.training.replay import NonFinite, keep_batches
from regard.training.schedule import learning_rate
from regard.training.settings import Training
from regard.training.task import Loss, Stopped, Task

__all__ = ["Objective", "Trainer"]

SAVE_SECONDS = 600.0
"""A checkpoint is written at least this often, whatever the steps."""


class Objective(nn.Module):
    """From a batch to its loss: what is compiled, and what runs in step with the other processes."""

    def __init__(self, task: Task):
        super().__init__()
        self.model, self._loss = task.model, task.loss

    def forward(self, batch: Any) -> Loss:
        """The loss of one batch."""
        return self._loss(batch)


class Trainer:
    """Train a task into a run folder, from the start or from its last checkpoint.

    settings: how. seed: of all that is random. device: where; the model is moved there. processes: who takes
    part. log: what is said; nothing unless given.

    Killed at any moment, the run goes on from its last checkpoint as if it had never stopped: the order of
    the data depends on (seed, epoch), what is random in a step on (seed, step), the rate on the step.
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
    ):
        self.task, self.settings, self.folder, self.seed = task, settings, folder, seed
        self.device = torch.device(device)
        self.processes = processes or Processes()
        self.log = Log(None, console=Console(quiet=True)) if log is None else log
        self.model = task.model.to(self.device)
        self.optimizer = build_optimizer(self.model, beta=settings.beta, weight_decay=settings.weight_decay)
        self.average = Average(self.model, settings.ema) if settings.ema else None
        self.checkpoints = Checkpoints(folder, settings.keep)
        self.progress = Progress(total=total_steps(settings, task.len_epoch(0)))
        self.objective = self._objective()
        self._stream = self._batches()
        self._saved = 0
        self._last_save = time.monotonic()
        self._stop, self._out_of_time, self._save_wanted = False, 0, 0

    def resume(self) -> Checkpoint | None:
        """Take up the last checkpoint that is whole, if there is one; the log says which, and why it."""
        found = self.checkpoints.latest()
        if found is None:
            return None
        state = found.state
        weights = found.tensors("weights")
        try:
            self.model.load_state_dict(found.tensors("raw") if self.average is not None else weights)
        except RuntimeError as error:
            hint = "the settings of the model have changed: start a new run, or one with --init-from"
            raise DataError(message(str(found.path), str(error).splitlines()[0], hint=hint)) from None
        if self.average is not None:
            self.average.load(weights)
        load_optimizer(self.model, self.optimizer, found.tensors("optimizer"), str(found.path))
        fresh = self.progress.total
        self.progress = Progress.read(state)
        if fresh is not None:
            self.progress.total = fresh  # the same unless a change of settings was asked for
        if self.progress.total is None or self.progress.step < self.progress.total:
            self.progress.ended = ""
        self._stream, self._saved = self._batches(), found.step
        if self.processes.first:
            self.log.rewind(int(state["log"]["position"]))
            self.log.restore(state["log"]["state"])
            for note in self.checkpoints.notes:
                self.log.event("damaged", note)
            if self.progress.best_step == found.step:
                self.checkpoints.mark_best(found.step)  # the end may have come just before it was marked
        return found

    def run(self, interruption: Interruption | None = None) -> Progress:
        """Train until the end, or until interrupted; all is saved either way."""
        asked = interruption or Interruption()
        self._began = time.monotonic() - self.progress.seconds
        self.log.total = self.progress.total
        if self._due(self.progress.step) and self.progress.evaluated != self.progress.step:
            self._evaluate(asked)
        while not self._stop and not self._over():
            self._step(asked)
            self._budget()
            if self._due(self.progress.step):
                self._evaluate(asked)
            if self._stop or self._save_due():
                self.save()
        if not self._stop and self.progress.evaluated != self.progress.step:
            self._evaluate(asked)
        if self._saved != self.progress.step or self.progress.ended:
            self.save()
        return self.progress

    def _over(self) -> bool:
        at, settings = self.progress, self.settings
        if at.total is not None and at.step >= at.total:
            at.ended = "all steps are taken"
        elif settings.patience is not None and at.stale >= settings.patience:
            at.ended = f"no better {settings.best} in {at.stale} evaluations"
        elif self._out_of_time:
            at.ended = f"{settings.minutes:g} minutes are over"
        return bool(at.ended)

    def _late(self) -> bool:
        return self.settings.minutes is not None and self._seconds() > 60 * self.settings.minutes

    def _old(self) -> bool:
        return time.monotonic() - self._last_save > SAVE_SECONDS

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _budget(self) -> None:
        """Turn minutes into a number of steps, once the speed is known; from then on it is fixed."""
        if self.progress.total is None and self.settings.minutes is not None:
            found = steps_in(60 * self.settings.minutes, self._seconds(), self.progress.step, self.settings)
            self.progress.total = self.processes.share(found)
            if self.progress.total is not None:
                self.log.total = self.progress.total
                minutes = f"{self.settings.minutes:g} minutes are {self.progress.total:,} steps here"
                self._event("budget", minutes, total=self.progress.total)
                self.save()

    def _due(self, step: int) -> bool:
        every = evaluation_interval(self.settings, self.progress.total)
        return bool(every and step and step % every == 0)

    def _save_due(self) -> bool:
        every = self.settings.save_every
        return bool(self._save_wanted) or (every is not None and self.progress.step % every == 0)

    def _batches(self) -> Iterator[Any]:
        """Batch after batch, epoch after epoch, from where the progress is."""
        while True:
            for batch in self.task.batches(self.progress.epoch, self.progress.batch):
                self.progress.batch += 1
                yield batch
            self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0

    def _step(self, asked: Interruption) -> None:
        """One step: the gradients of all its batches in all processes, and one move of the weights."""
        at, settings = self.progress, self.settings
        batches = [next(self._stream) for _ in range(settings.accumulate)]
        at.step += 1
        own = sum(self.task.count(batch) for batch in batches)
        # The clock of the first process counts, a wish to stop in any: told in one exchange.
        late, old = (int(self.processes.first and each) for each in (self._late(), self._old()))
        told = torch.tensor([own, int(bool(asked)), late, old])
        tokens, stopping, self._out_of_time, self._save_wanted = self.processes.sum(told).tolist()
        rate = learning_rate(
            at.step, rate=settings.rate, schedule=settings.schedule, warm_up=settings.warm_up, total=at.total
        )
        self.model.train()
        parts = self._gradients(batches, max(tokens, 1))
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        names = list(parts)
        *sums, total, size = torch.stack([*parts.values(), norm.detach()]).tolist()
        if not math.isfinite(total) or not math.isfinite(size):
            self._refuse(batches, total if not math.isfinite(total) else size)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(at.step)
        at.tokens += int(tokens)
        self._stop = bool(stopping)
        means = {name: value / max(tokens, 1) for name, value in zip(names, sums, strict=False)}
        loss = means.pop("loss")
        if self.processes.first:
            self.log.step(at.step, loss=loss, tokens=int(tokens), rate=rate, norm=size, parts=means)

    def _gradients(self, batches: list[Any], tokens: int) -> dict[str, Tensor]:
        """Add up the gradients; gives the sums of the losses over all processes, what is minimised last."""
        sums: dict[str, Tensor] = {}
        for place, batch in enumerate(batches):
            torch.manual_seed(step_seed(self.seed, self.progress.step, place, self.processes.rank))
            ready = self.task.prepare(batch, self.device)
            with self._together(last=place == len(batches) - 1), self._precision():
                loss: Loss = self.objective(ready)
                # Processes are averaged over, so each counts its tokens against those of all.
                (loss.total * (self.processes.world / tokens)).backward()
            for name, value in (*loss.shown.items(), ("", loss.total.detach())):
                sums[name] = sums[name] + value if name in sums else value
        if self.processes.world == 1:
            return sums
        summed = self.processes.sum(torch.stack(list(sums.values())))
        return dict(zip(sums, summed.unbind(), strict=True))

    def _together(self, last: bool) -> AbstractContextManager[Any]:
        """Processes exchange gradients with the last batch of a step, not before."""
        waits = isinstance(self.objective, DistributedDataParallel) and not last
        return self.objective.no_sync() if waits else nullcontext()  # type: ignore[operator]

    def _precision(self) -> AbstractContextManager[Any]:
        wanted = self.settings.precision
        half = wanted == "bfloat16" or (wanted == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext()

    def _objective(self) -> nn.Module:
        objective: Any = Objective(self.task)
        if self.processes.world > 1:
            objective = DistributedDataParallel(objective)
        if self.settings.compile:
            # A shape too many would run uncompiled, and slowly, in silence.
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            objective = torch.compile(objective, dynamic=False)
        return objective

    def _refuse(self, batches: list[Any], value: float) -> None:
        """Stop at a step that cannot be taken; what it was made of is kept."""
        step, rank = self.progress.step, self.processes.rank
        kept = [self.task.tensors(batch) for batch in batches]
        place = keep_batches(self.folder, step, rank, kept, self.model.state_dict(), self.seed)
        last = f"step {self._saved}" if self._saved else "none yet"
        text = message(
            f"step {step}",
            f"the loss or its gradient is {value}; the last good checkpoint is {last}",
            expected="a finite loss",
            hint=f"{place.name} in the run folder has the batch and the weights: regard.training.replay() "
            "computes it again; a lower rate, a longer warm-up or precision='float32' may help",
        )
        self._event("nonfinite", text.splitlines()[0], step=step)
        raise NonFinite(text)

    def _evaluate(self, asked: Interruption) -> None:
        """Judge the model, in the first process; an interrupted evaluation is done again when resumed."""
        at, found = self.progress, None
        if self.processes.first:
            self.model.eval()
            with self.average.applied() if self.average is not None else nullcontext():
                try:
                    found = self.task.evaluate(asked)
                except Stopped:
                    found = None
        scores = self.processes.share(None if found is None else dict(found.scores))
        if scores is None:
            self._stop = True
            return
        at.evaluated = at.step
        value = scores[self.settings.best]
        signed = -value if self.settings.best == "loss" else value
        better = at.best is None or signed > (-at.best if self.settings.best == "loss" else at.best)
        if better:
            at.best, at.best_step, at.stale = value, at.step, 0
        else:
            at.stale += 1
        if found is not None:
            self.log.evaluation(at.step, scores, best=better, shown=found.shown)
        self.save()
        if better and self.processes.first:
            self.checkpoints.mark_best(at.step)

    def save(self) -> None:
        """Write a checkpoint, in the first process; the others wait for it."""
        at = self.progress
        at.seconds = self._seconds()
        if self.processes.first:
            weights = self.model.state_dict()
            tensors = {"weights": weights, "optimizer": optimizer_tensors(self.model, self.optimizer)}
            if self.average is not None:
                with self.average.applied():
                    averaged = {name: value.clone() for name, value in self.model.state_dict().items()}
                tensors |= {"weights": averaged, "raw": weights}
            log = {"position": self.log.position(), "state": self.log.state()}
            state = {**at.written(), "log": log, "threads": torch.get_num_threads()}
            self.checkpoints.save(at.step, tensors, state)
        self._saved, self._last_save = at.step, time.monotonic()
        self.processes.wait()

    def _event(self, kind: str, text: str, **fields: Any) -> None:
        if self.processes.first:
            self.log.event(kind, text, **fields)
