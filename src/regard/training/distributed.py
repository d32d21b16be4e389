"""The processes of distributed training: one process, or the processes that torchrun has started."""

from __future__ import annotations

import datetime
import gc
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, distributed

from regard.errors import ArgumentError, LostProcess, message

PATIENCE = datetime.timedelta(hours=6)
"""Timeout of collective operations. It is long because all processes wait while the first process evaluates
the model or encodes the data."""


@dataclass(frozen=True)
class Processes:
    """The rank of this process, and the communication with the other processes.

    rank: index of this process, from 0.
    world: number of processes.
    local: index of this process among the processes on the same machine, from 0.

    >>> alone = Processes()
    >>> alone.first, alone.share({"a": 1}), alone.sum(torch.ones(2))
    (True, {'a': 1}, tensor([1., 1.]))
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and logs."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes (all-reduce). Every process must call this."""
        if self.world > 1:
            values = values.clone()
            distributed.all_reduce(values)
        return values

    def sum_(self, values: Tensor) -> None:
        """Replace a tensor by its sum over all processes, without waiting for a GPU."""
        if self.world > 1:
            distributed.all_reduce(values)

    def share(self, value: Any, rank: int = 0) -> Any:
        """Return the `value` of one process in every process (broadcast). It is sent as JSON.

        rank: the process whose value is returned. Default: the first process.
        """
        if self.world == 1:
            return value
        content = bytearray(json.dumps(value).encode() if self.rank == rank else b"")
        size = torch.tensor([len(content)])
        distributed.broadcast(size, rank)
        content = content or bytearray(int(size))
        distributed.broadcast(torch.frombuffer(content, dtype=torch.uint8), rank)
        return json.loads(content)

    def wait(self) -> None:
        """Wait until all processes have called wait() (barrier)."""
        if self.world > 1:
            distributed.barrier()


def _lost(problem: str) -> LostProcess:
    """Return the error for a training that ends because another process has ended.

    torchrun then sends SIGTERM to this process. It is ignored, so that the error can be reported.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hint = "to continue from the last checkpoint, run the same command with --resume"
    return LostProcess(message("torchrun", f"{problem}: it has probably ended", hint=hint))


@contextmanager
def _naming_lost_processes(rank: int) -> Iterator[None]:
    """Raise LostProcess if the connection to another process is lost.

    torchrun sends SIGTERM to this process then, often before it notices the lost connection, or while the
    error is raised. So in the first process, SIGTERM raises LostProcess too. In the others, it raises
    SystemExit: the first process prints the error that all have. While an error is raised, SIGTERM does
    nothing. The trainer handles SIGTERM itself.

    rank: index of this process.
    """
    stopped = [False]

    def stop(number: int, frame: FrameType | None) -> None:
        stopped[0] = True
        if sys.exc_info()[0] is None:
            if rank == 0:
                raise _lost("torchrun has stopped this process because of another one")
            raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except Exception as error:
        # Gloo raises plain RuntimeError, so the function that has raised the error is compared: a collective
        # operation, or the backward pass, in which DistributedDataParallel exchanges gradients.
        place, trace = "", error.__traceback__
        while trace is not None:
            place, trace = str(trace.tb_frame.f_globals.get("__name__", "")), trace.tb_next
        communicates = place.startswith("torch.distributed") or place == "torch.autograd.graph"
        if isinstance(error, distributed.DistError) or (type(error) is RuntimeError and communicates):
            raise _lost("the connection to another process of this training is lost") from error
        if stopped[0] and rank != 0:
            raise SystemExit(128 + signal.SIGTERM) from error
        raise
    finally:
        if main and signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Join the process group of torchrun during the `with` block. Without torchrun, there is one process.

    device: "cpu" or "cuda". NCCL exchanges GPU tensors, gloo exchanges CPU tensors.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in os.environ:
        yield Processes()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        if local >= torch.cuda.device_count():
            problem = f"process {local} has no GPU: this machine has {torch.cuda.device_count()} GPUs"
            hint = f"use torchrun --nproc-per-node={torch.cuda.device_count()}, or --device cpu"
            raise ArgumentError(message("torchrun", problem, hint=hint))
        torch.cuda.set_device(local)
    # DistributedDataParallel imports it. If a process group exists then, its threads never end, and a thread
    # that frees a tensor while Python exits aborts the process.
    importlib.import_module("torch._dynamo")
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=PATIENCE)
    try:
        rank = distributed.get_rank()
        with _naming_lost_processes(rank):
            yield Processes(rank, distributed.get_world_size(), local)
    finally:
        gc.collect()  # reference cycles with DistributedDataParallel, which would keep the threads alive
        distributed.destroy_process_group()
