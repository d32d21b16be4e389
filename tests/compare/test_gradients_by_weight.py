"""The gradients of values, averaged over classes of their attention weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from regard.compare.gradient_flow import _by_weight


def test_norms_are_averaged_over_weights_of_one_class():
    flow = SimpleNamespace(
        weights=torch.tensor([[0.5, 0.1], [0.5, 0.001]]), values=torch.tensor([[4.0, 3.0], [6.0, 1.0]])
    )
    found = sorted(_by_weight(flow))  # type: ignore[arg-type]
    assert [row[1:] for row in found] == [
        pytest.approx(each) for each in ([0.001, 1.0], [0.1, 3.0], [0.5, 5.0])
    ]
    assert _by_weight(SimpleNamespace(weights=None, values=None)) == []  # type: ignore[arg-type]
