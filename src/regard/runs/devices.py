"""Devices: check and choose the device of a model; and the limit of the memory, which `ulimit -v` sets."""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from regard.errors import ArgumentError, Setting, UnknownName, message

if TYPE_CHECKING:
    import torch

try:  # here and not in memory_limit(): when memory is used up, the import would fail
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


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
    import torch

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

    import torch

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


LEAST = 10**9
"""Bytes that PyTorch needs for one thread. With less, libgomp ends the process when it starts a thread."""


def memory_limit() -> int | None:
    """Return the limit in bytes, or None if there is no limit."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_memory_limit() -> None:
    """Raise ArgumentError if the limit is too small for PyTorch."""
    limit = memory_limit()
    if limit is not None and limit < LEAST:
        problem = f"the memory of this process is limited to {_megabytes(limit)}"
        hint = "increase the limit: ulimit -v unlimited"
        raise ArgumentError(message("regard", problem, expected=f"at least {_megabytes(LEAST)}", hint=hint))


def memory_limit_hint(error: BaseException) -> str:
    """Return a hint for an error that the limit may have caused. "" without a limit, and for other errors."""
    limit = memory_limit()
    if limit is None or not isinstance(error, MemoryError | ImportError | OSError | RuntimeError):
        return ""
    return f"hint: the memory of this process is limited to {_megabytes(limit)} (ulimit -v)"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
