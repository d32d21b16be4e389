"""Open pages in Chromium; they must make no requests and log no errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.viewing import Seen, explore
from regard.viewing.html_document import Page


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a Seen or a page; at the end of the test, check that it made no request, dialog or log message."""
    contexts, trouble = [], []

    def open_page(seen: Seen | Page, **options: Any) -> Any:
        place = tmp_path / f"{len(contexts)}.html"
        if isinstance(seen, Page):
            place.write_text(seen, encoding="utf-8")
        else:
            explore(seen, place)
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(60_000)  # other processes may keep the cores busy

        def on_request(route: Any) -> None:
            if route.request.url == place.as_uri() or route.request.url.startswith("data:image/"):
                route.continue_()
            else:
                trouble.append(f"requested {route.request.url}")
                route.abort()

        context.route("**/*", on_request)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(f"logged {message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"raised {error}"))
        page.on("dialog", lambda dialog: (trouble.append(f"opened {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: trouble.append(f"popped up {popup.url}"))
        page.goto(place.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []
