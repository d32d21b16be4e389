"""Every kernel agrees with the reference under Triton's interpreter (runs without a GPU)."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy
import pytest

from tests.kernels.apart import assert_passes_interpreted

SHARES = {
    "agreement": "test_agrees",
    "others": "not test_agrees",
}


@pytest.mark.parametrize("share", SHARES)
def test_additive_kernels_agree(share: str):
    assert_passes_interpreted("interpreted.py", "-k", SHARES[share])


@pytest.mark.parametrize("part", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_masked_attention_agrees(part: str):
    assert_passes_interpreted("interpreted_masked.py", "-m", part)


def test_looks_agree():
    assert_passes_interpreted("interpreted_looks.py")


@pytest.mark.parametrize("part", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_gradients_cells_losses_training_and_decoding_agree(part: str):
    names = ("gradients", "cells", "lstmn", "tape", "training", "short", "decoding")
    assert_passes_interpreted(*(f"interpreted_{name}.py" for name in names), "-m", part)


def test_importing_the_tests_leaves_triton_and_numpy_as_they_are():
    """--doctest-modules imports every file of this folder, on a GPU too, where kernels are compiled."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import driver, interpreter
    from triton.runtime.jit import JITFunction

    for path in Path(__file__).parent.glob("*.py"):
        importlib.import_module(f"tests.kernels.{path.stem}")
    for owner in (interpreter, tl, tl.tensor, tl.block_type, TritonSemantic, JITFunction, driver):
        origins = {name: getattr(each, "__module__", None) or "" for name, each in vars(owner).items()}
        assert [name for name, origin in origins.items() if origin.startswith("tests.")] == []
    assert numpy.geterr()["over"] == numpy.geterr()["invalid"] == "warn"
