"""The explorer in Chromium: every view reacts to the pointer and shows the right numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy

from regard.viewing import Seen, Site
from tests.browser.sentences import SOURCE, TARGET, long_text, sentence

Opened = Callable[..., Any]


def numbers(page: Any) -> numpy.ndarray:
    """Return the numbers of the table on the page; a blank cell is 0."""
    rows = page.eval_on_selector_all(
        "#panel tbody tr", "rows => rows.map(row => [...row.querySelectorAll('td')].map(c => c.textContent))"
    )
    return numpy.array([[float(cell or 0) for cell in row] for row in rows])


def heads(page: Any, scope: str) -> list[str]:
    return page.eval_on_selector_all(f"#panel th[scope={scope}] bdi", "all => all.map(each => each.title)")


def described(page: Any) -> str:
    return re.sub("[\u2068\u2069]", "", page.text_content("#description"))


def pick(page: Any, name: str, value: str) -> None:
    page.click(f"label[for={name}-{value}]")


def test_matrix_is_shown_first_and_describes_the_cell_under_the_pointer(opened: Opened):
    page = opened(sentence())
    assert page.get_attribute("#tab-matrix", "aria-selected") == "true"
    assert page.locator("#panel table").bounding_box()["y"] < 350
    cell = page.locator("#panel tbody tr").nth(3).locator("td").nth(1)
    cell.hover()
    seen = sentence().words()
    weight = numpy.mean([site.weights.mean(0) for site in seen.sites if site.kind == "cross"], 0)[3, 1]
    name, _, number = described(page).rpartition(": ")
    assert name == "cat. attended to 고양이를" and abs(float(number) - weight) < 0.001
    assert page.locator("#panel th.on").all_text_contents() == ["고양이를", "cat."]
    page.locator("#panel tbody th").nth(0).hover()
    assert described(page).startswith("I attended to ")


def test_controls_change_the_view(opened: Opened):
    page = opened(sentence())
    pick(page, "units", "pieces")
    pick(page, "specials", "hidden")
    page.select_option("#site", label="decoder.1.cross")
    page.select_option("#head", "2")
    pick(page, "measure", "values")
    site = sentence().weighted_by_values().without_specials(renormalise=False).site("decoder.1.cross")
    numpy.testing.assert_allclose(numbers(page), site.weights[2], atol=0.0051)
    assert page.text_content("#caption") == (
        "decoder.1.cross · head 2, of 3 · 6 tokens attended to 8 · "
        "special tokens hidden · weights × value norm"
    )
    page.select_option("#site", label="encoder.0.self")
    assert page.locator("#measure-values").count() == 0  # it has no value norms
    assert page.text_content("#caption").startswith("encoder.0.self · head 2, of 3 · 8 tokens attended to 8")


def test_every_combination_of_controls_equals_python(opened: Opened):
    page = opened(sentence())
    places = page.evaluate("Object.fromEntries(page.sites.map((site, number) => [site.name, number]))")
    chosen = (
        ("decoder.0.cross", "mean", "weights"),
        ("decoder.1.cross", 2, "values"),
        ("decoder.1.cross", "mean", "values"),
        ("encoder.1.self", 0, "weights"),
        ("decoder.0.self", 1, "weights"),
    )
    for units, specials in itertools.product(("words", "pieces"), ("shown", "hidden", "renormalised")):
        for name, head, measure in chosen:
            state = {"site": places[name], "head": head, "measure": measure, "units": units}
            page.evaluate("choice => change(choice)", {**state, "specials": specials})
            seen = sentence().weighted_by_values() if measure == "values" else sentence()
            site = seen.site(name)
            plane = site.weights.mean(0) if head == "mean" else site.weights[head]
            seen = replace(seen, sites=(replace(site, weights=plane, values=None),))
            seen = seen.words() if units == "words" else seen
            seen = seen if specials == "shown" else seen.without_specials(specials == "renormalised")
            (site,) = seen.sites
            numpy.testing.assert_allclose(numbers(page), site.weights[0], atol=0.0051)
            assert heads(page, "row") == list(site.rows) and heads(page, "col") == list(site.columns)


def test_rollout_and_the_mean_of_layers_are_sites(opened: Opened):
    page = opened(sentence())
    pick(page, "units", "pieces")
    page.select_option("#site", label="encoder.rollout")
    numpy.testing.assert_allclose(numbers(page), sentence().rollout().weights[0], atol=0.0051)
    page.select_option("#site", label="encoder.*.self, mean of all")
    layers = [site.weights.mean(0) for site in sentence().sites if site.kind == "encoder"]
    numpy.testing.assert_allclose(numbers(page), numpy.mean(layers, 0), atol=0.0051)


def test_lines_of_the_word_under_the_pointer(opened: Opened):
    page = opened(sentence())
    page.click("#tab-lines")
    lines = page.locator("#panel path").count()
    assert lines > 10 and page.locator("#panel path.off").count() == 0
    page.hover("#panel .to li:nth-child(2) button")
    assert described(page).startswith("saw attended to ")
    left = page.locator("#panel path:not(.off)").count()
    assert 0 < left <= 4 and page.locator("#panel .from .word[class*=' l']").count() > 0
    page.hover("#panel .from li:nth-child(2) button")
    assert described(page).startswith("고양이를 was attended to by ")
    page.mouse.move(5, 5)
    assert page.locator("#panel path.off").count() == 0
    opacity = page.eval_on_selector_all(
        "#panel path", "all => all.map(e => getComputedStyle(e).strokeOpacity)"
    )
    assert max(map(float, opacity)) == 1 and min(map(float, opacity)) < 0.3


def test_sentence_is_shaded_by_the_selected_word(opened: Opened):
    page = opened(sentence())
    page.click("#tab-sentence")
    assert page.locator("#panel .sentence").count() == 2
    page.hover("#panel .sentence >> nth=1 >> button >> nth=1")
    assert described(page).startswith("고양이를 was attended to by ")
    assert page.locator("#panel .sentence >> nth=0").locator("[class*=' l']").count() > 0
    page.select_option("#site", label="encoder.0.self")
    assert page.locator("#panel .sentence").count() == 1
    page.hover("#panel .sentence button >> nth=1")
    assert described(page).startswith("고양이를 attended to ")
    pick(page, "direction", "received")
    assert described(page).startswith("고양이를 was attended to by ")


def test_one_word_over_time(opened: Opened):
    page = opened(sentence())
    page.click("#tab-steps")
    assert page.locator("#panel .steps li").count() == 5  # a bar for each step, the last "</s>"
    page.select_option("#word", label="2  고양이를")
    page.hover("#panel .steps li:nth-child(4)")
    assert described(page).startswith("cat. attended to 고양이를: ")
    page.select_option("#word", label="1  I")
    assert page.locator("#panel .steps li").count() == 4 and described(page).startswith("I attended to ")
    heights = page.eval_on_selector_all("#panel .steps i", "all => all.map(each => each.offsetHeight)")
    cross = [site.weights.mean(0) for site in sentence().words().sites if site.kind == "cross"]
    weights = numpy.mean(cross, 0)
    numpy.testing.assert_allclose(heights, 176 * weights[0] / weights.max(), atol=1.5)


def test_thumbnail_of_a_head_is_enlarged(opened: Opened):
    page = opened(sentence())
    page.click("#tab-heads")
    assert page.locator("#panel button.small").count() == 2 * 3 * 3 + 1
    page.wait_for_function(
        """() => [...document.querySelectorAll('.small canvas')].some(canvas =>
            canvas.getContext('2d').getImageData(0, 0, 64, 64).data.some(each => each > 0))"""
    )
    page.click("button[aria-label='encoder.1.self, head 2']")
    assert page.get_attribute("#tab-matrix", "aria-selected") == "true"
    assert page.text_content("#caption").startswith("encoder.1.self · head 2, of 3")
    pick(page, "units", "pieces")
    numpy.testing.assert_allclose(numbers(page), sentence().site("encoder.1.self").weights[2], atol=0.0051)


def test_view_as_text(opened: Opened):
    page = opened(sentence())
    for tab in ("matrix", "lines", "sentence", "steps"):
        page.click(f"#tab-{tab}")
        page.click("#panel details.text summary")
        page.locator("#panel details.text li").first.wait_for()
        lines = page.locator("#panel details.text li").all_text_contents()
        assert len(lines) == 5 and lines[0].split()[:2] == ["I", "attended"]


def test_zoom_and_drag_in_a_long_text(opened: Opened):
    page = opened(long_text())
    assert "8,192" in page.text_content("#caption")
    assert page.text_content("#place") == "rows 1–8,192, columns 1–8,192, the largest of blocks of 32 × 32"
    assert page.evaluate("document.querySelectorAll('*').length") < 300
    pick(page, "pooling", "mean")
    assert page.text_content("#place").endswith("the mean of blocks of 32 × 32")
    assert float(page.text_content(".legend").removeprefix("0").split(";")[0]) < 0.05
    page.click("button[aria-label='Zoom in']")
    assert page.text_content("#place").startswith("rows 1–4,096, columns 1–4,096")
    canvas = page.locator("canvas.map")
    box = canvas.bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    assert re.match(r"rows [\d,]+–[\d,]+, columns [\d,]+–[\d,]+: largest", described(page))
    page.mouse.down()
    page.mouse.move(middle[0] - 80, middle[1] - 80)
    page.mouse.up()
    assert not page.text_content("#place").startswith("rows 1–")
    page.keyboard.press("0")
    canvas.focus()
    page.keyboard.press("0")
    assert page.text_content("#place").startswith("rows 1–8,192")
    canvas.dblclick(position={"x": box["width"] / 2, "y": box["height"] / 2})
    for _ in range(9):
        page.keyboard.press("+")
    rows, columns = (
        [int(each.replace(",", "")) for each in span]
        for span in re.findall(r"([\d,]+)–([\d,]+)", page.text_content("#place"))
    )
    assert rows[1] - rows[0] < 40 and columns[1] - columns[0] < 40
    page.keyboard.press("ArrowDown")
    assert re.match(r"word\d+ \([\d,]+\) attended to word\d+ \([\d,]+\): ", described(page))
    assert page.locator(".chosen-row li").count() > 5


def test_weight_of_a_cell_of_a_long_text(opened: Opened):
    seen = long_text()
    page = opened(seen)
    page.evaluate("state.cursor = { row: 5050, column: 5050 }; state.view = null; drawView()")
    canvas = page.locator("canvas.map")
    canvas.focus()
    for _ in range(12):
        page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert described(page).startswith(
        "word5050 (5,051) attended to word5051 (5,052): not among the 32 largest"
    )
    page.keyboard.press("ArrowLeft")
    assert described(page) == "word5050 (5,051) attended to word5050 (5,051): .500"
    bars = page.locator(".chosen-row li").all_text_contents()
    assert bars[0].startswith("word5050") and bars[1].startswith("word5000")
    for tab in ("lines", "sentence", "steps"):
        page.click(f"#tab-{tab}")
        assert "48 × 48 tokens around the cell" in page.text_content("#panel")
    page.click("#tab-heads")
    assert page.locator("#panel button.small").count() == 1


def test_only_the_displayed_head_is_decoded(opened: Opened):
    words = tuple(f"w{place}" for place in range(512))
    weights = drawn_wide()
    sites = tuple(Site(f"encoder.{layer}.self", weights, words, words) for layer in range(2))
    page = opened(Seen(sites, words, (), tuple(range(512)), ()))
    assert page.evaluate("[blocks.size, planes.size]") == [1, 1]
    assert "largest weights of each row" in page.text_content("#caption")
    page.select_option("#site", label="encoder.1.self")
    page.select_option("#head", "4")
    page.locator("canvas.map").focus()
    for _ in range(7):
        page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    weight = float(described(page).rpartition(": ")[2])
    assert described(page).startswith("w0 (1) attended to w0 (1)") and abs(weight - weights[4, 0, 0]) < 0.005
    page.click("#tab-lines")
    assert page.locator("#panel .from li").count() == 512
    page.click("#tab-heads")
    assert page.locator("#panel button.small").count() == 24 + 1


def drawn_wide() -> numpy.ndarray:
    """Return weights (12, 512, 512), concentrated near the diagonal."""
    place = numpy.arange(512.0)
    scores = -numpy.abs(place[:, None] - place) / numpy.arange(2.0, 14.0)[:, None, None]
    weights = numpy.exp(scores)
    return (weights / weights.sum(-1, keepdims=True)).astype(numpy.float32)


def test_empty_sentence_and_no_sites(opened: Opened):
    page = opened(Seen((), SOURCE, TARGET, tuple(range(9)), tuple(range(7)), "no sites"))
    assert page.locator("#panel").count() == 0 and "고" in page.text_content("main")
    empty = Site("decoder.cross", numpy.zeros((1, 0, 2)), (), ("a", "</s>"))
    page = opened(Seen((empty,), ("a", "</s>"), (), (0, -1), ()))
    for tab in ("matrix", "lines", "sentence", "steps", "heads"):
        page.click(f"#tab-{tab}")
    page.click("#tab-matrix")
    assert page.text_content("#panel") == "There are no tokens to show."


def test_nan_is_marked_with_a_question_mark(opened: Opened):
    site = Site("decoder.cross", [[0.5, numpy.nan]], ("x",), ("a", "b"))
    page = opened(replace(sentence(), sites=(site,), source=("a", "b"), source_words=(0, 1)))
    assert page.locator("#panel td").all_text_contents()[-2:] == [".50", "?"]
    page.hover("#panel tbody td >> nth=1")
    assert described(page) == "x attended to b: NaN"
