"""choose_device: the requested device, or the fastest that is available."""

from __future__ import annotations

import pytest
import torch

from regard.errors import UnknownName
from regard.runs.devices import choose_device


def test_choose_device():
    assert choose_device("cpu") == "cpu"
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    assert choose_device("auto") == next(name for name, usable in available.items() if usable)
    with pytest.raises(UnknownName, match="did you mean 'cuda'"):
        choose_device("cdua")
