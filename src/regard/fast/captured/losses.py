"""CapturedLosses: losses of validation batches, computed with CUDA graphs from the second evaluation on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.packed_tensors import copy_all, tensors_in
from regard.fast import enabled
from regard.fast.captured import graphs
from regard.fast.captured.graphs import copied, shape_of
from regard.kernels import is_current

__all__ = ["CapturedLosses"]

MOST = 16
"""Maximum number of graphs. The losses of further batch shapes are computed without a graph."""


@dataclass(eq=False)
class _Graph:
    """A captured loss: the function that replays it, the tensors of its batch, and the result."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    result: Tensor


class CapturedLosses:
    """Compute the losses of batches in several evaluations, each with other weights.

    A graph is captured when a batch shape is evaluated for the second time, so that a run with one evaluation
    captures nothing. A graph runs the same kernels as the first evaluation, so the losses are the same.
    All graphs share one memory pool. After a failed capture, no graphs are used.

    loss: a function that returns the loss of a batch, which is on the device of the model.
    """

    def __init__(self, loss: Callable[[Any], Tensor]):
        self._loss, self._failed = loss, False
        self._once: set[Any] = set()
        self._graphs: dict[Any, _Graph] = {}
        self._pool: Any = None

    def of(self, batch: Any) -> Tensor:
        """Return the loss of a batch, whose tensors are on the device of the model."""
        device = next(tensors_in(batch)).device
        if self._failed or not enabled() or not is_current(device):
            return self._loss(batch)
        shape = shape_of(batch, device)
        if shape not in self._graphs:
            if shape not in self._once or len(self._graphs) >= MOST:
                self._once.add(shape)
                return self._loss(batch)
            try:
                self._graphs[shape] = self._capture(batch, device)
            except Exception:  # for example, if the model synchronises with the device
                self._failed, self._graphs, self._pool = True, {}, None
                graphs.release_generator(device)
                return self._loss(batch)
        graph = self._graphs[shape]
        copy_all(graph.inputs, list(tensors_in(batch)))
        graph.replay()
        return graph.result.clone()

    def _capture(self, batch: Any, device: torch.device) -> _Graph:
        if self._pool is None:
            self._pool = graphs.new_pool()
        batch = copied(batch)
        replay, result = graphs.recorded(lambda: self._loss(batch), device, self._pool, 1)
        return _Graph(replay, list(tensors_in(batch)), result)
