"""Tensors whose rows are not aligned in memory: kernels that need aligned rows get a copy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.backends.sdpa import aligned


def sliced(width: int, extra: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    """Return the first `width` columns of a tensor that has `extra` more."""
    return torch.randn(2, 3, 40, width + extra, device=device).to(dtype)[..., :width]


def test_a_cpu_tensor_needs_only_a_last_stride_of_1():
    tensor = sliced(16, 3)
    assert aligned(tensor) is tensor


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("extra", [1, 3, 4, 8])
@pytest.mark.parametrize("backend", ["sdpa-cudnn", "sdpa-flash", "sdpa-efficient"])
def test_unaligned_rows_agree(backend: str, extra: int, dtype: torch.dtype):
    query, key, value = (sliced(64, extra, dtype, "cuda") for _ in range(3))
    assert (aligned(query) is query) == (extra == 8)
    exact = regard.attention(*(each.double() for each in (query, key, value)), backend="reference").output
    for _ in range(3):
        found = regard.attention(query, key, value, backend=backend).output
        torch.testing.assert_close(found.double(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
def test_a_view_that_begins_at_an_odd_address_agrees():
    query = torch.randn(1 + 2 * 3 * 40 * 64, device="cuda").bfloat16()[1:].view(2, 3, 40, 64)
    exact = regard.attention(query.double(), query.double(), backend="reference").output
    found = regard.attention(query, query).output
    torch.testing.assert_close(found.double(), exact, atol=2e-2, rtol=2e-2)
