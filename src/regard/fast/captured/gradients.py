"""CapturedGradients: the forward and backward pass of a batch as a CUDA graph, one graph for each shape.

The training of several seeds uses it, whose trainers update the weights themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.packed_tensors import copy_all, tensors_in
from regard.fast.captured import graphs
from regard.fast.captured.graphs import Uncaptured, copied, shape_of
from regard.kernels import is_current
from regard.training.progress import seed_generators
from regard.training.task import Loss

__all__ = ["CapturedGradients"]


@dataclass(eq=False)
class _Graph:
    """A training step that was captured in a CUDA graph.

    replay: a function that executes the step again.
    inputs: the tensors that a batch is copied to before a replay.
    loss: the loss of the step, overwritten by each replay.
    unused: the indices of the parameters that have no gradient.
    """

    replay: Callable[[], None]
    inputs: list[Tensor]
    loss: Loss
    unused: frozenset[int]


class CapturedGradients:
    """Compute the losses of batches with CUDA graphs, and add the gradients to the parameters.

    There is one graph for each shape of a batch.

    objective: a function that computes the Loss of a batch.
    most: maximum number of graphs. If there are too many, the least recently used graph is deleted.

    All graphs share one memory pool and one set of gradient buffers.
    """

    def __init__(self, objective: Callable[[Any], Loss], model: nn.Module, device: torch.device, most: int):
        self._objective, self._most, self._device = objective, most, device
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._buffers = list(model.buffers())
        self._factor = torch.zeros((), device=device)
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._places: list[Tensor] = []
        self._pool: Any = None

    def run(self, batch: Any, seed: int, factor: float) -> Loss:
        """Return the loss of a batch, and add the gradient of factor * loss to the parameters.

        Raise Uncaptured if the forward and backward pass of the batch cannot be captured.

        seed: the random seed that is set before the forward pass.
        """
        graph = self._graph(batch, factor)
        copy_all(graph.inputs, list(tensors_in(batch)))
        self._factor.fill_(factor)
        self._release_buffers()
        seed_generators(seed, self._device)
        graph.replay()
        with torch.no_grad():
            for number, (parameter, place) in enumerate(zip(self._parameters, self._places, strict=True)):
                if number not in graph.unused:
                    parameter.grad = place if parameter.grad is None else parameter.grad.add_(place)
        shown = {name: value.clone() for name, value in graph.loss.shown.items()}
        return Loss(graph.loss.total.clone(), shown, tuple(each.clone() for each in graph.loss.state))

    def _release_buffers(self) -> None:
        """Replace each parameter.grad that is a shared gradient buffer by a copy of this buffer.

        Otherwise, the next replay of a graph would overwrite these gradients.
        """
        for parameter, place in zip(self._parameters, self._places, strict=False):
            if parameter.grad is place:
                parameter.grad = place.clone()

    def _graph(self, batch: Any, factor: float) -> _Graph:
        if not is_current(self._device):
            raise Uncaptured(f"{self._device} is not the current device; call torch.cuda.set_device() first")
        shape = shape_of(batch, self._device)
        if shape not in self._graphs:
            self._release_buffers()
            while len(self._graphs) >= self._most:
                self._graphs.popitem(last=False)
            try:
                self._graphs[shape] = self._capture(batch, factor)
            except Exception as error:  # the caller executes the step without a graph
                self._give_up()
                raise Uncaptured.after(error) from error
        self._graphs.move_to_end(shape)
        return self._graphs[shape]

    def _give_up(self) -> None:
        """Delete all graphs and gradient buffers, after a capture has failed.

        Gradients that are still in the buffers are copied first.
        """
        self._release_buffers()
        self._graphs.clear()
        self._pool, self._places = None, []
        graphs.release_generator(self._device)

    def _capture(self, batch: Any, factor: float) -> _Graph:
        batch = copied(batch)
        self._factor.fill_(factor)
        if self._pool is None:
            self._pool = graphs.new_pool()
        if not self._places:
            self._places = [torch.zeros_like(each) for each in self._parameters]
        before = [each.clone() for each in self._buffers]
        replay, (loss, unused) = graphs.recorded(lambda: self._step(batch), self._device, self._pool)
        for buffer, value in zip(self._buffers, before, strict=True):
            buffer.copy_(value)  # undo what the warm-up steps changed, e.g. running means
        return _Graph(replay, list(tensors_in(batch)), loss, unused)

    def _step(self, batch: Any) -> tuple[Loss, frozenset[int]]:
        """Compute the loss of a batch, and write the gradients to the shared gradient buffers.

        Returns the loss, and the indices of the parameters that have no gradient.
        """
        loss = self._objective(batch)
        gradients = torch.autograd.grad(loss.total * self._factor, self._parameters, allow_unused=True)
        pairs = [
            (place, each) for place, each in zip(self._places, gradients, strict=True) if each is not None
        ]
        torch._foreach_copy_([place for place, _ in pairs], [each for _, each in pairs])
        unused = frozenset(number for number, each in enumerate(gradients) if each is None)
        shown = {name: value.detach() for name, value in loss.shown.items()}
        return Loss(loss.total.detach(), shown, tuple(each.detach() for each in loss.state)), unused
