"""Whether calling a module does more than its forward(), so that a twin must call it.

Hooks, parametrizations, and profilers that replace nn.Linear.forward see a module only if it is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules import module as modules

__all__ = ["are_plain_linear", "contains_hooks", "is_hooked", "is_plain_linear"]

_forward = nn.Linear.forward
"""The method of PyTorch. A profiler can replace it in the class; then the layers are called."""


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling the layer does more than its forward().

    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_hook(print)
    >>> is_hooked(layer), is_hooked(nn.Tanh())
    (True, False)
    """
    return _any_global_hooks() or bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )


def contains_hooks(model: nn.Module) -> bool:
    """Whether is_hooked() is True for the model or one of its submodules.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> before = contains_hooks(model)
    >>> handle = model[0].register_forward_hook(print)
    >>> before, contains_hooks(model)
    (False, True)
    """
    if is_hooked(model):
        return True
    waiting: list[nn.Module | None] = [model]  # in less than half the time of a loop over modules()
    while waiting:
        module = waiting.pop()
        if module is not None:
            own = module.__dict__
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
                return True
            if own["_backward_hooks"] or own["_backward_pre_hooks"]:
                return True
            waiting.extend(own["_modules"].values())
    return False


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether calling the layer only computes functional.linear() with its weight and bias.

    >>> is_plain_linear(nn.Linear(2, 3)), is_plain_linear(nn.Bilinear(2, 2, 3))
    (True, False)
    """
    return are_plain_linear((layer,))


def are_plain_linear(layers: Sequence[nn.Module]) -> bool:
    """Whether is_plain_linear() is True for all layers."""
    return (
        nn.Linear.forward is _forward
        and all(type(layer) is nn.Linear and not is_hooked(layer) for layer in layers)
        # A parametrized layer or a replica of nn.DataParallel has no weight among its parameters.
        and all("weight" in layer._parameters for layer in layers)
    )


def _any_global_hooks() -> bool:
    return bool(
        modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )
