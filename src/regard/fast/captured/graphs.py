"""CUDA graphs: whether training steps are captured, and how a function is captured and replayed.

A recurrent model launches thousands of small kernels per step from Python. A graph launches them at once. A
graph is captured at the first batch of each shape. The gradients always come from a replay, also for this
first batch. So a resumed run, which captures its graphs again, computes exactly the same gradients.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.data.batch import map_tensors, pack, tensors_in
from regard.fast import enabled
from regard.training.settings import Training
from regard.training.task import Capture

__all__ = [
    "WARM_UPS",
    "Uncaptured",
    "capture_chosen",
    "copied",
    "new_pool",
    "recorded",
    "release_generator",
    "shape_of",
    "uncollected",
]

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


def capture_chosen(settings: Training, uncapturable: str, device: str, world: int = 1) -> Capture:
    """Decide whether training steps are captured in CUDA graphs.

    If the settings request CUDA graphs, but they cannot be used, the field `problem` of the result says why.

    uncapturable: why the loss cannot be captured (Speed.uncapturable), otherwise "".
    device: the device type, such as "cuda".
    world: number of processes.

    >>> from regard.training.settings import Training
    >>> capture_chosen(Training(capture=False), "", "cuda")
    Capture(chosen=False, problem='')
    """
    if settings.capture is False or (settings.capture == "auto" and device != "cuda"):
        return Capture(False)
    reasons = {
        "REGARD_FAST=0 is set": not enabled(),
        f"CUDA graphs need the device cuda, not {device}": device != "cuda",
        "several processes with CUDA graphs need training.compile = false": world > 1 and settings.compile,
        'training.optimizer is "muon"': settings.optimizer == "muon",
        uncapturable: bool(uncapturable),
    }
    reason = next((text for text, applies in reasons.items() if applies), "")
    return Capture(not reason, f"steps are not captured in CUDA graphs: {reason}" if reason else "")


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
