"""full_precision(): recurrent states are not rounded to half precision by autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.dimensions import autocast_on

__all__ = ["full_precision"]


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context manager that disables autocast on the device of x.

    A state that is rounded to half precision at every step loses what it stores, and the recurrent layers of
    cuDNN would compute in float16, in which small gradients underflow.

    >>> with torch.autocast("cpu"), full_precision(torch.zeros(1)):
    ...     torch.is_autocast_enabled("cpu")
    False
    """
    device = x.device.type
    return torch.autocast(device, enabled=False) if autocast_on(device) else nullcontext()
