"""Graves, Wayne and Danihelka 2014, Neural Turing machines: addressing by content, and reading."""

from __future__ import annotations

from math import exp, hypot

import pytest
import torch

import regard

MEMORY = [[3.0, 4.0], [1.0, 0.0], [-0.5, 0.5], [0.0, 0.0]]
KEY, BETA = [1.0, 1.0], 2.0


def cosine(u: list[float], v: list[float]) -> float:
    """K[u, v] = u . v / (|u| |v|) (eq. 6); 0 for a blank slot."""
    length = hypot(*u) * hypot(*v)
    return (u[0] * v[0] + u[1] * v[1]) / length if length else 0.0


def addressed(beta: float) -> list[float]:
    """w_c(i) = exp(beta K[k, M(i)]) / sum_j exp(beta K[k, M(j)]) (eq. 5)"""
    powers = [exp(beta * cosine(KEY, slot)) for slot in MEMORY]
    return [power / sum(powers) for power in powers]


def read_by(weights: list[float]) -> list[float]:
    """r = sum_i w(i) M(i) (eq. 2)"""
    return [sum(weight * slot[d] for weight, slot in zip(weights, MEMORY, strict=True)) for d in (0, 1)]


def look_up(beta: float | torch.Tensor) -> regard.Attended:
    key, memory = torch.tensor([KEY]).double(), torch.tensor(MEMORY).double()
    return regard.attention(key, memory, score=regard.Cosine(beta), look=regard.Look(weights=True))


def test_content_addressing():
    # cosines: 7 / (5 sqrt 2), 1 / sqrt 2, 0 and, for the blank slot, 0
    assert [cosine(KEY, slot) for slot in MEMORY] == pytest.approx([7 / 50**0.5, 0.5**0.5, 0.0, 0.0])
    seen = look_up(BETA)
    assert seen.weights.flatten().tolist() == pytest.approx(addressed(BETA))
    assert seen.output.flatten().tolist() == pytest.approx(read_by(addressed(BETA)))


@pytest.mark.parametrize("beta", [0.0, 0.5, 50.0, 1000.0])
def test_key_strength_sharpens_the_weights(beta: float):
    seen = look_up(torch.tensor([beta]).double())
    assert seen.weights.flatten().tolist() == pytest.approx(addressed(min(beta, 500.0)), abs=1e-9)
    if beta == 1000.0:
        assert seen.output.flatten().tolist() == pytest.approx(MEMORY[0])


def test_read_with_shifted_and_sharpened_weights():
    """w~(i) = sum_j w(j) s(i - j) (eq. 8), w(i) = w~(i)^gamma / sum_j w~(j)^gamma (eq. 9), then eq. 2"""
    focus, shift, gamma = addressed(BETA), {1: 0.9, 0: 0.1}, 3.0
    moved = [sum(amount * focus[(i - by) % 4] for by, amount in shift.items()) for i in range(4)]
    sharp = [each**gamma / sum(other**gamma for other in moved) for each in moved]
    memory = torch.tensor(MEMORY).double()
    seen = regard.read(torch.tensor([sharp]).double(), memory, look=regard.Look(alignment=True))
    assert seen.output.flatten().tolist() == pytest.approx(read_by(sharp))
    assert seen.alignment.item() == 1  # slot 0 has the largest weight, and is shifted by one
