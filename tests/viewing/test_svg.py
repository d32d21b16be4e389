"""to_svg: words on the terminal grid, no scripts, no network requests."""

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image
from rich.text import Text

from regard.errors import ArgumentError
from regard.viewing import bars, beside, draw, to_svg
from regard.viewing.pictures.svg_writer import CELL, MARGIN

SVG = "{http://www.w3.org/2000/svg}"


def test_wide_character_takes_two_cells():
    picture = ElementTree.fromstring(to_svg(Text("ab 고양이 cd")))
    words = {text.text: text for text in picture.iter(f"{SVG}text")}
    assert float(words["고양이"].get("textLength")) == pytest.approx(6 * CELL)
    assert float(words["cd"].get("x")) == pytest.approx(MARGIN + 10 * CELL)


def test_cells_are_rectangles_on_the_grid():
    picture = ElementTree.fromstring(to_svg(draw([[0.1, 0.9], [0.5, 0.5]], ["가", "b"], ["c", "라"])))
    cells = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("shape-rendering")]
    assert len(cells) == 4
    assert {rect.get("x") for rect in cells[:2]} == {rect.get("x") for rect in cells[2:]}


def test_width_follows_the_content():
    small, large = (ElementTree.fromstring(to_svg(Text("x" * size), width=88)) for size in (10, 40))
    assert float(large.get("width")) - float(small.get("width")) == pytest.approx(30 * CELL)


def test_markup_and_invalid_xml_characters_are_escaped():
    picture = ElementTree.fromstring(to_svg(Text("<script>&amp; \x01"), title="<b>"))
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["<script>&amp;", "\ufffd"]
    assert picture.find(f"{SVG}title").text == "<b>"
    assert picture.find(f"{SVG}script") is None


@pytest.mark.parametrize("name", ["x.svg", "x.png", "x.pdf", "x.gif"])
def test_drawings_are_saved_on_a_dark_background(tmp_path, name):
    drawing = draw([[0.1, 0.9]], ["a"], ["c", "d"])
    assert beside(drawing, bars([0.5], ["a"])).save(tmp_path / f"both-{name}") == ()
    assert drawing.save(tmp_path / name) == () and (tmp_path / name).stat().st_size > 500
    if name.endswith(".svg"):
        assert (tmp_path / name).read_text() == to_svg(drawing)
    elif name.endswith((".png", ".gif")):
        with Image.open(tmp_path / name) as picture:
            assert picture.convert("L").getpixel((2, 20)) < 30


@pytest.mark.parametrize(("path", "fact"), [("x.txt", ".png"), (b"x.svg", "bytes"), (3, "int")])
def test_invalid_paths_of_drawings_raise(path, fact):
    with pytest.raises(ArgumentError, match=r"save\(\)") as error:
        bars([0.5], ["a"]).save(path)
    assert fact in str(error.value)


def test_svg_makes_no_requests_and_is_deterministic():
    picture = to_svg(bars([0.5], ["나"], "title"))
    assert picture == to_svg(bars([0.5], ["나"], "title"))
    assert picture.count("http") == 1 and "url(" not in picture and "@" not in picture
