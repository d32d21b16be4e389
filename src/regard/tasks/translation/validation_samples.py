"""Samples of validation translations, to print after an evaluation: which to print, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.decoding import Translation

__all__ = ["Sample", "spread_by_length"]


def spread_by_length(texts: Sequence[str], count: int) -> list[int]:
    """Return the indices of `count` texts of different lengths, from short to long. The choice is not random.

    The texts are sorted by length and divided into `count` equal parts. The middle text of each part is
    chosen. So unusually short and long texts are left out. Here, texts of 2, 4 and 6 characters are chosen:

    >>> spread_by_length(["aaa", "aaaaa", "a", "aaaaaa", "aa", "aaaa"], 3)
    [4, 5, 3]
    """
    count = min(count, len(texts))
    order = sorted(range(len(texts)), key=lambda place: (len(texts[place]), place))
    return [order[(2 * part + 1) * len(texts) // (2 * count)] for part in range(count)]


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
