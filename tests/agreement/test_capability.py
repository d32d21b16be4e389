"""Kernels depend on the compute capability of the CUDA device; tested without a device, by fake calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import regard
from regard.backends import BACKENDS, sdpa
from regard.call import Call
from tests.agreement.cases import checked


class OnCuda(torch.Tensor):
    """A CPU tensor whose attribute `device` is a CUDA device."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


def call(dtype: torch.dtype) -> Call:
    x = torch.randn(1, 2, 4, 64, dtype=dtype)
    arguments = {"query": x, "key": x, "value": x, "score": regard.ScaledDot(), "mask": None, "bias": None}
    plain = checked({**arguments, "select": regard.Soft(), "start": 0})
    return replace(plain, query=x.as_subclass(OnCuda))


@pytest.mark.parametrize(
    ("name", "dtype", "capability", "offered"),
    [
        *((name, dtype, (8, 0), True) for name in ("cudnn", "flash") for dtype in ("float16", "bfloat16")),
        *((name, dtype, (9, 0), True) for name in ("cudnn", "flash") for dtype in ("float16", "bfloat16")),
        *((name, "float16", old, False) for name in ("cudnn", "flash") for old in [(7, 0), (7, 5)]),
        *((name, "bfloat16", old, False) for name in ("cudnn", "flash") for old in [(7, 0), (7, 5)]),
        *(("efficient", dtype, (7, 5), True) for dtype in ("float16", "float32")),
        ("efficient", "bfloat16", (7, 5), False),
        ("efficient", "bfloat16", (8, 0), True),
    ],
)
def test_kernels_follow_the_compute_capability(
    name: str, dtype: str, capability: tuple[int, int], offered: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    reasons = BACKENDS[f"sdpa-{name}"].reasons(call(getattr(torch, dtype)))
    shown = ".".join(map(str, capability))
    assert (reasons == []) == offered
    assert offered or any(f"compute capability {shown}" in each or f"has {shown}" in each for each in reasons)


def test_torch_compile_treats_the_capability_as_a_constant(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))

    def add_capability(x: torch.Tensor) -> torch.Tensor:
        return x + sdpa.device_capability(x.device)[0]

    torch._dynamo.reset()
    compiled = torch.compile(add_capability, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(())).item() == 7
