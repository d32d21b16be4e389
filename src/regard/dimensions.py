"""Shapes: (T, D) and (B, T, D) brought to (B, H, T, D) and answered in kind; and which dtype holds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.masks.mask import Mask, as_mask, dense

__all__ = ["autocast_on", "lift", "lifted_mask", "lower"]


def lift(tensor: Tensor) -> Tensor:
    """(T, D) or (B, T, D) as (B, H, T, D)."""
    if tensor.dim() == 2:
        return tensor[None, None]
    return tensor[:, None] if tensor.dim() == 3 else tensor


def lower(dims: int) -> Callable[[Tensor], Tensor]:
    """The way back from (B, H, ...) to the sizes the query had."""
    if dims == 4:
        return lambda tensor: tensor
    # Not tensor[:, 0]: its gradient would be copied into zeros.
    return (lambda tensor: tensor.squeeze(1)) if dims == 3 else (lambda tensor: tensor.squeeze(0).squeeze(0))


def lifted_mask(mask: Mask | Tensor | None, dims: int) -> Mask:
    """The mask, a tensor (B, T, S) taken as one mask a sequence where there are no heads."""
    if isinstance(mask, Tensor) and mask.dim() == 3 and dims == 3:
        return dense(mask[:, None])
    return as_mask(mask)


def autocast_on(device: str) -> bool:
    """Whether torch.autocast holds for this kind of device; some kinds do not know it."""
    return device != "meta" and torch.is_autocast_enabled(device)
