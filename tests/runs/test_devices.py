"""choose_device: the requested device, or the fastest that is available."""

from __future__ import annotations

import pytest
import torch

from regard.cli.usage_errors import setting_option
from regard.errors import ArgumentError, UnknownName
from regard.runs.devices import choose_device
from tests.facts import mentions


def test_choose_device():
    assert choose_device("cpu") == "cpu"
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    assert choose_device("auto") == next(name for name, usable in available.items() if usable)
    with pytest.raises(UnknownName, match="'cuda'"):
        choose_device("cdua")


def test_gpu_means_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("gpu") == "cuda" and choose_device("gpu:1") == "cuda:1"
    with pytest.raises(ArgumentError, match="cuda:2"):
        choose_device("gpu:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ArgumentError, match="cuda") as caught:
        choose_device("gpu")
    assert 'device="auto"' in str(caught.value)
    assert mentions(caught.value.message.spelled(setting_option), "--device", "auto")
    assert choose_device(torch.device("cpu")) == "cpu"
