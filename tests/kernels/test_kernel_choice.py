"""by_kernel(): which tensors use Triton kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard import kernels
from regard.kernels import by_kernel


@pytest.mark.parametrize(("index", "expected"), [(0, False), (1, True)])
def test_kernels_run_only_on_the_current_device(index: int, expected: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(kernels, "TRITON", True)
    tensor: Any = SimpleNamespace(device=torch.device("cuda", index), dtype=torch.float32)
    assert by_kernel(tensor) is expected
