"""A real Chromium, and pages opened in it that may ask for nothing and complain of nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.viewing import Seen, explore

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium: the one that playwright installed, or the system's."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        pytest.skip("no Chromium can be started (playwright install chromium)")
    with sync_playwright() as playwright:
        for place in (None, *filter(None, map(shutil.which, NAMES))):
            try:
                found = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"])
            except Error:
                continue
            yield found
            found.close()
            return
        pytest.skip("no Chromium can be started (playwright install chromium)")


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a Seen as a page; when the test ends, it has asked for nothing, opened nothing, logged nothing."""
    contexts, trouble = [], []

    def open_page(seen: Seen, **options: Any) -> Any:
        place = tmp_path / f"{len(contexts)}.html"
        explore(seen, place)
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(10_000)

        def ask(route: Any) -> None:
            if route.request.url == place.as_uri():
                route.continue_()
            else:
                trouble.append(f"asked for {route.request.url}")
                route.abort()

        context.route("**/*", ask)
        page = context.new_page()
        page.on("console", lambda said: trouble.append(f"logged {said.type}: {said.text}"))
        page.on("pageerror", lambda error: trouble.append(f"raised {error}"))
        page.on("dialog", lambda dialog: (trouble.append(f"opened {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: trouble.append(f"popped up {popup.url}"))
        page.goto(place.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []
