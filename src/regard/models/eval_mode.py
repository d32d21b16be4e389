"""Eval mode for a model that several threads share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_eval_mode"]

_modes: dict[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = {}
"""For each model in eval mode: the number of users, and the previous mode of each of its modules."""

_lock = threading.Lock()


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Context manager: put a model in eval mode, then restore the previous mode of each module.

    Where several threads share a model, the last one to finish restores the modes.
    """
    with _lock:
        users, modes = _modes.get(model, (0, [(each, each.training) for each in model.modules()]))
        _modes[model] = users + 1, modes
        model.eval()
    try:
        yield
    finally:
        with _lock:
            users, modes = _modes.pop(model)
            if users > 1:
                _modes[model] = users - 1, modes
            else:
                for module, training in modes:
                    module.training = training
