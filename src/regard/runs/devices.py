"""Devices: where a model is trained and run."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["choose_device"]


def choose_device(name: str) -> str:
    """The device of this name, if it is here; auto is the best that is."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, there in found.items() if there)
    kind = name.partition(":")[0]
    if kind not in found:
        raise UnknownName("device", name, [*found, "auto"])
    if not found[kind]:
        hint = f"--device auto takes {choose_device('auto')} here; regard doctor tells what there is"
        raise ArgumentError(message(f"device {name}", "PyTorch finds no such device", hint=hint))
    number = name.partition(":")[2]
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdigit() and int(number) < count):
        problem = f"there {'is' if count == 1 else 'are'} {count} of this kind here, counted from 0"
        raise ArgumentError(message(f"device {name}", problem, hint=f"--device {kind}"))
    return name
