"""The optimizer, its learning rate, and the exponential moving average of the weights.

Checkpoints save the optimizer state and the average as named tensors. The learning rate depends only on the
number of the step or of the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.errors import DataError, UnknownName, message
from regard.training.settings import Training

OPTIMIZERS = ("adamw", "sgd")
"""The names of the optimizers."""

STATES = {"step", "exp_avg", "exp_avg_sq"}
"""The names of the tensors that AdamW keeps for each parameter, as in torch.optim.AdamW."""


def build_optimizer(
    model: nn.Module, *, beta2: float, weight_decay: float, name: str = "adamw", momentum: float = 0.0
) -> torch.optim.Optimizer:
    """Return AdamW or SGD, with weight decay only for parameters of two or more dimensions (not biases).

    For AdamW, see Loshchilov and Hutter (2019). SGD updates the weights w as follows, with the gradient g,
    the learning rate r and the velocity v:

    v <- momentum v + g + weight_decay w,  w <- w - r v

    The initial learning rate is 0. The trainer sets it before each step.

    name: "adamw" or "sgd".
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
    for key, value in tensors.items():
        name, _, kind = key.rpartition("/")
        if name not in named:
            hint = "the checkpoint is of another model: start a new run"
            raise DataError(message(place, f"the model has no parameter '{name}'", hint=hint))
        parameter = named[name]
        kinds.setdefault(name, set()).add(kind)
        shape = parameter.shape if kind != "step" else torch.Size(())
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
