"""CUDA graphs that compute the gradients of several stacked models, captured once per batch shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data.packed_tensors import tensors_in
from regard.fast.captured import graphs
from regard.fast.captured.graphs import Uncaptured, shape_of
from regard.training.stacked_seeds import LossOf, StackedSeeds
from regard.training.task import Loss

__all__ = ["StackedGraphs"]


class _Graph(NamedTuple):
    """A CUDA graph that computes the gradients of one batch for each of the stacked models.

    replay: runs the graph.
    inputs: the tensors that the graph reads. The batches are copied to these tensors before replay().
    gradients, loss: the tensors with the results after replay().
    """

    replay: Callable[[], None]
    inputs: list[Tensor]
    gradients: dict[str, Tensor]
    loss: Loss


class StackedGraphs:
    """Compute StackedSeeds.gradients() of all models with CUDA graphs, one for each shape of the batches.

    stacked: the stacked models. The values of their parameters may change between calls, but not their
        addresses in memory, because a CUDA graph reads from fixed addresses.
    loss: a function of (model, batch) that returns a Loss. It must not use random numbers.
    most: maximum number of graphs. If there are too many, the least recently used graph is deleted.
    """

    def __init__(self, stacked: StackedSeeds, loss: LossOf, device: torch.device, most: int):
        self._stacked, self._loss, self._device, self._most = stacked, loss, device, most
        self._factors = torch.ones(len(stacked), device=device)
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._pool: Any = None

    def gradients(self, batches: Sequence[Any], factor: Tensor) -> tuple[dict[str, Tensor], Loss]:
        """Return the gradients of factor * loss by parameter name, each (n, ...), and the losses, each (n,).

        batches: one batch for each of the n models, all of the same shapes.
        factor: (n,), one number for each model.

        Raises Uncaptured if no CUDA graph can be captured for batches of these shapes.
        """
        graph = self._graph(batches)
        values = [each for batch in batches for each in tensors_in(batch)]
        for buffer, value in zip(graph.inputs, values, strict=True):
            buffer.copy_(value, non_blocking=True)
        self._factors.copy_(factor)
        graph.replay()
        named = {name: each.clone() for name, each in graph.gradients.items()}
        shown = {name: each.clone() for name, each in graph.loss.shown.items()}
        return named, Loss(graph.loss.total.clone(), shown, tuple(each.clone() for each in graph.loss.state))

    def _graph(self, batches: Sequence[Any]) -> _Graph:
        shape = shape_of(tuple(batches), self._device)
        if shape not in self._graphs:
            while len(self._graphs) >= self._most:
                self._graphs.popitem(last=False)
            try:
                self._graphs[shape] = self._capture(batches)
            except Exception as error:  # the caller computes the step without a graph
                self._graphs.clear()
                graphs.release_generator(self._device)
                raise Uncaptured.after(error) from error
        self._graphs.move_to_end(shape)
        return self._graphs[shape]

    def _capture(self, batches: Sequence[Any]) -> _Graph:
        own = graphs.copied(tuple(batches))
        if self._pool is None:
            self._pool = graphs.new_pool()

        def step() -> tuple[dict[str, Tensor], Loss]:
            return self._stacked.gradients(self._loss, own, seeds=None, factor=self._factors)

        replay, (gradients, loss) = graphs.recorded(step, self._device, self._pool)
        return _Graph(replay, list(tensors_in(own)), gradients, loss)
