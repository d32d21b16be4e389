"""The tapes of additive calls that a plan keeps, under Triton's interpreter (runs without a GPU)."""

from __future__ import annotations

from tests.kernels.apart import assert_passes_interpreted


def test_kept_tapes_are_run_for_the_same_layouts_only():
    assert_passes_interpreted("interpreted_tapes.py")
