"""Every kernel agrees with the reference under Triton's interpreter (runs without a GPU)."""

from __future__ import annotations

import pytest

from tests.kernels.apart import assert_passes_interpreted

SHARES = {
    "agreement": "test_agrees",
    "others": "not test_agrees",
}


@pytest.mark.parametrize("share", SHARES)
def test_additive_kernels_agree(share: str):
    assert_passes_interpreted("interpreted.py", "-k", SHARES[share])


def test_additive_attention_in_one_launch_agrees():
    assert_passes_interpreted("interpreted_additive_short.py")


@pytest.mark.parametrize("part", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_masked_attention_agrees(part: str):
    assert_passes_interpreted("interpreted_masked.py", "-m", part)


def test_looks_agree():
    assert_passes_interpreted("interpreted_looks.py")


@pytest.mark.parametrize("part", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_series_cells_losses_training_and_decoding_agree(part: str):
    names = ("series", "cells", "lstmn", "tape", "training", "short", "decoding")
    assert_passes_interpreted(*(f"interpreted_{name}.py" for name in names), "-m", part)
