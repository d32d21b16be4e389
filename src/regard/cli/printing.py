"""The output of all commands: JSON and a console, without characters that a terminal could interpret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console, ConsoleRenderable, RenderHook
from rich.table import Table
from rich.text import Text

from regard.errors import printable
from regard.files.untrusted import strict
from regard.training.logs.live_table import Shown


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON. NaN and infinity become strings; characters that are not printable are escaped.

    The escaped characters are control characters, characters that change the direction of the text, and
    invisible characters. json.dumps() alone escapes only the control characters below U+0020.

    indent: number of spaces per level. None: the result is one line.

    >>> json_text({"text": "고양이\\x9b", "score": float("nan")})
    '{"text": "고양이\\\\u009b", "score": "NaN"}'
    """
    text = json.dumps(strict(value), indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, see json_text()."""
    typer.echo(json_text(value, indent=2))


def facts_table(facts: Mapping[str, str], title: str = "", style: str = "cyan") -> Table:
    """Return a table of two columns without headings: names in the given style, and wrapped values."""
    heading = Text(title) if title else None
    table = Table(box=None, show_header=False, title=heading, title_justify="left", title_style="bold")
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(printable(name)), Text(printable(value)))
    return table


class _PrintableText(RenderHook):
    """Replaces control characters in everything that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Shown(each) for each in renderables]


def printable_console(**options: Any) -> Console:
    """Return a rich Console on which text from data, models and file names cannot change the terminal.

    Control characters, characters that change the direction of the text, and unpaired surrogates are replaced
    by U+FFFD. Colours and drawings of Regard are not changed.

    options: arguments of Console. highlight is False.

    >>> import io
    >>> console = printable_console(file=io.StringIO())
    >>> console.print("label \\x1b[31m")
    >>> console.file.getvalue()
    'label \ufffd[31m\\n'
    """
    console = Console(**{"highlight": False, **options})
    console.push_render_hook(_PrintableText())
    return console
