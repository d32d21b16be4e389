"""Accessibility: keyboard, screen reader, dark mode, phone, print, and no JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regard.viewing import explore
from tests.browser.sentences import long_text, sentence

Opened = Callable[..., Any]

FOCUSED = "document.activeElement.id || document.activeElement.tagName"


def reached(page: Any, place: str) -> None:
    """Press Tab until this element has the focus."""
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.matches({place!r})"):
            return
    raise AssertionError(f"{place} cannot be reached with Tab")


def test_keyboard_reaches_everything(opened: Opened):
    page = opened(sentence())
    reached(page, "#site")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(FOCUSED) == "site" and page.text_content("#caption").startswith("decoder.0.cross")
    reached(page, "#head")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(FOCUSED) == "head" and "head 0, of 3" in page.text_content("#caption")
    reached(page, "#units-words")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(FOCUSED) == "units-pieces"
    assert page.locator("#panel tbody tr").count() == 7
    reached(page, "#specials-shown")
    page.keyboard.press("ArrowRight")
    assert "special tokens hidden" in page.text_content("#caption")
    reached(page, "#tab-matrix")
    reached(page, "td")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.text_content("#description").startswith("\u2068▁saw\u2069 attended to \u2068는\u2069: ")
    page.keyboard.press("End")
    assert "\u2068.\u2069" in page.text_content("#description")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(FOCUSED) == "tab-matrix"
    for tab, place in (("lines", ".from .word"), ("sentence", ".sentence .word"), ("steps", ".steps li")):
        page.keyboard.press("ArrowRight")
        assert page.evaluate(FOCUSED) == f"tab-{tab}"
        reached(page, place)
        page.keyboard.press("ArrowDown")
        assert "attended to" in page.text_content("#description")
        page.focus(f"#tab-{tab}")
    page.keyboard.press("ArrowRight")
    reached(page, "button.small")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate(FOCUSED) == "tab-matrix" and "head 1, of 3" in page.text_content("#caption")


def test_controls_have_names_and_roles(opened: Opened):
    page = opened(sentence())
    for tab in ("matrix", "lines", "sentence", "steps", "heads"):
        page.click(f"#tab-{tab}")
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('button, select, input, [tabindex="0"]')].filter(each =>
                !(each.getAttribute('aria-label') || each.labels?.length || each.textContent.trim()
                  || each.closest('[role=grid]'))).map(each => each.outerHTML)"""
        )
        assert unnamed == []
        ids = page.eval_on_selector_all("[id]", "all => all.map(each => each.id)")
        assert len(ids) == len(set(ids))
        assert page.get_attribute("#panel", "aria-labelledby") == f"tab-{tab}"
        assert page.locator("[role=tab][aria-selected=true]").count() == 1
    page.click("#tab-matrix")
    spoken = page.locator("#explorer").aria_snapshot()
    assert 'tab "Matrix" [selected]' in spoken and 'rowheader "cat."' in spoken
    assert 'columnheader "고양이를"' in spoken and "combobox" in spoken
    long = opened(long_text(2048, 8))
    assert "Arrow keys select a cell" in long.get_attribute("canvas.map", "aria-label")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_mode(opened: Opened, scheme: str):
    page = opened(long_text(2048, 8), color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, *_ = (int(each) for each in ground.removeprefix("rgb(").removesuffix(")").split(","))
    assert (red < 60) == (scheme == "dark")
    first = page.evaluate("document.querySelector('canvas.map').toDataURL()")
    page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    page.wait_for_function("first => document.querySelector('canvas.map').toDataURL() !== first", arg=first)


def test_page_fits_the_screen_of_a_phone(opened: Opened):
    for seen in (sentence(), long_text(2048, 8)):
        page = opened(seen, viewport={"width": 400, "height": 800})
        for tab in ("matrix", "lines", "sentence", "steps", "heads"):
            page.evaluate("tab => document.getElementById(`tab-${tab}`).click()", tab)
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.evaluate("document.getElementById('tab-matrix').click()")
        page.set_viewport_size({"width": 300, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 300


def test_print_has_the_picture_and_its_caption(opened: Opened):
    page = opened(sentence())
    page.emulate_media(media="print")
    assert not page.is_visible("#choices") and not page.is_visible("[role=tablist]")
    assert page.is_visible("#caption") and page.is_visible("#panel table")
    assert len(page.pdf()) > 5000


def test_without_javascript_there_is_the_alignment(opened: Opened):
    page = opened(sentence(), java_script_enabled=False)
    assert page.is_visible("table") and not page.locator("[role=tab]").count()
    assert page.locator("tbody th").all_text_contents() == ["I", "saw", "a", "cat."]


def test_notebook_iframe_works_and_is_isolated(browser: Any):
    page = browser.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.set_content(f"<p id=outside>secret</p>{explore(sentence())._repr_html_()}")
    inside = page.frame_locator("iframe")
    inside.locator("#tab-lines").click()
    assert inside.locator(".from .word").count() and trouble == []
    assert (
        page.frames[1].evaluate("(() => { try { return parent.document.title } catch { return null } })()")
        is None
    )
    page.close()
