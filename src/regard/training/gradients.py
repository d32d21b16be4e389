"""Gradients: sum the gradients of all batches of a training step, in one or several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import RegardError, Setting, message
from regard.fast.captured.graphs import Uncaptured
from regard.fast.freed_memory import keep_freed_memory
from regard.fast.twins import Twins
from regard.models.lstmn_classifier import LSTMNClassifier
from regard.models.lstmn_language import LSTMNLanguageModel
from regard.models.lstmn_translation import LSTMNTranslationModel
from regard.models.luong import Luong
from regard.training.distributed import Processes
from regard.training.progress import seed_generators, step_seed
from regard.training.task import Loss, Task


class Objective(nn.Module):
    """The loss of a task as a module, so that torch.compile and DistributedDataParallel can wrap it."""

    def __init__(self, task: Task):
        super().__init__()
        self.model, self._loss = task.model, task.loss

    def forward(self, batch: Any) -> Loss:
        """Return the loss of a batch that task.prepare() returned."""
        return self._loss(batch)


class Gradients:
    """Compute the gradients of a training step, and add them to `.grad` of the parameters of a task's model.

    seed: random seed of the run. The seed of each batch is derived from it.
    device: the device that batches are moved to.
    processes: the processes of distributed training. Default: this process only.
    half: whether to use autocast with bfloat16.
    coarse: whether to compute float32 matrix products in TF32, on GPUs that support it.
    compiled: whether to use torch.compile. The model is compiled once for each batch shape. More than
        Speed.shapes shapes are an error. With `captured`, it is compiled once for all shapes, because the
        graphs already have one shape each.
    captured: whether CapturedSteps captures the steps in CUDA graphs. Then several processes exchange their
        gradients there.
    say: a function that is called once with a message if a CUDA graph cannot be captured. From then on, no
        CUDA graphs are used.
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
        if device.type == "cpu":
            keep_freed_memory()
        objective: Any = Objective(task)
        self.twins = nullcontext() if compiled else Twins(task.model)
        self._own = objective  # without DistributedDataParallel
        if self.processes.world > 1 and captured:
            for tensor in (*task.model.parameters(), *task.model.buffers()):
                distributed.broadcast(tensor.detach(), 0)
        elif self.processes.world > 1:
            objective = DistributedDataParallel(objective)
        if compiled:
            # If there are more batch shapes than the limit, raise an error. By default, torch.compile would
            # not compile the other shapes, and their batches would be slow.
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            torch._dynamo.config.recompile_limit = max(
                torch._dynamo.config.recompile_limit, task.speed.shapes
            )
            objective = torch.compile(objective, dynamic=captured)
        self._objective = objective
        self._say = say
        self.captures = captured
        """Whether steps are captured in CUDA graphs."""

    def add(self, step: int, batches: Sequence[Any], tokens: int) -> dict[str, Tensor]:
        """Compute the gradients of one training step, and add them to `.grad` of the parameters.

        step: number of the step, from which the random seeds of its batches are derived.
        batches: the batches of this process.
        tokens: number of target tokens of the step in all processes. The gradients of the summed loss are
            divided by this number.

        Returns a dict from the names of the losses, such as "loss", to their sums over batches and processes.
        The minimised loss comes last, and its name is "".
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
        """For each batch, add its gradients to the parameters, then yield its detached loss.

        step, batches, tokens: see add().
        """
        for place, batch in enumerate(batches):
            ready, _ = self.prepared(step, place, batch)
            loss = self.of_one(ready, tokens, last=place == len(batches) - 1)
            self.task.state.keep(batch, loss.state)
            yield Loss(loss.total, loss.shown)

    def prepared(self, step: int, place: int, batch: Any) -> tuple[Any, int]:
        """Seed the random number generators for a batch; return the result of task.prepare() and the seed.

        step: number of the training step.
        place: index of the batch within the step, from 0.
        """
        seed = step_seed(self.seed, step, place, self.processes.rank)
        seed_generators(seed, self.device)
        return self.task.prepare(batch, self.device), seed

    def of_one(self, ready: Any, tokens: int, last: bool = True) -> Loss:
        """Add the gradients of one batch to the parameters, and return its detached loss.

        ready: the batch on the device, from prepared().
        tokens: number of target tokens of the step in all processes. The gradients are divided by this
            number.
        last: whether this is the last batch of the step. After the last batch, processes exchange their
            gradients.
        """
        # The twins are used in the backward pass too: activation checkpointing runs the forward pass again.
        # Gradients accumulate until the last batch, so that one exchange per step is enough.
        waits = self.processes.world > 1 and not last
        together = self._objective.no_sync() if waits else nullcontext()
        with self.twins, together, coarse_products(self.coarse):
            loss = self.loss(ready)
            # DistributedDataParallel averages over processes; multiply by `world` to get the sum.
            (loss.total * (self.processes.world / tokens)).backward()
        return Loss(loss.total.detach(), loss.shown, loss.state)

    def stop_capturing(self, error: Uncaptured) -> None:
        """Use no CUDA graphs from now on, and log the error as the reason. All processes must call this."""
        self.captures = False
        if self.processes.world > 1:
            # Only now: its nodes of the autograd graph belong to the default stream, so captures would fail.
            self._objective = DistributedDataParallel(self._own)
        self._say(f"CUDA graphs could not be captured, so steps run without them and are slower: {error}")

    def loss(self, ready: Any) -> Loss:
        """Compute the loss of a batch from prepared(), in the precision of the run."""
        with self.precision():
            return self._loss(ready)

    def _loss(self, ready: Any) -> Loss:
        if not self.compiled:
            # CapturedSteps exchanges the gradients of several processes itself.
            with self.twins:
                return (self._own if self.captures else self._objective)(ready)
        try:
            return self._objective(ready)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            problem = (
                f"there are batches of more than {self.task.speed.shapes} shapes, and each shape is compiled"
            )
            hint = "use ", Setting("training", "compile", False), ", or batches of fewer different lengths"
            raise RegardError(message("training.compile", problem, hint=hint)) from None

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context manager for the forward pass. With `half`, it is bfloat16 autocast."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()


@contextmanager
def coarse_products(enabled: bool) -> Iterator[None]:
    """If enabled, allow TF32 for float32 matrix products inside the `with` block: faster but less precise."""
    before = torch.get_float32_matmul_precision()
    if enabled:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


FASTER_IN_TF32 = (Luong, LSTMNClassifier, LSTMNLanguageModel, LSTMNTranslationModel)
"""The models that train in TF32 with the precision "auto": on an H200, 1.2 to 1.5 times as fast as in
bfloat16, which needs more kernels, for casts."""


def chosen_precision(precision: str, device: torch.device, model: nn.Module) -> str:
    """Return the precision of training steps on this device: "float32", "tf32" or "bfloat16" (autocast).

    precision: the setting training.precision. On GPUs that support bfloat16, "auto" is "tf32" for the models
        FASTER_IN_TF32 and "bfloat16" for others, or the attribute auto_precision of the model; elsewhere, it
        is "float32".

    >>> chosen_precision("auto", torch.device("cpu"), nn.Linear(1, 1))
    'float32'
    """
    if precision != "auto":
        return precision
    if device.type != "cuda" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float32"
    listed = "tf32" if isinstance(model, FASTER_IN_TF32) else "bfloat16"
    return str(getattr(model, "auto_precision", listed))
