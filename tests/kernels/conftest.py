"""Tests that run under Triton's interpreter need corrections of it; all other tests use Triton as it is."""

from __future__ import annotations

import pytest

from regard.kernels import interpreting


@pytest.fixture(scope="session", autouse=True)
def patched_interpreter() -> None:
    """Correct Triton's interpreter in the processes of test_interpreted.py, which set TRITON_INTERPRET=1."""
    if interpreting():
        from tests.kernels import interpreter_patches

        interpreter_patches.apply()
