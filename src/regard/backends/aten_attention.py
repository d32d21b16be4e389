"""The attention operators of PyTorch, wrapped as functions with one common signature (Operator).

PyTorch has two forms of each operator. torch.ops.aten.NAME also accepts symbolic arguments, as in
torch.export. torch.NAME takes less time on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Operator", "both_forms", "cpu", "cudnn", "efficient", "flash"]

Operator = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, bool, float], tuple[Tensor, Tensor]]
"""The signature of a kernel: (query, key, value, bias, dropout, is_causal, scale) -> (output, lse)."""

Wrapper = Callable[[Callable[..., Any]], Operator]
"""A function that wraps an aten operator as an Operator, such as flash()."""


def both_forms(wrapper: Wrapper, name: str) -> tuple[Operator, Operator]:
    """Return the operator with this name in both forms: for torch.compile, and for all other calls."""
    operator = getattr(torch.ops.aten, name)
    return wrapper(operator), wrapper(getattr(torch, name, operator))


def cpu(aten: Callable[..., Any]) -> Operator:
    """Wrap _scaled_dot_product_flash_attention_for_cpu, which has no dropout: the argument is ignored."""

    def run(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, is_causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        output, lse = aten(query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale)
        return output, lse

    return run


def cudnn(aten: Callable[..., Any]) -> Operator:
    """Wrap _scaled_dot_product_cudnn_attention."""

    def run(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, is_causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        results = aten(query, key, value, bias, True, dropout, is_causal, False, scale=scale)
        lse = results[1]
        return results[0], lse.squeeze(-1) if lse.dim() == 4 else lse

    return run


def flash(aten: Callable[..., Any]) -> Operator:
    """Wrap _scaled_dot_product_flash_attention, which has no bias: the argument is ignored."""

    def run(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, is_causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        results = aten(query, key, value, dropout, is_causal, False, scale=scale)
        return results[0], results[1]

    return run


def efficient(aten: Callable[..., Any]) -> Operator:
    """Wrap _scaled_dot_product_efficient_attention."""

    def run(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, is_causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        results = aten(query, key, value, bias, True, dropout, is_causal, scale=scale)
        return results[0], results[1]

    return run
