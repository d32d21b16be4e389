"""The attention of caption words over an image: checks, terminal, panels, animation, page, notebook."""

from __future__ import annotations

import base64
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy
import pytest
from PIL import Image
from rich.console import Console

from regard.errors import ArgumentError
from regard.viewing import ImageAttention, caption_page, save_caption_page
from regard.viewing.html_document import safe
from regard.viewing.image_attention import (
    CELLS,
    MAP,
    PIXELS,
    SIDE,
    SMALLEST,
    TALLEST,
    UNIFORM,
    WIDEST,
    WORDS,
    CellGrid,
    TerminalImage,
    panel_size,
    resized,
    shaded_image,
)
from regard.viewing.pictures.canvas import Raster, Words

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "</text><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "]]>&\x00\x1b[31m",
    "\"'",
    "\u202e고",
)


def attention(words=("a", "red", "circle"), size=(40, 60), cells=(4, 6), **options) -> ImageAttention:
    generator = numpy.random.default_rng(0)
    image = generator.integers(0, 256, (*size, 3), dtype=numpy.uint8)
    return ImageAttention(image, words, generator.random((len(words), *cells)), **options)


def printed(seen, width: int = 80, **options) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **options).print(seen)
    return file.getvalue()


def test_bad_input_raises():
    image, maps = numpy.zeros((8, 8, 3), numpy.uint8), numpy.ones((1, 2, 2))
    for arguments in (
        (image.astype(float), ["a"], maps),
        (image[..., 0], ["a"], maps),
        (image.transpose(2, 0, 1), ["a"], maps),
        (image[:0], ["a"], maps),
        (numpy.zeros((1, SIDE + 1, 3), numpy.uint8), ["a"], maps),
        (image, "a", maps),
        (image, [], numpy.ones((0, 2, 2))),
        (image, ["a"] * (WORDS + 1), numpy.ones((WORDS + 1, 1, 1))),
        (image, ["a", "b"], maps),
        (image, ["a"], maps[0]),
        (image, ["a"], numpy.ones((1, 0, 2))),
        (image, ["a"], numpy.ones((1, 1, CELLS + 1))),
        (image, ["a"], -maps),
        (image, ["a"], maps * numpy.nan),
        (image, ["a"], maps * numpy.inf),
        (image, ["a"], None),
        (image, ["a"], [["x"]]),
        (image, ["a"], maps, [0.0, 0.0]),
        (image, ["a"], maps, [numpy.nan]),
        (image, ["a"], maps, [0.5]),
    ):
        with pytest.raises(ArgumentError):
            ImageAttention(*arguments)
    with pytest.raises(ArgumentError, match="transpose"):
        ImageAttention(image.transpose(2, 0, 1), ["a"], maps)


def test_strongest_cell_and_its_pixels():
    seen = attention()
    for word in range(3):
        row, column = divmod(seen.strongest(word), 6)
        assert seen.weights[word, row, column] == seen.weights[word].max()
        assert tuple(seen.grid.box(seen.strongest(word))) == (
            10 * row,
            10 * column,
            10 * row + 10,
            10 * column + 10,
        )
        assert seen.levels(word).max() == 1
    summary = seen.summary()
    assert f"“{seen.words[int(seen.weights.max((1, 2)).argmax())]}” is the most" in summary


def test_dict_is_json_and_weights_of_zero_are_drawn():
    seen = ImageAttention(numpy.zeros((2, 2, 3), numpy.uint8), ["a"], numpy.zeros((1, 3, 3)), [-1.0])
    assert json.loads(json.dumps(seen.to_dict()))["strongest"] == [[0, 0]]
    assert seen.levels(0).sum() == 0 and seen.summary() == "all weights are 0"
    assert "[]:" in printed(seen) and printed(seen).count("[]") == 1 and seen.is_uniform(0)
    assert "<svg" in seen.picture().svg() and "<img" in seen._repr_html_()
    with pytest.raises(ArgumentError):
        seen.grid  # noqa: B018  # the image has fewer pixels than the map has cells


def test_nearly_uniform_maps_are_not_marked():
    image = numpy.zeros((8, 8, 3), numpy.uint8)
    flat, peak = numpy.full((2, 2), 0.25), numpy.array([[0.7, 0.1], [0.1, 0.1]])
    seen = ImageAttention(image, ["a", "cat"], [flat, peak])
    assert [seen.is_uniform(word) for word in (0, 1)] == [True, False]
    assert UNIFORM in seen.uniform_note() and printed(seen, 120).count("[]") == 2  # one word and the legend
    assert seen.picture().svg().count('fill="none"') == 1 and UNIFORM not in printed(attention(("a",)), 120)
    page = caption_page([seen])
    assert page.count("data-cell=") == 1 and page.count("data-map=") == 2


def test_resizing_keeps_the_mean():
    image = numpy.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=numpy.uint8)
    assert resized(image, 60, 40).tolist() == image.tolist()
    assert resized(image, 12, 8).mean() == pytest.approx(image.mean(), abs=0.5)
    assert (resized(image, 120, 80)[::2, ::2] == image).all()
    assert resized(image, 7, 100).shape == (7, 100, 3)


def test_terminal_draws_half_blocks_in_colour_and_characters_without():
    image = numpy.zeros((4, 2, 3), numpy.uint8)
    image[0], image[3] = (255, 0, 0), (0, 0, 255)
    coloured = printed(TerminalImage(image), color_system="truecolor", force_terminal=True)
    assert coloured.count("▀") == 4 and coloured.count("38;2;255;0;0;48;2;0;0;0") == 2
    assert coloured.count("38;2;0;0;0;48;2;0;0;255") == 2
    plain = printed(TerminalImage(numpy.full((4, 2, 3), 255, numpy.uint8)), color_system=None)
    assert plain == "██\n██\n"


@pytest.mark.parametrize("width", [12, 20, 80, 200])
def test_terminal_fits_the_width_and_marks_each_word(width):
    seen = attention(("a", "red", "circle"), (300, 900), (20, 40))
    for options in ({"color_system": None}, {"color_system": "truecolor", "force_terminal": True}):
        text = Console(file=io.StringIO(), width=width, **options)
        lines = text.render_lines(seen, text.options)
        assert all(sum(segment.cell_length for segment in line) <= width for line in lines)
    text = printed(seen, 200, color_system=None)
    assert text.count("[]") == 4 and len(text.splitlines()) < TALLEST + MAP + 8  # three words and the legend
    assert max(map(len, text.splitlines())) <= 200 and WIDEST <= 64


def test_terminal_shows_hostile_words_as_text():
    text = printed(attention(HOSTILE), color_system=None)
    assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text and "\\x1b" in text


def test_shading_is_dim_at_zero_and_brightest_in_the_strongest_cell():
    image = numpy.full((8, 8, 3), 100, numpy.uint8)
    shaded = shaded_image(image, numpy.array([[0.0, 0.0], [0.0, 1.0]]))
    assert shaded[0, 0].tolist() == [30] * 3 and shaded[-1, -1].tolist() == [123] * 3
    assert (shaded.max((0, 1)) == shaded[6, 6]).all() and CellGrid(2, 2, 8, 8).cell_at(6, 6) == 3
    black = shaded_image(image * 0, numpy.array([[0.0, 1.0]]))
    assert black[0, -1, 0] > black[0, 0, 0] == 0  # the map is visible over black pixels too


def test_panels_have_the_image_and_a_panel_for_each_word():
    seen = attention()
    canvas = seen.picture().frames[0]
    rasters = [mark for mark in canvas.marks if isinstance(mark, Raster)]
    assert len(rasters) == 1 + 3 + 1  # the last one is the scale
    size = panel_size(seen, 1e6)
    assert (rasters[0].pixels == resized(seen.image, *size)).all() and max(size) == SMALLEST
    for word in range(3):
        expected = shaded_image(resized(seen.image, *size), seen.levels(word))
        assert (rasters[1 + word].pixels == expected).all()
    texts = [mark.text for mark in canvas.marks if isinstance(mark, Words)]
    assert {"image", *seen.words} <= set(texts) and any("brightness" in text for text in texts)
    first, *others = rasters[:4]
    assert all(each.x >= first.x + first.width for each in others)  # no panel covers another one


def test_panels_as_svg_escape_text_and_embed_images():
    seen = attention(HOSTILE, notes=HOSTILE, title=HOSTILE[0])
    svg = seen.picture().svg()
    tree = ElementTree.fromstring(svg)
    assert {each.tag for each in tree.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "desc", "rect", "text", "image", "path")
    }
    links = [each.get("href") for each in tree.iter(f"{SVG}image")]
    assert len(links) == len(HOSTILE) + 2 and all(link.startswith("data:image/png;base64,") for link in links)
    decoded = numpy.asarray(Image.open(io.BytesIO(base64.b64decode(links[0].partition(",")[2]))))
    assert (decoded == resized(seen.image, *panel_size(seen, 1e6))).all()


def test_files_are_bounded_for_large_images_and_many_words():
    seen = attention(("word",) * WORDS, (1500, 1000), (CELLS, CELLS))
    canvas = seen.picture().frames[0]
    pixels = sum(mark.pixels.size // 3 for mark in canvas.marks if isinstance(mark, Raster))
    assert pixels <= 1.5 * PIXELS
    wide = ImageAttention(numpy.zeros((1, SIDE, 3), numpy.uint8), ["a"], numpy.ones((1, 2, 2)))
    assert len(wide.picture().svg()) < 1e6 and max(panel_size(wide, 1e9)) <= 256


def test_png_has_the_pixels_of_the_panels(tmp_path: Path):
    image = numpy.zeros((64, 64, 3), numpy.uint8)
    image[:32, :32] = (200, 0, 0)
    seen = ImageAttention(image, ["red"], [[[1.0, 0.0], [0.0, 0.0]]])
    seen.save(tmp_path / "panels.png")
    drawn = numpy.asarray(Image.open(tmp_path / "panels.png").convert("RGB"))
    assert (drawn == (200, 0, 0)).all(-1).sum() > 10_000  # the image
    lit = shaded_image(image, seen.levels(0))
    assert lit[0, 0].tolist() == [208, 38, 38] and (drawn == lit[0, 0]).all(-1).sum() > 1000
    assert drawn.shape[0] * drawn.shape[1] < 4e6


def test_gif_has_a_frame_for_the_image_and_for_each_word(tmp_path: Path):
    seen = attention(("a", "red"))
    frames = seen.animation().frames
    shown = [[m.text for m in canvas.marks if isinstance(m, Words)] for canvas in frames]
    assert "a" not in shown[0] and "a" in shown[1] and "red" not in shown[1] and {"a", "red"} <= set(shown[2])
    assert len({canvas.size for canvas in frames}) == 1
    seen.save(tmp_path / "caption.gif")
    with Image.open(tmp_path / "caption.gif") as gif:
        assert gif.n_frames == 3 and gif.size[0] <= 1600
        pictures = []
        for frame in range(3):
            gif.seek(frame)
            pictures.append(numpy.asarray(gif.convert("RGB"), float))
    assert pictures[0].mean() > pictures[1].mean()  # the maps dim the image
    for seconds in (0, -1, 61, numpy.nan):
        with pytest.raises(ArgumentError):
            seen.animation(seconds)


def test_page_escapes_text_and_makes_no_requests(tmp_path: Path):
    seen = attention(HOSTILE, notes=HOSTILE, title=HOSTILE[0], logprobs=[-1.0] * len(HOSTILE))
    page = caption_page([seen, seen], title=HOSTILE[1], about=HOSTILE[2])
    assert page.count("<script>") == 1 and "<img src=x" not in page and safe(HOSTILE[0]) in page
    assert page.count('src="data:image/') == page.count("<img") == 4 and "img-src data:;" in page
    save_caption_page(tmp_path / "captions.html", [seen])
    seen.save(tmp_path / "same.html")
    assert (tmp_path / "captions.html").read_bytes() == (tmp_path / "same.html").read_bytes()
    for call in (
        lambda: save_caption_page(tmp_path / "page.txt", [seen]),
        lambda: seen.save(tmp_path / "page.txt"),
        lambda: caption_page([]),
    ):
        with pytest.raises(ArgumentError):
            call()


def test_notebook_fragment_is_small_escaped_and_has_no_script():
    seen = attention(HOSTILE, size=(500, 700))
    html = seen._repr_html_()
    assert "<script" not in html and safe(HOSTILE[1]) in html and len(html) < 1_500_000
    assert html.count("<img") == 1 and html.startswith('<div class="regard">')


def test_noted_and_repr():
    seen = attention().noted("a note")
    assert seen.notes == ("a note",) and "3 words" in repr(seen) and "4 x 6 cells" in repr(seen)
    assert "a note" in printed(seen) and seen.probability(0) is None
