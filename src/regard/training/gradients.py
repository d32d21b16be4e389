"""Gradients: what the batches of one step ask of the weights, in one process or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import RegardError, message
from regard.training.cuda_graphs import Captured, Uncaptured
from regard.training.distributed import Processes
from regard.training.progress import step_seed
from regard.training.task import Loss, Task

__all__ = ["Gradients", "Objective", "coarse_products", "in_half"]


class Objective(nn.Module):
    """From a batch to its loss: what is compiled, and what runs in step with the other processes."""

    def __init__(self, task: Task):
        super().__init__()
        self.model, self._loss = task.model, task.loss

    def forward(self, batch: Any) -> Loss:
        """The loss of one batch."""
        return self._loss(batch)


class Gradients:
    """Adds up the gradients of a step in the parameters of a task's model.

    seed: of what is random in a step. half: whether it is computed in bfloat16 where that is safe. coarse:
    whether matrix products of float32 are in TF32, on GPUs that have it. compiled: whether by torch.compile;
    the task says how many shapes its batches have. captured: whether in a CUDA graph for each shape. say: is
    told once where that fails; the ordinary step is taken then.
    """

    def __init__(
        self,
        task: Task,
        *,
        seed: int = 0,
        device: torch.device,
        processes: Processes | None = None,
        half: bool = False,
        coarse: bool = False,
        compiled: bool = False,
        captured: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.task, self.seed, self.device, self.half, self.compiled = task, seed, device, half, compiled
        self.coarse = coarse and device.type == "cuda"
        self.processes = processes or Processes()
        objective: Any = Objective(task)
        if self.processes.world > 1:
            objective = DistributedDataParallel(objective)
        if compiled:
            # A shape too many would run uncompiled, and slowly, in silence.
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, task.shapes)
            objective = torch.compile(objective, dynamic=False)
        self._objective = objective
        self._say = say
        self._captured = Captured(self._precise, task.model, device, task.shapes) if captured else None

    def add(self, step: int, batches: Sequence[Any], tokens: int) -> dict[str, Tensor]:
        """Add those of a step's batches, each divided by `tokens`, which all processes have together.

        Gives the sums of the losses over all processes by name; what is minimised is last, and has none.
        """
        sums: dict[str, Tensor] = {}
        for loss in self.each(step, batches, tokens):
            for name, value in (*loss.shown.items(), ("", loss.total)):
                sums[name] = sums[name] + value if name in sums else value
        if self.processes.world == 1:
            return sums
        summed = self.processes.sum(torch.stack(list(sums.values())))
        return dict(zip(sums, summed.unbind(), strict=True))

    def each(self, step: int, batches: Sequence[Any], tokens: int) -> Iterator[Loss]:
        """The loss of each batch, without its graph, after its gradients were added."""
        for place, batch in enumerate(batches):
            seed = step_seed(self.seed, step, place, self.processes.rank)
            torch.manual_seed(seed)
            ready = self.task.prepare(batch, self.device)
            replayed = self._replayed(ready, seed, tokens)
            if replayed is not None:
                yield replayed
                continue
            with self._together(last=place == len(batches) - 1), coarse_products(self.coarse):
                loss = self._precise(ready)
                # Processes are averaged over, so each counts its tokens against those of all.
                (loss.total * (self.processes.world / tokens)).backward()
            yield Loss(loss.total.detach(), loss.shown)

    def _replayed(self, ready: Any, seed: int, tokens: int) -> Loss | None:
        """The loss of a batch by a captured graph; None where none is wanted, or could be captured."""
        if self._captured is None:
            return None
        try:
            with coarse_products(self.coarse):
                return self._captured.run(ready, seed, 1 / tokens)
        except Uncaptured as error:
            self._captured = None
            self._say(f"steps could not be captured and run as they are, slower and as right: {error}")
            torch.manual_seed(seed)
            return None

    def _precise(self, ready: Any) -> Loss:
        with self._precision():
            return self._loss(ready)

    def _loss(self, ready: Any) -> Loss:
        if not self.compiled:
            return self._objective(ready)
        try:
            return self._objective(ready)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            problem = f"the compiled model was given more than {self.task.shapes} shapes"
            hint = "training.compile = false; or batches of fewer lengths"
            raise RegardError(message("training.compile", problem, hint=hint)) from None

    def _together(self, last: bool) -> AbstractContextManager[Any]:
        """Processes exchange gradients with the last batch of a step, not before."""
        waits = self.processes.world > 1 and not last
        return self._objective.no_sync() if waits else nullcontext()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()


@contextmanager
def coarse_products(wanted: bool) -> Iterator[None]:
    """Matrix products of float32 in TF32 inside a `with`, forwards and backwards, where that is wanted."""
    before = torch.get_float32_matmul_precision()
    if wanted:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def in_half(precision: str, device: torch.device) -> bool:
    """Whether a precision of the settings means bfloat16 there; auto does on GPUs that have it.

    >>> in_half("auto", torch.device("cpu")), in_half("bfloat16", torch.device("cpu"))
    (False, True)
    """
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bfloat16"
