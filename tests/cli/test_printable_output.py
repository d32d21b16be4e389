"""Text from data and models cannot change the terminal: JSON output is escaped, other output is replaced."""

from __future__ import annotations

import ast
import io
import json

import numpy
import pytest
from rich.table import Table
from rich.text import Text

from regard.cli.printing import json_text, printable_console
from regard.evaluation.classifier_erasure import WordEffect, WordEffects
from regard.evaluation.text_classifier import Classification, ReadText
from regard.runs.run_commands import ViewOptions
from regard.tasks.classification.task import ClassificationView
from tests.reading import PACKAGE, nodes

HOSTILE = "a\x1b]0;title\x07\x9b2J\x85\u200b\u202e\u2066\u2028\U000e0001"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_escaped_and_equal(indent: int | None):
    value = {"text": HOSTILE, "words": ["고양이", HOSTILE]}
    text = json_text(value, indent)
    assert all(line.isprintable() for line in text.split("\n")) and "고양이" in text
    assert json.loads(text) == value


@pytest.mark.parametrize("hostile", [HOSTILE, Text(HOSTILE)])
def test_console_replaces_control_characters(hostile: str | Text):
    page = io.StringIO()
    console = printable_console(file=page, width=60)
    table = Table(title=hostile)
    table.add_row(hostile, style="bold")
    console.print(hostile, table)
    console.print(hostile, soft_wrap=True, style="bold")
    assert not set(page.getvalue()) & set("\x1b\x07\x9b\x85\u202e\u2066\u2028")
    assert page.getvalue().count("2J") == 4


def test_commands_print_with_these_functions():
    """The exceptions are spinners of `regard view`, which show printable names of folders."""
    wrong = []
    for path in (PACKAGE / "cli").glob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name.endswith(".dumps") and path.stem != "printing":
                    wrong.append(f"{path.name}:{node.lineno}: {name}")
                if name.endswith("Console().print") or name == "Console":
                    wrong.append(f"{path.name}:{node.lineno}: {name}")
    assert [each for each in wrong if not each.startswith(("printing.py", "view"))] == []


@pytest.mark.parametrize("view", ["shaded", "erasure"])
def test_view_of_a_classifier_with_hostile_labels(view: str):
    read = ReadText("good", (7, 3), ("good", "</s>"), (0, -1), {"pool": numpy.array([[0.9, 0.1]])})
    result = Classification(HOSTILE, {"neg": 0.0, HOSTILE: 1.0}, (read,))
    effects = WordEffects(HOSTILE, 1.0, (WordEffect("first", 0, "good", None, None, 0.5),))
    drawn = ClassificationView(result.seen(), result, effects).picture(ViewOptions(view))
    page = io.StringIO()
    printed = printable_console(file=page)
    printed.pop_render_hook()  # as rich.print() does
    printed.print(drawn.terminal)
    for text in (page.getvalue(), drawn.svg()):
        assert not set(text) & set("\x1b\x07\x9b\x85\u202e\u2066\u2028")
