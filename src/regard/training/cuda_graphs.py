"""Capture: the loss of a batch and its gradients as one CUDA graph for each shape, launched as a whole.

A recurrent model is thousands of small kernels a step, each of them launched from Python. A graph is captured
at the first sight of a shape, and replayed for every batch of it, the first included: whether a shape was
seen before makes no difference to a run that is resumed.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.kernels.kernel_choice import is_current
from regard.training.settings import Training
from regard.training.task import Loss, Task

__all__ = ["Captured", "Uncaptured", "capture_chosen", "shape_of", "tensors_in", "uncollected"]

Made = TypeVar("Made")

WARM_UPS = 2
"""How often a shape runs before it is captured, so that libraries have chosen their kernels."""


class Uncaptured(Exception):
    """A step could not be captured; the ordinary one is as right."""


def capture_chosen(settings: Training, task: Task, device: str, world: int = 1) -> tuple[bool, str]:
    """Whether the steps of a training are captured, and what there is to say of it where they are not.

    device: its kind. world: how many processes there are.

    >>> from regard.training.settings import Training
    >>> capture_chosen(Training(capture=False), Task, "cuda")
    (False, '')
    """
    if settings.capture is False or (
        settings.capture == "auto" and not (device == "cuda" and task.small_steps)
    ):
        return False, ""
    reasons = {
        f"CUDA graphs are captured on cuda, and this is {device}": device != "cuda",
        "a compiled step launches few kernels as it is": settings.compile,
        "processes that train together exchange gradients within a step": world > 1,
        task.uncapturable: bool(task.uncapturable),
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    return not why, f"steps are not captured: {why}" if why else ""


@dataclass(eq=False)
class _Graph:
    """A captured step: how it is run, what it reads and leaves behind each time, and which parameters have no
    part in it."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    loss: Loss
    unused: frozenset[int]


class Captured:
    """Runs batches through graphs and adds their gradients to the parameters.

    objective: from a batch to its Loss. most: how many graphs are held; the one that was used longest ago is
    dropped for another. They share one pool of memory, and one place for gradients.
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
        """The loss of a batch, the gradient of factor times it added; raises Uncaptured where that fails."""
        graph = self._graph(batch, factor)
        for place, given in zip(graph.inputs, tensors_in(batch), strict=True):
            place.copy_(given, non_blocking=True)
        self._factor.fill_(factor)
        self._make_room()
        torch.manual_seed(seed)
        graph.replay()
        with torch.no_grad():
            for number, (parameter, place) in enumerate(zip(self._parameters, self._places, strict=True)):
                if number not in graph.unused:
                    parameter.grad = place if parameter.grad is None else parameter.grad.add_(place)
        shown = {name: value.clone() for name, value in graph.loss.shown.items()}
        return Loss(graph.loss.total.clone(), shown)

    def _make_room(self) -> None:
        """What an earlier batch of the same step left is kept elsewhere: the next one writes over it."""
        for parameter, place in zip(self._parameters, self._places, strict=False):
            if parameter.grad is place:
                parameter.grad = place.clone()

    def _graph(self, batch: Any, factor: float) -> _Graph:
        if not is_current(self._device):
            raise Uncaptured(f"{self._device} is not the current device: torch.cuda.set_device() makes it so")
        shape = shape_of(batch, self._device)
        if shape not in self._graphs:
            self._make_room()
            while len(self._graphs) >= self._most:
                self._graphs.popitem(last=False)
            try:
                self._graphs[shape] = self._capture(batch, factor)
            except Exception as error:  # the ordinary step comes next, and raises again what is wrong itself
                self._give_up()
                raise Uncaptured(f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]) from error
        self._graphs.move_to_end(shape)
        return self._graphs[shape]

    def _give_up(self) -> None:
        """Forget all graphs and what they wrote to; gradients that stand there are kept elsewhere."""
        self._make_room()
        self._graphs.clear()
        self._pool, self._places = None, []
        release_generator(self._device)

    def _capture(self, batch: Any, factor: float) -> _Graph:
        batch = _copied(batch)
        self._factor.fill_(factor)
        if self._pool is None:
            self._pool = new_pool()
        if not self._places:
            self._places = [torch.zeros_like(each) for each in self._parameters]
        before = [each.clone() for each in self._buffers]
        replay, (loss, unused) = recorded(lambda: self._step(batch), self._device, self._pool)
        for buffer, kept in zip(self._buffers, before, strict=True):
            buffer.copy_(kept)  # steps before a capture are not steps of the training: no running mean moves
        return _Graph(replay, list(tensors_in(batch)), loss, unused)

    def _step(self, batch: Any) -> tuple[Loss, frozenset[int]]:
        """The loss, and which parameters have no part in it; the gradients of the others are put in place."""
        loss = self._objective(batch)
        found = torch.autograd.grad(loss.total * self._factor, self._parameters, allow_unused=True)
        pairs = [(place, each) for place, each in zip(self._places, found, strict=True) if each is not None]
        torch._foreach_copy_([place for place, _ in pairs], [each for _, each in pairs])
        unused = frozenset(number for number, each in enumerate(found) if each is None)
        shown = {name: value.detach() for name, value in loss.shown.items()}
        return Loss(loss.total.detach(), shown), unused


def new_pool() -> Any:
    """A pool of memory for graphs that run one after the other."""
    return torch.cuda.graph_pool_handle()


def recorded(step: Callable[[], Made], device: torch.device, pool: Any) -> tuple[Callable[[], None], Made]:
    """A step captured in a graph, after a few that were not: how to replay it, and its results."""
    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step()
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # A capture that fails would leave its own stream as the current one.
    with uncollected(), torch.cuda.stream(main), torch.cuda.graph(graph, pool=pool):
        made = step()
    return graph.replay, made


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected inside a `with`: an old graph that is found among it would end a capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def release_generator(device: torch.device) -> None:
    """Let random numbers be drawn again: a capture that failed still holds the generator."""
    torch.cuda.synchronize(device)
    number = torch.cuda.current_device() if device.index is None else device.index
    fresh = torch.Generator(device)
    torch.cuda.default_generators[number].graphsafe_set_state(fresh.graphsafe_get_state())


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, which is one, or a tuple or dataclass of such, in order.

    >>> [each.shape for each in tensors_in((torch.zeros(2), None, (torch.zeros(3, 1),)))]
    [torch.Size([2]), torch.Size([3, 1])]
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple):
        for each in batch:
            yield from tensors_in(each)
    elif is_dataclass(batch):
        for field in fields(batch):
            yield from tensors_in(getattr(batch, field.name))


def shape_of(batch: Any, device: torch.device) -> Any:
    """What two batches have alike that one graph serves: the shapes of their tensors, and all that is none.

    A graph is given new tensors, and nothing else of a batch: what it cannot be given anew raises Uncaptured.

    >>> shape_of((torch.zeros(2), None, 7), torch.device("cpu"))
    ((torch.Size([2]), torch.float32), None, 7)
    """
    if isinstance(batch, Tensor):
        if batch.device.type != device.type:
            raise Uncaptured(f"a batch has a tensor on {batch.device.type}")
        return batch.shape, batch.dtype
    if isinstance(batch, tuple):
        return tuple(shape_of(each, device) for each in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return tuple(shape_of(getattr(batch, each.name), device) for each in fields(batch))
    if batch is None or isinstance(batch, bool | int | float | str):
        return batch
    raise Uncaptured(
        f"a batch holds a {type(batch).__name__}, and not tensors in tuples or dataclasses alone"
    )


def _copied(batch: Any) -> Any:
    """The same batch with tensors of its own."""
    if isinstance(batch, Tensor):
        return batch.clone()
    if isinstance(batch, tuple):
        copied = [_copied(each) for each in batch]
        return type(batch)(*copied) if hasattr(batch, "_fields") else tuple(copied)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{each.name: _copied(getattr(batch, each.name)) for each in fields(batch)})
    return batch
