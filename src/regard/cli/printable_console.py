"""The console of all commands: control characters in printed text are replaced."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleRenderable, RenderHook

from regard.training.logs.live_table import Shown

__all__ = ["printable_console"]


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
