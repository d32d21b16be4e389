"""Which tensors kernels of their own are launched for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.kernels import kernel_choice
from regard.kernels.kernel_choice import by_kernel


@pytest.mark.parametrize(("index", "taken"), [(0, False), (1, True)])
def test_kernels_run_on_the_current_device_alone(index: int, taken: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(kernel_choice, "TRITON", True)
    there: Any = SimpleNamespace(device=torch.device("cuda", index), dtype=torch.float32)
    assert by_kernel(there) is taken
