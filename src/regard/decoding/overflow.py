"""float32_copy(): decode again in float32 if the activations of a float16 model overflow.

The largest float16 number is 65504. A larger activation becomes inf, and the scores become NaN. Whether this
has happened is only checked in the result of a search, so that no step waits for the device.
"""

from __future__ import annotations

import copy
import warnings

import torch

from regard.errors import RegardWarning
from regard.models.base import Model

__all__ = ["float32_copy"]


def float32_copy(model: Model) -> Model | None:
    """Return a copy of a float16 model in float32, and warn about the overflow; None for another dtype.

    Each call makes a new copy, so that it has the current weights.
    """
    if next(model.parameters(), torch.empty(0)).dtype != torch.float16:
        return None
    problem = "activations of the model are too large for float16, so the search is repeated in float32"
    hint = 'load the model with precision="bfloat16" or "float32" (--precision) to avoid this'
    warnings.warn(f"{problem}\nhint: {hint}", RegardWarning, stacklevel=2)
    return copy.deepcopy(model).float()
