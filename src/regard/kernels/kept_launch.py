"""kept_launch(): launch a kernel again in less time on the host, if only the addresses of tensors differ."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from regard.kernels.direct_launch import DirectLaunch, direct_launch

__all__ = ["kept_launch"]

KEPT = 1024
"""Maximum number of kept launches. When it is reached, all are removed."""

_OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Named arguments of a launch that are not arguments of the kernel."""

_kept: dict[tuple[Any, ...], DirectLaunch] = {}
_lock = threading.Lock()


def kept_launch(
    kernel: Any, programs: int, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Launch a kernel with a grid of `programs` programs.

    tensors, numbers: its first arguments. named: its other arguments in their order, and launch options.

    The launch is kept for calls with the same numbers, and with tensors of the same dtypes and alignment.
    """
    device = tensors[0].device
    addresses = [each.data_ptr() for each in tensors]
    kinds = [(each.dtype, address % 16) for each, address in zip(tensors, addresses, strict=True)]
    signature = (kernel.__name__, programs, numbers, tuple(named.values()), device, *kinds)
    direct = _kept.get(signature)
    if direct is not None and device.index == torch.cuda.current_device():
        with _lock:
            for i, address in enumerate(addresses):
                direct.slots[i] = address
            direct.run(torch._C._cuda_getCurrentRawStream(device.index))
        return
    launched = kernel[(programs,)](*tensors, *numbers, **named)
    if launched is None:  # interpreted, or only compiled (compile_ahead.py)
        return
    others = (value for name, value in named.items() if name not in _OPTIONS)
    found = direct_launch(launched, (programs, 1, 1), [*[None] * len(tensors), *numbers, *others])
    if found is not None and found[1][: len(tensors)] == list(range(len(tensors))):
        if len(_kept) >= KEPT:
            _kept.clear()
        _kept[signature] = found[0]
