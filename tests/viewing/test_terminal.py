"""Terminal drawings: alignment, terminal width, and control characters in tokens."""

import io
import re
import unicodedata

import numpy
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

import regard
from regard import ArgumentError
from regard.viewing import bars, beside, draw, to_svg

WEIGHTS = numpy.array([[0.8, 0.15, 0.05], [0.0, 0.001, 0.999]])
ROWS, COLUMNS = ["I", "cat"], ["나", "고양이", "は"]
LONG = [f"{number}번째" for number in range(60)]


def printed(drawing, width=80, **options) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=width, **{"color_system": None, **options}).print(drawing)
    return page.getvalue().splitlines()


def segments(drawing, width=80) -> list[list[Segment]]:
    console = Console(file=io.StringIO(), width=width, color_system="truecolor", force_terminal=True)
    return console.render_lines(drawing, pad=False)


def shaded(line: list[Segment]) -> list[tuple[int, int]]:
    """Return the start and end of each shaded cell of a line."""
    spans, place = [], 0
    for segment in line:
        end = place + cell_len(segment.text)
        if segment.style and segment.style.bgcolor:
            spans.append((place, end))
        place = end
    return spans


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("color_system", [None, "truecolor"])
def test_rows_are_as_wide_as_the_header(numbers, color_system):
    drawing = draw(WEIGHTS, ROWS, COLUMNS, numbers=numbers, legend=False)
    console = Console(file=io.StringIO(), width=80, color_system=color_system, force_terminal=True)
    widths = {sum(cell_len(s.text) for s in line) for line in console.render_lines(drawing, pad=False)}
    assert len(widths) == 1


def test_column_labels_are_above_their_columns():
    header, *rows = segments(draw(WEIGHTS, ROWS, COLUMNS, legend=False))
    spans = shaded(rows[0])
    assert len(spans) == 3 and spans == shaded(rows[1])
    text = "".join(segment.text for segment in header)
    for word, (begin, end) in zip(COLUMNS, spans, strict=True):
        at = cell_len(text[: text.index(word)])
        assert begin <= at and at + cell_len(word) <= end


def test_larger_weight_is_lighter():
    _, row, *_ = segments(draw([[0.0, 0.3, 0.6, 1.0]], ["q"], list("abcd")))
    shades = [sum(s.style.bgcolor.triplet) for s in row if s.style and s.style.bgcolor]
    assert shades == sorted(shades) and len(set(shades)) == 4


def test_without_colour_characters_are_used():
    row = printed(draw([[0.0, 0.3, 0.6, 1.0]], ["q"], list("abcd")))[1]
    assert [mark for mark in "·░▒▓█" if mark in row] == ["·", "░", "▒", "█"]
    coloured = printed(
        draw([[1.0]], ["q"], ["k"]), color_system="truecolor", force_terminal=True, no_color=True
    )
    assert "█" in coloured[1]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("[red]x[/red]", "[red]x[/red]"),
        ("[/]", "[/]"),
        (":cat:", ":cat:"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202eabc", "\\u202eabc"),
        ("\x9b5m", "\\x9b5m"),
        ("\ud800", "\\ud800"),
        (unicodedata.normalize("NFD", "한국"), "한국"),
    ],
)
def test_control_characters_are_escaped(token, shown):
    for drawing in (draw([[1.0]], [token], [token], token), bars([1.0, 0.5], [token, token], token)):
        page = "\n".join(printed(drawing))
        assert page.count(shown) >= 2
        assert "\x1b" not in page and "\u202e" not in page
        page.encode()


def test_exact_zero_differs_from_a_small_weight():
    page = printed(draw([[0.0, 0.001, 0.999]], ["q"], list("abc"), numbers=True))[1]
    assert page.split() == ["q", "0", ".00", *page.split()[3:]]
    assert "1.00" in page


def test_nan_is_marked_with_a_question_mark():
    page = printed(draw([[float("nan"), 1.0]], ["q"], ["a", "b"]))[1]
    assert page.count("?") == 1 and "█" in page


@pytest.mark.parametrize("width", [20, 40, 61, 80, 120, 200])
@pytest.mark.parametrize("numbers", [False, True])
def test_drawing_fits_the_terminal(width, numbers):
    weights = numpy.full((3, 60), 1 / 60)
    page = printed(draw(weights, ["하나", "둘", "셋"], LONG, "title", numbers=numbers), width=width)
    assert max(map(cell_len, page)) <= width
    left_out = re.search(r"(\d+) of 60 keys fit, (\d+) are not drawn", " ".join(" ".join(page).split()))
    assert bool(left_out) == (width < 6 + 60 * (5 if numbers else 2))
    assert not left_out or int(left_out[1]) + int(left_out[2]) == 60


def test_column_labels_are_vertical_if_they_do_not_fit():
    page = printed(draw(numpy.ones((1, 60)), ["q"], LONG), width=140)
    assert page[0].split() != LONG[: len(page[0].split())]
    assert page[-3].count("째") == 60  # every word ends at the matrix
    assert not any("drawn" in line for line in page)


@pytest.mark.parametrize(
    "weights",
    [
        WEIGHTS.tolist(),
        torch.tensor(WEIGHTS, dtype=torch.float32, requires_grad=True),
        torch.tensor(WEIGHTS).float(),
    ],
)
def test_lists_and_tensors_are_drawn_like_arrays(weights):
    assert str(draw(weights, ROWS, COLUMNS)) == str(draw(WEIGHTS, ROWS, COLUMNS))


def test_half_precision_is_accepted():
    assert "0.500" in str(bars(torch.tensor([0.5, 0.25], dtype=torch.bfloat16), ["a", "b"]))


def test_length_of_bars_is_proportional_to_weights():
    long, short = printed(bars([1.0, 0.5], ["가", "bcd"], most=1))
    assert long.count("━") == 2 * short.count("━") == 40
    assert cell_len(long[: long.index("━")]) == short.index("━")


def test_ascii_console():
    class Plain(io.StringIO):
        encoding = "ascii"

    page = Plain()
    console = Console(file=page, width=80, color_system=None)
    console.print(draw([[0.0, 1.0]], ["q"], ["a", "b"]))
    console.print(bars([0.5], ["a"]))
    assert page.getvalue().isascii() and "###" in page.getvalue()


def test_beside_places_drawings_side_by_side_if_they_fit():
    pair = beside(draw([[1.0]], ["q"], ["a"]), draw([[1.0]], ["q"], ["b"]))
    assert "a" in printed(pair)[0] and "b" in printed(pair)[0]
    assert "b" not in printed(pair, width=40)[0]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_empty_matrix(shape):
    drawing = draw(numpy.zeros(shape), ["q"] * shape[0], ["k"] * shape[1])
    assert len(printed(drawing)) >= 1 + shape[0]


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: draw(numpy.ones((2, 3, 4)), [], []), "weights[head]"),
        (lambda: draw([0.5, 0.5], ["a"], ["b", "c"]), "bars()"),
        (lambda: draw([[1.0, 2.0], [3.0]], ["a"], ["b"]), "weights"),
        (lambda: draw([["one"]], ["a"], ["b"]), "weights"),
        (lambda: draw([[-0.5, 0.5]], ["a"], ["b", "c"]), "from -0.5 to 0.5"),
        (lambda: draw([[numpy.inf]], ["a"], ["b"]), "finite"),
        (lambda: draw(WEIGHTS, ["a"], COLUMNS), "weights  T=2 S=3\n  rows     1 words"),
        (lambda: draw(WEIGHTS, ROWS, ["a"]), "S = 3"),
        (lambda: draw(WEIGHTS, ROWS, "abc"), "'abc'"),
        (lambda: draw(WEIGHTS, ROWS, COLUMNS, most=0), "most is 0"),
        (lambda: bars(WEIGHTS, ROWS), "weights[query]"),
        (lambda: bars([0.5], ["a", "b"]), "labels   2 words"),
    ],
)
def test_invalid_arguments_raise(make, fact):
    with pytest.raises(ArgumentError) as caught:
        make()
    assert fact in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "pattern"),
    [
        (None, "None"),
        (regard.attention(torch.eye(2), torch.eye(2)), "result"),
        (regard.causal(), "a mask"),
        (torch.ones(2, 3, 1, 1), r"weights\[sentence, head\]"),
    ],
)
def test_draw_explains_what_to_pass_instead(argument: object, pattern: str):
    with pytest.raises(regard.ArgumentError, match=pattern) as error:
        draw(argument, ["a"], ["b"])
    assert "hint:" in str(error.value)


def test_a_file_shows_all_columns_and_a_terminal_those_that_fit(tmp_path):
    words = [f"word{number}" for number in range(60)]
    matrix = draw([[1 / 60] * 60] * 2, ["a", "b"], words)

    def boxes(drawing):
        return to_svg(drawing).count("<rect")

    assert "keys fit" in str(matrix)  # 100 terminal cells hold 49 keys
    assert boxes(matrix) - boxes(draw([[1 / 60]] * 2, ["a", "b"], words[:1])) >= 2 * 59
    assert "fit," not in to_svg(matrix) and "fit," not in to_svg(beside(matrix, matrix))
    assert "fit," in to_svg(matrix, width=60)  # as the caller wishes
    matrix.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().count("<rect") == boxes(matrix)
