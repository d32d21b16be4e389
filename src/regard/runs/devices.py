"""Devices: check and choose the device of a model."""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress

import torch

from regard.errors import ArgumentError, Setting, UnknownName, message
from regard.runs.memory_limit import check_memory_limit


def choose_device(name: str | torch.device) -> str:
    """Return the name of a device for torch.device(). Raise an error if the device is not available.

    Also raise an error if the memory limit of this process is too small for PyTorch.

    name: a name such as "cpu", "cuda:1" or "mps", which is returned unchanged, or a torch.device. "gpu"
        means "cuda", and "gpu:1" means "cuda:1". "auto" means the first available device of "cuda", "mps" and
        "cpu".

    >>> choose_device("cpu")
    'cpu'
    """
    check_memory_limit()
    name = str(name)
    kind, colon, number = name.partition(":")
    name = f"cuda{colon}{number}" if kind == "gpu" else name
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, exists in available.items() if exists)
    kind = name.partition(":")[0]
    if kind not in available:
        raise UnknownName("device", name, [*available, "gpu", "auto"])
    if not available[kind]:
        here = f", which is {choose_device('auto')} here; regard doctor lists the devices"
        hint = ("use ", Setting("load", "device", "auto"), here)
        raise ArgumentError(message(f"device {name}", f"torch finds no {kind} device", hint=hint))
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdigit() and int(number) < count):
        problem = (
            f"there {'is' if count == 1 else 'are'} {count} {kind} device{'s' * (count != 1)}, counted from 0"
        )
        raise ArgumentError(
            message(f"device {name}", problem, hint=("use ", Setting("load", "device", kind)))
        )
    return name


def start_device(device: str, local: int = 0) -> None:
    """Import modules of PyTorch and initialise CUDA in threads, because each of them takes seconds.

    Meanwhile, the data are read. The modules are those that every optimizer imports when it is created.

    local: the index of the GPU if `device` has none: the index of this process on this machine.
    """

    def import_modules() -> None:
        with suppress(Exception):  # the training raises the error again
            importlib.import_module("torch._dynamo")  # 900 modules

    threading.Thread(target=import_modules, daemon=True, name="import").start()
    chosen = torch.device(device)
    if chosen.type != "cuda":
        return
    index = local if chosen.index is None else chosen.index

    def start() -> None:
        with suppress(RuntimeError):  # the training raises the error again
            ones = torch.ones(8, 8, device=torch.device("cuda", index))
            torch.mm(ones, ones)

    threading.Thread(target=start, daemon=True, name="start of CUDA").start()
