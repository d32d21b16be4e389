"""Devices: the one that is asked for, if it is there."""

from __future__ import annotations

import pytest
import torch

from regard.errors import UnknownName
from regard.runs.devices import choose_device


def test_a_device_is_one_that_is_there():
    assert choose_device("cpu") == "cpu"
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    assert choose_device("auto") == next(name for name, here in there.items() if here)
    with pytest.raises(UnknownName, match="did you mean 'cuda'"):
        choose_device("cdua")
