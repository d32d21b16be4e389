"""CUDA graphs: the forward and backward pass of a batch, captured once per batch shape and replayed.

A recurrent model launches thousands of small kernels per step from Python. A graph launches them at once. A
graph is captured at the first batch of each shape. The gradients always come from a replay, also for this
first batch. So a resumed run, which captures its graphs again, computes exactly the same gradients.
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

from regard.data.packed_tensors import copy_all, pack
from regard.kernels.choice import is_current
from regard.training.progress import seed_generators
from regard.training.settings import Training
from regard.training.task import Capture, Loss, Task

__all__ = [
    "Captured", "Uncaptured", "capture_chosen", "copied", "map_tensors", "shape_of", "tensors_in",
    "uncollected",
]  # fmt: skip

Result = TypeVar("Result")

WARM_UPS = 2
"""Number of executions of a step before it is captured for the first time. During these executions, libraries
allocate memory and select their kernels. For later shapes of a batch, one execution is enough."""


class Uncaptured(Exception):
    """Raised if a training step cannot be captured in a CUDA graph.

    The caller can execute the step without a graph instead, with the same results.
    """

    @classmethod
    def after(cls, error: BaseException) -> Uncaptured:
        """Return the exception to raise after an error during a capture, with the first line of its message.

        The end of a failed capture raises an error of its own, which hides the first error.
        """
        while error.__context__ is not None:
            error = error.__context__
        return cls(f"{type(error).__name__}: {str(error).strip()}".splitlines()[0])


def capture_chosen(settings: Training, task: Task, device: str, world: int = 1) -> Capture:
    """Decide whether training steps are captured in CUDA graphs.

    If the settings request CUDA graphs, but they cannot be used, the field `problem` of the result says why.

    device: the device type, such as "cuda".
    world: number of processes.

    >>> from regard.training.settings import Training
    >>> capture_chosen(Training(capture=False), Task, "cuda")
    Capture(chosen=False, problem='')
    """
    if settings.capture is False or (settings.capture == "auto" and device != "cuda"):
        return Capture(False)
    reasons = {
        f"CUDA graphs need the device cuda, not {device}": device != "cuda",
        "several processes with CUDA graphs need training.compile = false": world > 1 and settings.compile,
        task.uncapturable: bool(task.uncapturable),
    }
    reason = next((text for text, applies in reasons.items() if applies), "")
    return Capture(not reason, f"steps are not captured in CUDA graphs: {reason}" if reason else "")


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


class Captured:
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
        release_generator(self._device)

    def _capture(self, batch: Any, factor: float) -> _Graph:
        batch = copied(batch)
        self._factor.fill_(factor)
        if self._pool is None:
            self._pool = new_pool()
        if not self._places:
            self._places = [torch.zeros_like(each) for each in self._parameters]
        before = [each.clone() for each in self._buffers]
        replay, (loss, unused) = recorded(lambda: self._step(batch), self._device, self._pool)
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


def new_pool() -> Any:
    """Return a new CUDA memory pool, which several graphs can share if only one is replayed at a time."""
    return torch.cuda.graph_pool_handle()


def recorded(
    step: Callable[[], Result], device: torch.device, pool: Any, warm_ups: int = WARM_UPS
) -> tuple[Callable[[], None], Result]:
    """Call a function `warm_ups` times, then capture the kernels that it launches in a CUDA graph.

    Returns a function that replays the graph, and the result of the captured call. Each replay overwrites the
    tensors in this result.

    step: the function, such as the forward and backward pass of a batch.
    pool: the result of new_pool().
    """
    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(warm_ups):
            step()
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Without stream(main), the stream of a failed capture would stay the current stream. "thread_local": the
    # thread that prepares batches may allocate pinned memory during the capture.
    capture = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    with uncollected(), torch.cuda.stream(main), capture:
        results = step()
    return graph.replay, results


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable Python's garbage collection inside the `with` block, in which a CUDA graph is captured.

    Otherwise, garbage collection could delete an old graph during the capture, and the capture would fail.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def release_generator(device: torch.device) -> None:
    """Reset the random number generator of a GPU, which a failed capture leaves in capture mode."""
    torch.cuda.synchronize(device)
    number = torch.cuda.current_device() if device.index is None else device.index
    fresh = torch.Generator(device)
    torch.cuda.default_generators[number].graphsafe_set_state(fresh.graphsafe_get_state())


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in order. A batch is a tensor, or a tuple or dataclass of batches.

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
    """Return a dict key for a batch: batches with equal keys can use the same CUDA graph.

    For a tensor, the key contains only the shape and dtype, because a graph can be replayed with other
    tensors of the same shape. All other values are fixed in a graph, so the key contains the values
    themselves. Such a value may be None, bool, int, float or str. Other types raise Uncaptured.

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
        f"a batch has a value of type {type(batch).__name__}; expected tensors in tuples or dataclasses"
    )


def copied(batch: Any) -> Any:
    """Return a copy of a batch, from which a graph reads its inputs. Its tensors are parts of one buffer."""
    parts = iter(pack(list(tensors_in(batch))))
    return map_tensors(lambda each: next(parts), batch)


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return a copy of a batch with function(tensor) for each tensor, in the order of tensors_in()."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple):
        parts = [map_tensors(function, each) for each in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if is_dataclass(batch) and not isinstance(batch, type):
        changed = {each.name: map_tensors(function, getattr(batch, each.name)) for each in fields(batch)}
        return replace(batch, **changed)
    return batch
