"""width_for(): the width of a recurrent model with a given number of parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["width_for"]

WIDEST = 8192
"""The largest width that width_for() returns."""


def width_for(
    cell: str,
    sizes: tuple[int, int],
    depth: int,
    parameters: int | None,
    like: Callable[..., nn.Module],
) -> int:
    """Return the width with which a recurrent model has about `parameters` parameters.

    cell: "lstm" or "gru".
    sizes: size of the input and of the output.
    depth: number of layers.
    parameters: None for the number of parameters of like(*sizes).
    """
    (input_size, target_size), wanted = sizes, parameters
    if not wanted:
        with torch.device("meta"):  # allocates nothing
            wanted = sum(each.numel() for each in like(*sizes).parameters())
    gates = {"lstm": 4, "gru": 3}[cell]

    def size(width: int) -> int:
        inputs = input_size + (depth - 1) * width
        return gates * width * (inputs + depth * (width + 2)) + target_size * (width + 1)

    low, high = 1, WIDEST
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if size(middle) < wanted else (low, middle)
    return min((max(low - 1, 1), low), key=lambda width: abs(size(width) - wanted))
