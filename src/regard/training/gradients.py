"""Gradients of a training step, and what is done with them: the optimizer and the average of the weights.

The gradients of all batches of a step are summed, in one or several processes. Checkpoints save the optimizer
state and the exponential moving average of the weights as named tensors. The learning rate depends only on
the number of the step or of the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import DataError, RegardError, Setting, UnknownName, message
from regard.fast.captured.graphs import Uncaptured
from regard.fast.freed_memory import keep_freed_memory
from regard.fast.twins import Twins
from regard.training.distributed import Processes
from regard.training.muon import Muon, split_groups
from regard.training.progress import seed_generators, step_seed
from regard.training.settings import Training
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
    precision: "float32", "tf32" (float32 with TF32 matrix products, on GPUs that support it) or "bfloat16"
        (autocast).
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
        precision: str = "float32",
        compiled: bool = False,
        captured: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.task, self.seed, self.device, self.compiled = task, seed, device, compiled
        self.use(precision)
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

    def use(self, precision: str) -> None:
        """Use another precision from now on; see `precision` of the class."""
        self.half, coarse = precision == "bfloat16", precision == "tf32" and self.device.type == "cuda"
        # In bfloat16 on a CPU, recurrent steps stay in float32; only their products may be rounded.
        rounded = self.half and self.device.type == "cpu"
        self.products = "medium" if rounded else "high" if coarse else "highest"

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
        with self.twins, together, coarse_products(self.products):
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
def coarse_products(allowed: str) -> Iterator[None]:
    """Set the precision of float32 matrix products inside the `with` block, if it is below the present one.

    allowed: "highest" (float32), "high" (TF32 on a GPU) or "medium" (on a CPU with such instructions,
        bfloat16 with sums in float32); see torch.set_float32_matmul_precision().
    """
    before = torch.get_float32_matmul_precision()
    if allowed != "highest":
        torch.set_float32_matmul_precision(allowed)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


OPTIMIZERS = ("adamw", "muon", "sgd")
"""The names of the optimizers."""

STATES = {"step", "exp_avg", "exp_avg_sq"}
"""The names of the tensors that AdamW keeps for each parameter, as in torch.optim.AdamW."""


def build_optimizer(
    model: nn.Module, *, beta2: float, weight_decay: float, name: str = "adamw", momentum: float = 0.0
) -> torch.optim.Optimizer:
    """Return AdamW, Muon or SGD, with weight decay only for weights of two or more dimensions (not biases).

    For AdamW, see Loshchilov and Hutter (2019); for Muon, muon.py. SGD updates the weights w as follows, with
    the gradient g, the learning rate r and the velocity v:

    v <- momentum v + g + weight_decay w,  w <- w - r v

    The initial learning rate is 0. The trainer sets it before each step.

    name: "adamw", "muon" or "sgd".
    beta2: second beta of AdamW.
    momentum: momentum of SGD. With 0, SGD has no state.

    >>> optimizer = build_optimizer(nn.Linear(2, 3), beta2=0.98, weight_decay=0.1)
    >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
    [(1, 0.1), (1, 0.0)]
    """
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    parameters = [each for each in model.parameters() if each.requires_grad]
    matrices = [each for each in parameters if each.dim() >= 2]
    others = [each for each in parameters if each.dim() < 2]
    groups = [
        {"params": some, "weight_decay": decay}
        for some, decay in ((matrices, weight_decay), (others, 0.0))
        if some
    ]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=momentum, fused=True)
    if name == "muon":
        return Muon(split_groups(model, groups), lr=0.0, betas=(0.9, beta2), eps=1e-9, fused=True)
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, beta2), eps=1e-9, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the optimizer state, by name.

    A name consists of a parameter and a state. For example, "target.weight/exp_avg" is the moving average of
    the gradients of target.weight in AdamW.
    """
    return {
        f"{name}/{kind}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state[parameter].items()
    }


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], place: str
) -> None:
    """Load an optimizer state into an optimizer of this model; raise DataError if the two do not match.

    tensors: the result of optimizer_tensors().
    place: the path of the checkpoint, for error messages.
    """
    named = dict(model.named_parameters())
    kinds: dict[str, set[str]] = {}
    by_muon = {id(each) for group in optimizer.param_groups if group.get("muon") for each in group["params"]}
    for key, value in tensors.items():
        name, _, kind = key.rpartition("/")
        if name not in named:
            hint = "the checkpoint is of another model: start a new run"
            raise DataError(message(place, f"the model has no parameter '{name}'", hint=hint))
        parameter = named[name]
        kinds.setdefault(name, set()).add(kind)
        scalar = kind == "step" or (kind == "exp_avg_sq" and id(parameter) in by_muon)
        shape = torch.Size(()) if scalar else parameter.shape
        if value.shape != shape or not value.is_floating_point():
            problem = f"{key} has shape {tuple(value.shape)} and dtype {value.dtype}"
            raise DataError(message(place, problem, expected=f"a float tensor of shape {tuple(shape)}"))
        # The fused optimizer needs all state tensors on the device of the parameter.
        optimizer.state[parameter][kind] = value.to(parameter.device)
    expected = STATES
    if isinstance(optimizer, torch.optim.SGD):
        expected = {"momentum_buffer"} if optimizer.defaults["momentum"] else set()
    wrong = {name for name, states in kinds.items() if states != expected}
    if wrong:
        problem = f"the optimizer state of '{min(wrong)}' has {', '.join(sorted(kinds[min(wrong)]))}"
        hint = "to change the optimizer, start a new run with --init-from"
        needed = ", ".join(sorted(expected)) or "no state"
        raise DataError(message(place, problem, expected=needed, hint=hint))


class Average:
    """The exponential moving average of the weights of a model: a <- a + (1 - decay) (w - a).

    a is the average, and w are the weights. In the first training steps, the decay is (1 + step) / (10 +
    step), if this is smaller than `decay`. So the initial weights have less influence.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = Average(model, decay=0.5)
    >>> with torch.no_grad():
    ...     _ = model.weight.add_(1.0)
    >>> average.update(step=100)
    >>> with average.applied():
    ...     inside = model.weight.item()
    >>> round(model.weight.item() - inside, 6)
    0.5
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._named = dict(model.named_parameters())
        self._averages = [parameter.detach().clone() for parameter in self._named.values()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the averages with the current weights, after training step number `step`."""
        now = [parameter.detach() for parameter in self._named.values()]
        torch._foreach_lerp_(self._averages, now, self.rate(step))

    def rate(self, step: int) -> float:
        """Return 1 - decay for training step number `step`: the part of the new weights in the averages."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update_by(self, rate: Tensor) -> None:
        """Update the averages as update() does, with a rate() that is a tensor on the device.

        With a rate of 0, the averages stay exactly the same.
        """
        changes = torch._foreach_sub([each.detach() for each in self._named.values()], self._averages)
        torch._foreach_mul_(changes, rate)
        torch._foreach_add_(self._averages, changes)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights of the model by the averages inside the `with` block, e.g. to evaluate it."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, average in zip(self._named.values(), self._averages, strict=True):
            weights = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(weights)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages as a dict from the name of each parameter to its average."""
        return dict(zip(self._named, self._averages, strict=True))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the averages to `tensors`, which come from tensors() and were saved in a checkpoint."""
        for name, average in zip(self._named, self._averages, strict=True):
            average.copy_(tensors[name])


def scheduled_rate(settings: Training, *, step: int, epoch: int, total: int | None) -> float:
    """Return the learning rate of a training step: linear growth to the peak in the warm-up, then a schedule.

    constant      the peak
    cosine        peak (1 + cos(pi done)) / 2, where `done` grows from 0 (end of the warm-up) to 1 (last step)
    inverse-root  peak sqrt(warmup_steps / step)                                 (Vaswani et al. 2017, eq. 3)
    epoch-decay   peak / decay_factor^ceil(max(epoch - decay_after, 0) / decay_every), also in the warm-up
                  (Zaremba et al. 2015, section 4.1, where decay_every is 1: decay_after=6, decay_factor=1.2
                  for the medium model, 14 and 1.15 for the large one)

    step, epoch: the number of the step and of its epoch, both counted from 1.
    total: number of steps of the run; None while it is unknown. The warm-up is at most half of it. While it
        is unknown, the cosine schedule is constant.

    >>> settings = Training(learning_rate=1.0, schedule="cosine", warmup_steps=2)
    >>> [scheduled_rate(settings, step=step, epoch=1, total=6) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    >>> settings = Training(learning_rate=1.0, schedule="epoch-decay", decay_after=6, warmup_steps=0)
    >>> scheduled_rate(settings, step=900, epoch=7, total=None) == 1 / 1.2
    True
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if total is not None:
        warmup = min(warmup, total // 2)
    if settings.schedule == "epoch-decay":
        peak *= settings.decay_factor ** -math.ceil(
            max(epoch - settings.decay_after, 0) / settings.decay_every
        )
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "cosine" and total is not None:
        done = (step - warmup) / max(total - warmup, 1)
        return peak * (0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))))
    if settings.schedule == "inverse-root":
        return peak * math.sqrt(max(warmup, 1) / max(step, warmup, 1))
    return peak
