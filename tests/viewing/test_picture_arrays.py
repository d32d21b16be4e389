"""Views of plain arrays: positions, shades, and errors."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from io import StringIO
from itertools import pairwise

import numpy
import pytest
from rich.console import Console

from regard.errors import ArgumentError, RegardError, UnknownName
from regard.viewing import (
    Site,
    gaze,
    heads,
    hops,
    lines,
    long_map,
    matrix,
    over_time,
    player,
    pooled,
    pooled_from_top,
    shaded,
    steps,
    tape,
    to_svg,
)
from regard.viewing.pictures.canvas import DARK, Box, Curve, Raster, Words, shade, shades, width_of
from regard.viewing.pooled_attention import largest

SVG = "{http://www.w3.org/2000/svg}"


def marks(picture, kind):
    return [mark for mark in picture.frames[0].marks if isinstance(mark, kind)]


def lightness(colours: numpy.ndarray) -> numpy.ndarray:
    return colours @ (0.2126, 0.7152, 0.0722)


def test_lightness_decreases_with_the_level():
    levels = numpy.linspace(0, 1, 101)
    for way in (levels, -levels):
        assert (numpy.diff(lightness(shades(way))) < 0).mean() > 0.97
    # Colour blindness changes the lightness of a colour very little.
    assert lightness(shades(numpy.array([0.0, 1.0]))).tolist() == pytest.approx([245.9, 18.4], abs=1)
    assert shade(float("nan")) == "#bebebe"


def test_labels_of_a_30_by_30_matrix_do_not_overlap():
    words = [f"word{number}" if number % 2 else "고양이로소이다" for number in range(30)]
    picture = matrix(numpy.eye(30), words, words)
    beside = [mark for mark in marks(picture, Words) if mark.anchor == "end"]
    bounds = [mark.bounds for mark in beside]
    assert len(bounds) == 30 and all(one[3] <= other[1] for one, other in pairwise(bounds))
    slanted = [mark for mark in marks(picture, Words) if mark.angle]
    assert len(slanted) == 30
    # The distance between slanted labels, measured across their direction.
    apart = (slanted[1].x - slanted[0].x) * numpy.sin(numpy.radians(slanted[0].angle))
    assert apart > slanted[0].size
    wide = max(mark.bounds[2] for mark in marks(picture, Box))
    assert min(mark.bounds[2] for mark in beside) <= 0 and wide == pytest.approx(30 * 18 - 1)


def test_large_matrix_is_one_image_with_some_labels():
    words = [f"w{number}" for number in range(400)]
    picture = matrix(numpy.eye(400), words, words)
    (image,) = marks(picture, Raster)
    named = [mark for mark in marks(picture, Words) if mark.anchor == "end"]
    assert image.pixels.shape == (400, 400, 3) and 20 < len(named) < 100
    assert max(picture.frames[0].size) < 1000


def test_shades_and_numbers_of_cells():
    picture = matrix([[0.5, 0.25], [0.0, 0.5]], ["a", "b"], ["c", "d"], numbers=True)
    fills = [mark.fill for mark in marks(picture, Box)[:4]]
    assert fills == [shade(level) for level in (1.0, 0.5, 0.0, 1.0)]
    texts = [mark.text for mark in marks(picture, Words)]
    assert texts.count(".50") == 2 and texts.count(".25") == 1 and "0.00" not in texts


def test_width_of_lines_grows_with_weight():
    drawn = marks(lines([[0.8, 0.2], [0.0, 1.0]], ["a", "b"], ["c", "d"]), Curve)
    thick = sorted(mark.width for mark in drawn)
    assert len(drawn) == 3 and thick[0] < thick[1] < thick[2]
    assert {mark.points[-1][1] for mark in drawn} == {0.0, 18.0}


def test_word_is_selected_by_index_or_text():
    weights = [[0.8, 0.2], [0.1, 0.9]]
    by_text, by_number = (shaded(weights, ["a", "b"], ["c", "d"], word=word).svg() for word in ("b", 1))
    assert by_text == by_number != shaded(weights, ["a", "b"], ["c", "d"]).svg()
    bars = marks(over_time(weights, ["a", "b"], ["c", "d"], word="d"), Box)
    assert [bar.height for bar in bars] == pytest.approx([0.2 * 130, 0.9 * 130])


@pytest.mark.parametrize(("rows", "angle"), [(["a", "b"], 0.0), (["a", "a word of many letters"], 50.0)])
def test_words_under_bars_are_slanted_only_if_they_do_not_fit(rows: list[str], angle: float):
    drawn = marks(over_time([[0.8, 0.2], [0.1, 0.9]], rows, ["c", "d"], word="d"), Words)
    assert {mark.angle for mark in drawn if mark.text in rows} == {angle}


def test_heads_share_a_scale_and_are_pooled():
    weights = numpy.stack([numpy.eye(200), 0.5 * numpy.eye(200)])
    words = list(map(str, range(200)))
    images = marks(heads([Site("encoder.0.self", weights, words, words)]), Raster)
    assert [image.pixels.shape for image in images] == [(96, 96, 3)] * 2
    assert images[0].pixels.min() < images[1].pixels.min()


def test_file_of_12_layers_of_12_heads_is_below_10_megabytes():
    weights = numpy.random.default_rng(0).random((12, 512, 512), numpy.float32) ** 9
    words = [""] * 512
    size = len(heads([Site(f"encoder.{n}.self", weights, words, words) for n in range(12)]).svg())
    assert size < 10_000_000


@pytest.mark.parametrize("length", [1, 7, 64, 129, 1003])
@pytest.mark.parametrize("density", [1.0, 0.02])
def test_largest_weights_of_each_row_are_kept(length: int, density: float):
    draw = numpy.random.default_rng(length)
    weights = draw.random((2, 5, length)) * (draw.random((2, 5, length)) < density)
    for top in (each for each in (1, 3, 32) if each <= length):
        keys, kept = largest(weights, top)
        numpy.testing.assert_array_equal(kept, -numpy.sort(-weights, -1)[..., :top])
        numpy.testing.assert_array_equal(keys < 0, kept == 0)
        assert (numpy.take_along_axis(weights, keys.clip(0), -1) == kept)[keys >= 0].all()
        assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in keys.reshape(-1, top))


def test_8192_tokens_are_drawn_from_the_largest_weights():
    count = 8192
    rows = numpy.arange(count)

    class Top:
        keys = numpy.stack([rows, rows // 2], axis=-1)
        weights = numpy.broadcast_to([0.75, 0.25], (count, 2))

    words = [""] * count
    picture = long_map(pooled_from_top("decoder.0.self", Top, words, words), "A long look")
    (image,) = marks(picture, Raster)
    assert max(image.pixels.shape) == 256 and len(picture.svg()) < 400_000
    diagonal = image.pixels[numpy.arange(256), numpy.arange(256)]
    assert (diagonal == shades(numpy.array(1.0))).all()
    assert (
        "8,192 by 8,192 tokens" in picture.frames[0].about
        and "from the largest weights of each row" in picture.svg()
    )


def test_long_map_in_the_terminal_has_all_lines():
    words = [""] * 500
    long = pooled("self", numpy.eye(500)[::-1], words, words)
    tree = ElementTree.fromstring(to_svg(long_map(long).terminal))
    rows = {each.get("y") for each in tree.iter(f"{SVG}rect") if each.get("shape-rendering")}
    assert len(rows) == 24 == len(str(long_map(long)).splitlines()) - 1


def test_steps_equal_those_of_attention():
    import torch

    import regard

    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 2)
    for name in ("dot", "scaled_dot", "cosine"):
        picture = steps(query, key, value, name)
        score = regard.build_score(name, 4, 4)
        seen = regard.attention(query, key, value, score=score, look=regard.Look(weights=True))
        written = [mark.text for mark in marks(picture, Words)]
        numbers = [f"{number:.2f}".replace("-", "−") for number in seen.weights.flatten().tolist()]
        output = [f"{number:.2f}".replace("-", "−") for number in seen.output.flatten().tolist()]
        assert all(number in written for number in numbers)
        assert output == [text for text in written if _number(text)][-len(output) :]


def _number(text: str) -> bool:
    return text.replace("−", "-").replace(".", "").lstrip("-").isdigit()


def test_steps_with_given_scores_and_masked_keys():
    scores = [[0.0, -numpy.inf], [-numpy.inf, -numpy.inf]]
    picture = steps(numpy.ones((2, 3)), numpy.ones((2, 4)), numpy.eye(2), "additive", scores=scores)
    texts = [mark.text for mark in marks(picture, Words)]
    assert texts.count("−∞") == 3 and "additive" in texts
    assert str(picture).splitlines()[-2:] == ["q0   1.00   0.00", "q1   0.00   0.00"]
    large = steps(numpy.ones((20, 64)), numpy.ones((30, 64)), numpy.ones((30, 64)))
    assert "the first 12 of 20 queries" in large.svg() and "the first 8 of 64 components" in large.svg()


def test_player_highlights_the_current_word_and_its_keys():
    animation = player(numpy.eye(3)[::-1], ["나는", "고양이", "."], ["x", "y", "z"])
    for place, frame in enumerate(animation.frames[:3]):
        boxes = [mark for mark in frame.marks if isinstance(mark, Box) and mark.round]
        assert [box.edge == DARK for box in boxes[:3]] == [other == place for other in range(3)]
        shown = [mark.text for mark in frame.marks if isinstance(mark, Words)]
        assert [word in shown for word in ("나는", "고양이", ".")] == [other <= place for other in range(3)]
    for step, frame in enumerate(animation.frames[3:6]):
        boxes = [mark for mark in frame.marks if isinstance(mark, Box) and mark.round]
        assert [box.fill == shade(1.0) for box in boxes[:3]] == [place == 2 - step for place in range(3)]
        shown = {mark.text for mark in frame.marks if isinstance(mark, Words)}
        assert {"x", "y", "z"} & shown == {"x", "y", "z"} - set("xyz"[step + 1 :])


def test_gaze_is_bright_where_the_weight_is_large():
    weights = numpy.zeros((2, 2, 2))
    weights[0, 0, 0] = weights[1, 1, 1] = 0.9
    image = numpy.full((40, 60, 3), 200, numpy.uint8)
    plain, first, second, _ = marks(gaze(image, weights, ["a", "b"], about="a note"), Raster)
    assert first.pixels.shape == (43, 64, 3) and (plain.pixels == 200).all()
    assert first.pixels[0, 0, 0] == second.pixels[-1, -1, 0] > 200
    assert first.pixels[-1, -1, 0] == second.pixels[0, 0, 0] == 60
    grey = marks(gaze(numpy.full((40, 60), 200 / 255), weights, ["a", "b"]), Raster)[1]
    assert (grey.pixels == first.pixels).all()
    with_alpha = numpy.concatenate((image, image[..., :1]), -1)
    assert (marks(gaze(with_alpha, weights, ["a", "b"]), Raster)[1].pixels == first.pixels).all()


def test_terminal_drawing_of_hops_has_whole_sentences_and_a_block_for_weight_one():
    sentences = ["Mary travelled back to the kitchen yesterday", "John left"]
    lines = str(hops([[1.0, 0.0], [0.97, 0.03], [0.5, 0.5]], sentences)).splitlines()
    assert any(line.startswith(f"{sentences[0]} █1.00█") for line in lines)
    assert max(map(len, str(hops([[1.0, 0.0]] * 3, ["word " * 20, "b"])).splitlines())) <= 80


def test_hops_and_tape():
    story = hops([[0.1, 0.9], [0.8, 0.2]], ["Mary took it", "Mary left"], "where?", "home")
    texts = [mark.text for mark in marks(story, Words)]
    assert {"hop 1", "hop 2", "where?", "answer: home", ".90", ".80"} <= set(texts)
    machine = tape(numpy.eye(200, 100), numpy.eye(200, 100))
    assert len(marks(machine, Raster)) == 2 and max(machine.frames[0].size) < 800
    assert marks(tape(numpy.eye(4)), Words)[0].text == "read"


@pytest.mark.parametrize(
    ("draw", "fact"),
    [
        (lambda: steps([1.0], [[1.0]], [[1.0]]), "(T, D)"),
        (lambda: steps([[1.0]], [[[1.0]]], [[1.0]]), "key[sentence, head]"),
        (lambda: steps(numpy.ones((0, 4)), [[1.0]], [[1.0]]), "query is empty, shape (0, 4)"),
        (lambda: steps(numpy.ones((0, 4)), [[1.0]], [[1.0]]), "at least one row and one column"),
        (lambda: steps([[1.0]], [[1.0, 2.0]], [[1.0]]), "scores=..."),
        (lambda: steps([[1.0]], [[1.0]], [[1.0]], "additive"), "known: cosine, dot, scaled_dot"),
        (lambda: steps([[1.0]], [[1.0]], [[1.0]], scores=[[1.0, 2.0]]), "(1, 1)"),
        (lambda: steps([[1.0]], [[1.0]], [["x"]]), "value"),
        (lambda: steps([[1.0]], [[1.0]], [[1.0]], rows=["a", "b"]), "T = 1"),
        (lambda: gaze(numpy.ones((3, 8, 8)), numpy.ones((1, 2, 2)), ["a"]), "transpose"),
        (lambda: gaze(numpy.ones((8, 8)), numpy.ones((2, 2, 2)), ["a"]), "one map for each word"),
        (lambda: gaze(numpy.ones((8, 8)), -numpy.ones((1, 2, 2)), ["a"]), ">= 0"),
        (lambda: hops([[1.0]], ["a", "b"]), "S = 1"),
        (lambda: tape(numpy.ones((2, 3)), numpy.ones((3, 2))), "write has shape (3, 2)"),
        (lambda: tape(numpy.ones((2, 3, 4))), "(T, N)"),
        (lambda: player(numpy.ones((2, 2)), ["a"], ["b"]), "(1, 1)"),
        (lambda: player(numpy.ones((0, 0)), [], []), "source"),
        (lambda: heads([]), "no sites"),
        (lambda: matrix([[-1.0]], ["a"], ["b"]), "-1"),
    ],
)
def test_invalid_arguments_raise(draw, fact):
    with pytest.raises((ArgumentError, UnknownName)) as caught:
        draw()
    assert fact in str(caught.value) and isinstance(caught.value, RegardError)


def test_image_in_svg_is_a_png_of_its_pixels():
    import base64
    import io

    from PIL import Image

    picture = gaze(numpy.arange(64.0).reshape(8, 8) / 64, numpy.ones((1, 1, 1)), ["a"])
    image, *_ = ElementTree.fromstring(picture.svg()).iter(f"{SVG}image")
    with Image.open(io.BytesIO(base64.b64decode(image.get("href").split(",")[1]))) as opened:
        assert (numpy.asarray(opened) == marks(picture, Raster)[0].pixels).all()


def test_estimated_text_width_is_large_enough():
    from matplotlib.font_manager import get_font

    from regard.viewing.pictures.matplotlib_writer import written

    for text in ("interesting", "WWW mmm", "고양이로소이다", "the quick brown fox", "1,234.56", "</s>"):
        text_runs = written(text)
        if text_runs.missing:  # replaced characters have the same width
            continue
        (run,) = text_runs.runs
        font = get_font(run.font)
        font.set_size(100, 72)
        font.set_text(run.text, 0.0)
        assert font.get_width_height()[0] / 64 <= 1.06 * width_of(text, 100)


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_numbers_are_not_cut_where_the_terminal_is_narrow(width: int):
    query, key = numpy.full((1, 9), 3.39), numpy.full((15, 9), -4.19)
    weights, words = numpy.full((1, 6), 0.16), [f"word{number}" for number in range(6)]
    for picture in (steps(query, key, key), lines(weights, ["one"], words)):
        console = Console(width=width, file=StringIO(), color_system=None)
        console.print(picture)
        numbers = re.findall(r"[−-]?\d*\.\d*", console.file.getvalue())
        assert numbers and set(numbers) <= {"3.39", "−4.19", "−42.61", "0.07", ".16"}
