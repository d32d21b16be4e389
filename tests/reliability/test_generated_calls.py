"""Generated attention calls: random shapes, masks, biases, scores and scales agree with float64."""

from __future__ import annotations

import random

import pytest

from tests.agreement.cases import FACTORS, Case, Inputs
from tests.agreement.test_backends import ON_CPU, ON_GPU, assert_agrees
from tests.conftest import seed

COUNT, PARTS = 1000, 5
"""Calls in a part, and parts per backend, in `make test-all`; calls that a backend refuses do not count."""
SAMPLE = 20
"""Calls per backend in `make test`."""

SCALES = (0.01, 1.0, 1.0, 1.0, 4.0)


def generate(draw: random.Random, device: str) -> Inputs:
    """Return the inputs of one random call."""
    choice = {name: draw.choice(values) for name, values in FACTORS.items()}
    longest = draw.choice((4, 40, 200))
    key_heads = draw.randint(1, 3)
    choice |= {
        "size": (draw.randint(1, longest), draw.randint(1, longest)),
        "width": 2 * draw.randint(1, 70),
        "heads": (key_heads * draw.randint(1, 3), key_heads),
        "start": draw.choice((0, draw.randint(1, 50))),
        "temperature": draw.choice((1.0, draw.uniform(0.2, 5.0))),
    }
    inputs = Inputs(Case(**choice), device)
    if choice["score"] != "cosine":  # cosine is invariant to scale, and its gradient shrinks with it
        inputs.query = inputs.query * draw.choice(SCALES)
    return inputs


def assert_calls_agree(backend: str, count: int, device: str, part: int = 0) -> None:
    """Generate calls until the backend has run `count` of them, and compare each with float64."""
    draw, ran = random.Random(f"{seed()} {backend} {part}"), 0
    while ran < count:
        inputs = generate(draw, device)
        try:
            ran += assert_agrees(inputs, backend, saturated=True)
        except Exception as error:
            error.add_note(f"call {ran} of {backend}, part {part}: {inputs.case}, seed {seed()}")
            raise


@pytest.mark.parametrize("backend", ON_CPU)
def test_sample_of_generated_calls_agrees(backend: str):
    assert_calls_agree(backend, SAMPLE, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", ON_CPU)
def test_generated_calls_agree(backend: str, part: int):
    assert_calls_agree(backend, COUNT, "cpu", part)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", ON_GPU)
def test_generated_calls_agree_on_gpu(backend: str, part: int):
    assert_calls_agree(backend, COUNT, "cuda", part)
