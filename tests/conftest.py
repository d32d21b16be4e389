"""Every test starts from one seed; what a machine cannot run is skipped with a reason known here."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy
import pytest
import torch

SKIPS = {
    "gpu": "needs a CUDA device (make test-gpu)",
    "transformers": 'transformers is not installed (pip install ".[huggingface]")',
}
"""Why a test of ours may be skipped; tests/test_conftest.py pins them."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed before workers start, so that all share it, and give it to hypothesis too."""
    if os.environ.get("REGARD_SEED") == "random":
        os.environ["REGARD_SEED"] = str(random.SystemRandom().randrange(2**31))
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed())
    # The seed above decides every example: derandomize would forget it, a database would add to it.
    hypothesis.settings.register_profile(
        "regard", deadline=None, database=None, max_examples=100, print_blob=True
    )
    hypothesis.settings.load_profile("regard")


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
    """The same numbers whether a test runs alone, in another order, or on another worker."""
    torch.manual_seed(seed())
    numpy.random.seed(seed() % 2**32)
    random.seed(seed())


def seed() -> int:
    """The number that every test starts from."""
    return int(os.environ.get("REGARD_SEED", "0"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, playwright's own or the system's; one per process, since playwright allows no more."""
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
