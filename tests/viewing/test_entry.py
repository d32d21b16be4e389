"""Entry in the terminal: words, weights, truncation, and errors."""

import io
import re

import numpy
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from regard import ArgumentError
from regard.viewing import Entry
from regard.viewing.entry import LINES, ROWS, UNSEEN


def printed(entry: Entry, width: int) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=width, color_system=None).print(entry)
    return page.getvalue().splitlines()


SENTENCE = Entry(
    ["그", "사람은", "집에서", "책을", "읽었다."],
    ["the", "man", "read", "a", "book", "at", "home"],
    numpy.full((7, 5), 0.2),
    score=-2.5,
    notes=["split into 3 at sentence ends"],
    reference="The man was reading at home.",
)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_entry_fits_the_width_of_the_terminal(width: int):
    lines = printed(SENTENCE, width)
    assert max(map(cell_len, lines)) <= width
    together = " ".join(" ".join(lines).split())
    for word in (*SENTENCE.target, *SENTENCE.source, "log-probability", "reading"):
        assert word in together or width == 20
    rows = [line for line in lines if "░" in line and "█" not in line]  # the legend has both
    assert [row.split()[0] for row in rows] == list(SENTENCE.target)


def test_scale_is_absolute_and_caption_is_printed_below():
    uniform = str(Entry(["a", "b", "c", "d"], ["x"], numpy.full((1, 4), 0.25), caption="without </s>"))
    focused = str(Entry(["a", "b", "c", "d"], ["x"], [[0, 0, 0, 1.0]]))
    for drawn, shade in ((uniform, "░"), (focused, "█")):
        row = next(line for line in drawn.splitlines() if line.startswith("x"))
        assert shade in row and drawn.split("░▒▓█ ")[1].split()[0] == "1"
    assert uniform.index("░▒▓█") < uniform.index("without </s>") and "without" not in focused


def test_long_translation_is_truncated_with_a_note():
    words = [f"word{place}" for place in range(500)]
    lines = printed(Entry(words, words, numpy.full((100, 100), 0.01)), 60)
    assert len(lines) < ROWS + 2 * LINES + 20
    together = " ".join(" ".join(lines).split())
    assert "the first 40 of 500 target words" in together
    assert "the first 100 of 500 source words" in together
    assert re.search(r"\d+ of 100 keys fit", together)


def test_entry_without_weights_or_words():
    assert UNSEEN in str(Entry(["a"], ["b"]))
    blank = str(Entry([], [], numpy.zeros((0, 0))))
    assert blank.split() == ["source", "target"]
    assert str(Entry(["a"], [], numpy.zeros((0, 1)), 0.0)).split()[-2:] == ["log-probability", "0.00"]
    assert "log-probability 0.00" in str(Entry(["a"], ["b"], numpy.ones((1, 1)), -0.001)), "not -0.00"


def test_control_characters_are_escaped():
    bad = "[red]\x1b[31m\u202e\ud800"
    text = "\n".join(printed(Entry([bad], [bad], [[1.0]], notes=[bad], reference=bad), 100))
    assert text.count("[red]\\x1b[31m\\u202e\\ud800") >= 4
    assert not {"\x1b", "\u202e", "\ud800"} & set(text)


def test_weights_can_be_a_tensor():
    assert str(Entry(["a"], ["b"], torch.ones(1, 1, requires_grad=True))) == str(Entry(["a"], ["b"], [[1.0]]))


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: Entry("a b", ["c"]), r"source(.|\n)*hint: source.split\(\)"),
        (lambda: Entry(["a"], "c d"), r"target(.|\n)*target.split\(\)"),
        (lambda: Entry(["a"], ["b"], notes="a note"), r"notes=\[note\]"),
        (lambda: Entry(["a"], ["b"], [[0.5, 0.5]]), "T=1 (.|\n)*S=2 (.|\n)*at most T=1"),
        (lambda: Entry(["a"], ["b"], [0.5]), r"shape \(1,\)"),
        (lambda: Entry(["a"], ["b"], [[-0.5]]), "-0.5"),
    ],
)
def test_invalid_arguments_raise(make, pattern: str):
    with pytest.raises(ArgumentError, match=pattern):
        make()
