"""Processes: one, or as many as torchrun started, on one machine or several."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from regard.errors import ArgumentError, message

__all__ = ["Processes", "joined"]

PATIENCE = datetime.timedelta(hours=6)
"""How long the others wait for the one that evaluates or encodes."""


@dataclass(frozen=True)
class Processes:
    """Who this process is among those that train together.

    >>> alone = Processes()
    >>> alone.first, alone.share({"a": 1}), alone.sum(torch.ones(2))
    (True, {'a': 1}, tensor([1., 1.]))
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of what each process has."""
        if self.world > 1:
            values = values.clone()
            distributed.all_reduce(values)
        return values

    def share(self, value: Any) -> Any:
        """What the first process has, for all: numbers, text, lists and dicts, sent as JSON."""
        if self.world == 1:
            return value
        content = bytearray(json.dumps(value).encode() if self.first else b"")
        size = torch.tensor([len(content)])
        distributed.broadcast(size, 0)
        content = content or bytearray(int(size))
        distributed.broadcast(torch.frombuffer(content, dtype=torch.uint8), 0)
        return json.loads(content)

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.world > 1:
            distributed.barrier()


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started, or be the only one.

    device: "cpu" or "cuda". What is on a GPU goes by NCCL, all else by gloo.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in os.environ:
        yield Processes()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        if local >= torch.cuda.device_count():
            problem = f"process {local} of this machine has no GPU: there are {torch.cuda.device_count()}"
            hint = f"torchrun --nproc-per-node={torch.cuda.device_count()}, or --device cpu"
            raise ArgumentError(message("torchrun", problem, hint=hint))
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), local)
    finally:
        distributed.destroy_process_group()
