"""Sample: a validation translation that is printed after an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.decoding import Translation

__all__ = ["Sample"]


@dataclass(frozen=True)
class Sample:
    """A translation of a validation sentence, to print with the reference translation `wanted`.

    drawn: whether to draw the attention of the translation, if the output is a terminal.
    """

    translation: Translation
    source: str
    wanted: str
    drawn: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        screen = console.is_terminal or console.is_jupyter
        if self.drawn and screen:
            yield self.translation.entry(self.wanted)
            return
        text = f"source     {self.source}\ntarget     {self.translation.text}\nreference  {self.wanted}"
        yield Text(text) if screen else Text(text, no_wrap=True, overflow="ignore")
