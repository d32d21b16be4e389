"""Layers of the cost study: counted operations against torch's counter, and measurements as plain data."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.compare.layer_costs import BATCH, LAYERS, _exponents, _fits, _large, measure_layer, peak_memory

SIZES = {"n": [(n, 64) for n in (32, 64, 128, 256, 512)], "d": [(8, d) for d in (16, 32, 64, 128)]}


def by_hand(name: str, x: torch.Tensor) -> None:
    """Compute the matrix products of a layer with plain operators, which torch's counter knows."""
    d = x.shape[1]
    square = torch.zeros(d, d)
    if name in ("self-attention", "multi-head"):
        _ = (x @ x.T) @ x
    if name == "multi-head":
        _ = [x @ square for _ in range(4)]
    if name == "recurrent":
        _ = [row[None] @ square for row in x for _ in range(6)]
    if name == "convolutional":
        torch.nn.functional.conv1d(x.T[None], torch.zeros(d, d, 3), padding=1)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "additive"])
def test_operations_agree_with_the_counter_of_torch(name):
    n, d = 24, 16
    with FlopCounterMode(display=False) as counter:
        by_hand(name, torch.zeros(n, d))
    assert LAYERS[name].operations(n, d) == counter.get_total_flops()


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_the_shape_and_is_measured(name):
    layer, x = LAYERS[name].build(8), torch.randn(2, 5, 8)
    assert layer(x).shape == x.shape
    measured = measure_layer(name, 4, 8, "cpu", rounds=2)
    assert len(measured["forward"]) == len(measured["both"]) == 2 and measured["memory"] > 0
    assert json.loads(json.dumps(measured)) == measured


def test_peak_memory_counts_what_is_alive_at_the_same_time():
    size = 1 << 20

    def one_after_the_other():
        for _ in range(3):
            torch.zeros(size)

    kept = peak_memory(lambda: [torch.zeros(size) for _ in range(3)].clear(), "cpu")
    assert 4 * size <= peak_memory(one_after_the_other, "cpu") < 8 * size <= 12 * size <= kept < 16 * size


def test_exponents_of_exact_times():
    """With times equal to the counted operations, the fits are those of the theory."""
    rows = [
        {
            "layer": name,
            "varied": varied,
            "n": n,
            "d": d,
            "forward": [float(layer.operations(n, d))] * 3,
            "both": [float(layer.operations(n, d))] * 3,
            "memory": n * d,
            "operations": BATCH * layer.operations(n, d),
        }
        for name, layer in LAYERS.items()
        for varied, sizes in (
            ("n", [(n, 64) for n in (32, 64, 128, 256, 512)]),
            ("d", [(8, d) for d in (32, 64)]),
        )
        for n, d in sizes
    ]
    exact = {(row["layer"], row["of"]): row for row in _exponents(rows)}
    assert exact["self-attention", "n"]["exponent"] == pytest.approx(2)
    assert exact["recurrent", "n"]["exponent"] == pytest.approx(1)


def test_exponents_are_fitted_to_sizes_beyond_the_fixed_cost():
    """A fixed cost of 1 hides n^2 at small n; the fit uses only times of at least 4."""
    sizes = [2**power for power in range(2, 10)]
    rows = [{"layer": "a", "varied": "n", "n": n, "both": [1 + (n / 64) ** 2] * 3} for n in sizes]
    assert [row["n"] for row in _large(rows, "both")] == [128, 256, 512]
    assert _fits(rows, "a", "n", "both") == pytest.approx([1.9, 1.9, 1.9], abs=0.1)
    flat = [{"n": n, "both": [1.0]} for n in sizes]
    assert [row["n"] for row in _large(flat, "both")] == [256, 512]
