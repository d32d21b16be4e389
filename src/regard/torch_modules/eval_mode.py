"""in_eval_mode(): put a model in eval mode inside a `with` block, from several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["all_modules", "in_eval_mode"]

_eval_modes: dict[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = {}
"""The models for which in_eval_mode() is active. The values are the number of open `with` blocks of the
model, and the earlier mode (training or eval) of each of its modules."""

_eval_lock = threading.Lock()


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return a model and all its submodules. Faster than model.modules(), which also computes names."""
    found: list[nn.Module | None] = [model]
    for module in found:  # the list grows while it is read
        if module is not None:
            children = module.__dict__["_modules"]
            if children:
                found.extend(children.values())
    return [each for each in dict.fromkeys(found) if each is not None]


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Context manager that puts a model in eval mode. At the end, each module gets its previous mode back.

    Several threads can be inside the context manager for the same model. Then the last thread that leaves it
    restores the modes.
    """
    with _eval_lock:
        changes = model in _eval_modes or any(each.training for each in all_modules(model))
        if changes:
            users, modes = _eval_modes.get(model, (0, [(each, each.training) for each in model.modules()]))
            _eval_modes[model] = users + 1, modes
            model.eval()
    if not changes:  # the frequent case, in which nothing has to be restored
        yield
        return
    try:
        yield
    finally:
        with _eval_lock:
            users, modes = _eval_modes.pop(model)
            if users > 1:
                _eval_modes[model] = users - 1, modes
            else:
                for module, training in modes:
                    module.training = training
