"""The page of captions in Chromium: pointer, keyboard, hostile words, dark mode, phone, no JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from regard.viewing.image_attention import ImageAttention, caption_page, panel_size, shaded_image
from tests.browser.test_hostile import KNOWN
from tests.facts import mentions

Opened = Callable[..., Any]

PIXELS = """() => {
    const canvas = document.querySelector('canvas');
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    return [canvas.height, canvas.width, ...data];
}"""


def attention(words: tuple[str, ...] = ("a", "red", "circle"), side: int = 4) -> ImageAttention:
    generator = numpy.random.default_rng(0)
    image = generator.integers(0, 256, (128, 256, 3), dtype=numpy.uint8)
    weights = generator.random((len(words), side, side))
    weights /= weights.sum((1, 2), keepdims=True)
    return ImageAttention(image, words, weights, logprobs=[-0.1] * len(words))


def ready(page: Any) -> Any:
    page.wait_for_selector("#hint:not([hidden])")
    return page


def test_pointer_and_keyboard_show_the_map_of_a_word(opened: Opened):
    seen = attention()
    page = ready(opened(caption_page([seen])))
    assert not page.is_visible("canvas")
    words = page.locator("p.caption > span")
    words.nth(1).hover()
    assert page.is_visible("canvas") and words.nth(1).get_attribute("class") == "chosen"
    row, column = divmod(seen.strongest(1), 4)
    text = page.text_content("p.seen")
    assert f"row {row + 1}, column {column + 1} of 4 x 4" in text and "red" in text and "0.905" in text
    height, width, *data = page.evaluate(PIXELS)
    drawn = numpy.array(data, float).reshape(height, width, 4)[..., :3]
    assert (height, width) == panel_size(seen, 1e9)
    expected = shaded_image(seen.image, seen.levels(1))
    # The maps of the page have 8 bits; the outline of the strongest cell covers some pixels.
    assert (numpy.abs(drawn - expected).max(-1) <= 2).mean() > 0.9
    page.mouse.move(0, 0)
    assert not page.is_visible("canvas") and page.text_content("p.seen") == ""
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "a"
    page.keyboard.press("End")
    assert "circle" in page.text_content("p.seen") and page.is_visible("canvas")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "red"


def test_pointing_at_the_image_shows_the_words_that_attend_to_a_cell(opened: Opened):
    seen = attention()
    page = ready(opened(caption_page([seen])))
    box = page.locator("figure").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.1)
    text = page.text_content("p.seen")
    best = seen.words[int(seen.weights[:, 0, 3].argmax())]
    assert mentions(text, "row 1", "column 4") and text.index(best) < 60
    assert page.locator("p.caption > span.l16").text_content() == best


def test_hostile_words_titles_and_notes_are_text(opened: Opened):
    words = tuple(KNOWN)
    seen = attention(words, side=2)
    seen = ImageAttention(seen.image, words, seen.weights, title=" ".join(words), notes=words[:30])
    page = ready(opened(caption_page([seen], title=words[0], about=words[1])))
    assert page.evaluate("window.bad") is None
    assert page.locator("p.caption > span").count() == len(words)
    assert page.locator("script").count() == 1 and page.locator("article").count() == 1
    page.locator("p.caption > span").first.hover()
    assert "</script>" in page.text_content("p.seen")


def test_dark_mode_and_phone(opened: Opened):
    two = [attention(), attention(("many",) * 60)]
    page = ready(opened(caption_page(two), color_scheme="dark", viewport={"width": 320, "height": 700}))
    grounds = []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        grounds.append(int(ground.removeprefix("rgb(").split(",")[0]))
    assert grounds[0] < 60 < 200 < grounds[1]
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_without_javascript_there_are_the_panels(opened: Opened):
    page = opened(caption_page([attention()]), java_script_enabled=False)
    assert page.is_visible("img.all") and page.is_visible("img.photo") and not page.is_visible("#hint")
    assert page.locator("img.all").bounding_box()["height"] > 100
    assert "largest weight" in page.text_content("p.what")
