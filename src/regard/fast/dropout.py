"""FastDropout: dropout on a CPU with fewer random numbers, in training.

PyTorch draws a number of 32 bits for each element on a CPU, one after another. Here, a draw of 64 bits gives
four elements 16 bits each, which takes a fifth of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.dimensions import in_transform
from regard.fast.twin import Twin
from regard.kernels import by_kernel

LOWEST, LEVELS = -(2**15), 2**16


class FastDropout(nn.Dropout, Twin):
    """The twin of nn.Dropout. It draws other random numbers, with the same probability up to 2^-17."""

    def forward(self, input: Tensor) -> Tensor:
        drops = self.training and 0 < self.p < 1 and input.device.type == "cpu" and not by_kernel(input)
        if not drops or torch.compiler.is_compiling() or in_transform() or input.is_complex():
            return nn.Dropout.forward(self, input)
        result = input * keep_mask(input, self.p)
        return input.copy_(result) if self.inplace else result


def keep_mask(like: Tensor, rate: float) -> Tensor:
    """Return a random tensor like `like`: each element is 0 with probability `rate`, or 1 / (1 - rate).

    >>> mask = keep_mask(torch.empty(10_000), 0.25)
    >>> mask.unique().tolist(), abs(mask.mean().item() - 1) < 0.05
    ([0.0, 1.3333333730697632], True)
    """
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    mask = torch.empty(like.shape, dtype=like.dtype)
    bits = draws.view(torch.int16)[: like.numel()].view(like.shape)
    return torch.ge(bits, LOWEST + round(rate * LEVELS), out=mask).mul_(1 / (1 - rate))
