"""BatchStream: the batches of all epochs, read in order, or prepared ahead by a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

import torch

from regard.data.packed_tensors import map_tensors, pack, tensors_in
from regard.training.task import Task

AHEAD = {"cuda": 64}
"""Number of batches that a thread prepares ahead, for each device type. The default is 0, because on a CPU
the thread would take time from the training steps. With few batches ahead, a GPU would wait at the end of
each epoch, when the pairs of the next epoch are sorted into batches."""

WAIT = 0.1
"""Seconds after which the thread checks again whether the stream was closed."""


class Position(NamedTuple):
    """A position in the data: the index of an epoch, and the index of the next batch in this epoch."""

    epoch: int
    batch: int


class BatchStream:
    """Yield the batches of an epoch from a batch on, then of all later epochs.

    task: the task. The batches come from task.batches().
    position: the position of the first batch.

    position is always the position after the batches that next() has returned. Batches that a thread has
    prepared ahead do not count. So a checkpoint can save this position.

    After start(), a thread prepares batches ahead. An error in task.batches() is raised by next(), at the
    batch that has the error.
    """

    def __init__(self, task: Task, position: Position):
        self.task, self.position = task, position
        self._source: Iterator[tuple[Any, Position]] | None = None
        self._queue: Queue[tuple[Any, Position] | Exception] = Queue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._pinning = threading.Lock()
        self._ahead, self._device = 0, torch.device("cpu")

    def start(self, device: torch.device) -> None:
        """From now on, prepare batches in a thread, if Speed.ahead is True and the device type is in AHEAD.

        device: the device that batches are used on. For a GPU, the tensors are copied to pinned memory, so
            that the host does not wait when it copies them to the GPU.
        """
        self.close()
        self._ahead, self._device = AHEAD.get(device.type, 0) if self.task.speed.ahead else 0, device

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Any:
        if not self._ahead:
            if self._source is None:
                self._source = self._batches(self.position)
            batch, self.position = next(self._source)
            return batch
        if self._thread is None:
            self._queue = Queue(self._ahead)
            self._closed = threading.Event()
            arguments = self._batches(self.position), self._queue, self._closed, self._device, self._pinning
            self._thread = threading.Thread(target=_fill, args=arguments, daemon=True, name="batches")
            self._thread.start()
        received = self._queue.get()
        if isinstance(received, Exception):
            self.close()
            raise received
        batch, self.position = received
        return batch

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the `with` block, the thread does not allocate pinned memory.

        This would be an error while another part of the program captures a CUDA graph, as decoding does.
        """
        with self._pinning:
            yield

    def close(self) -> None:
        """End the thread. The batches that it has prepared ahead are dropped; next() computes them again."""
        self._closed.set()
        if self._thread is not None:
            while self._thread.is_alive():
                try:
                    self._queue.get_nowait()
                except Empty:
                    self._thread.join(WAIT)
            self._thread = None
        self._source, self._ahead = None, 0

    def _batches(self, position: Position) -> Iterator[tuple[Any, Position]]:
        """Yield each batch with the position after it."""
        epoch, number = position
        while True:
            for batch in self.task.batches(epoch, number):
                number += 1
                yield batch, Position(epoch, number)
            epoch, number = epoch + 1, 0


def _fill(
    source: Iterator[tuple[Any, Position]],
    queue: Queue[tuple[Any, Position] | Exception],
    closed: threading.Event,
    device: torch.device,
    pinning: threading.Lock,
) -> None:
    """Put batches into a queue until `closed` is set. An error is put into the queue, too."""
    pins = device.type == "cuda"
    if pins and device.index is not None:
        torch.cuda.set_device(device)
    while not closed.is_set():
        item: tuple[Any, Position] | Exception
        try:
            batch, position = next(source)
            with pinning:
                item = (pinned(batch) if pins else batch), position
        except Exception as error:  # raised again by BatchStream.__next__()
            item = error
        while not closed.is_set():
            try:
                queue.put(item, timeout=WAIT)
                break
            except Full:
                continue
        if isinstance(item, Exception):
            return


def pinned(batch: Any) -> Any:
    """Return a copy of a batch with its CPU tensors in pinned memory, as parts of one buffer.

    A batch is a tensor, or a tuple or dataclass of batches. Values of other types are not changed.
    """
    tensors = [each for each in tensors_in(batch) if each.device.type == "cpu"]
    parts = iter(pack(tensors, pin_memory=True))
    return map_tensors(lambda each: next(parts) if each.device.type == "cpu" else each, batch)
