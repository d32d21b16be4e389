"""Entry: one translation as words and attention weights, printed in the terminal or written as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import checked_weights
from regard.viewing.terminal import Shown, draw
from regard.viewing.terminal_colors import clean, cropped

__all__ = ["Entry"]

ROWS = 40
"""Maximum number of target words drawn in the terminal."""

LINES = 4
"""Approximate maximum number of terminal lines for one sentence. Longer sentences are truncated."""

UNSEEN = "no alignment: the model has no cross-attention, or its weights were not recorded"


@dataclass(frozen=True, eq=False)
class Entry(Shown):
    """One translation: its words, and the attention weight of each target word for each source word.

    source, target: lists of words.
    weights: (T, S), an array, a tensor or lists. None if there are no weights. T and S may be smaller than
        the numbers of words. Then only the first T target words and the first S source words have weights.
    score: the log-probability of the translation.
    notes: remarks printed below the translation.
    reference: the reference translation.
    texts: source and target as plain text. Needed if the words are not separated by spaces, for example if
        each "word" is one character.
    caption: a line printed below the matrix.

    >>> from regard.viewing import Entry
    >>> print(Entry(["나는", "고양이"], ["a", "cat"], [[0.7, 0.3], [0.0, 1.0]], score=-0.75))
    source     나는 고양이
    target     a cat
    <BLANKLINE>
            나는    고양이
        a ▓▓▓▓▓▓▓ ░░░░░░░
      cat    ·    ███████
          0  ░▒▓█ 1
    <BLANKLINE>
    score      log-probability -0.75
    """

    source: Sequence[str]
    target: Sequence[str]
    weights: Any = None
    score: float | None = None
    notes: Sequence[str] = ()
    reference: str | None = None
    texts: tuple[str, str] | None = None
    caption: str = ""

    def __post_init__(self) -> None:
        for name in ("source", "target", "notes"):
            value = getattr(self, name)
            if isinstance(value, str):
                hint = f"{name}.split()" if name != "notes" else "notes=[note]"
                raise ArgumentError(message("Entry()", f"{name} is one string, not a list", hint=hint))
            object.__setattr__(self, name, tuple(value))
        if self.weights is None:
            return
        weights, _ = checked_weights("Entry()", self.weights, "TS", None)
        if weights.shape[0] > len(self.target) or weights.shape[1] > len(self.source):
            rows, columns = weights.shape
            problem = f"weights have T={rows} rows and S={columns} columns"
            expected = f"at most T={len(self.target)} (target words) and S={len(self.source)} (source words)"
            raise ArgumentError(message("Entry()", problem, expected=expected))
        object.__setattr__(self, "weights", weights)

    @property
    def target_text(self) -> str:
        """The translation as plain text: its words joined by spaces, or `texts[1]` if `texts` is set."""
        return " ".join(self.target) if self.texts is None else self.texts[1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = max(options.max_width - 11, 8)
        source = " ".join(self.source) if self.texts is None else self.texts[0]
        above = {"source": source, "target": self.target_text}
        if self.reference is not None:
            above["reference"] = self.reference
        shown = {label: cropped(clean(text), LINES * width) for label, text in above.items()}
        yield _labelled(list(shown.items()))
        below = [] if self.score is None else [("score", f"log-probability {self.score:z.2f}")]
        below += [("note", clean(note)) for note in self.notes]
        if self.weights is None:
            below.append(("note", UNSEEN))
        elif self.weights.size:
            weights = self.weights[:ROWS]
            rows, columns = weights.shape
            yield Text()
            yield draw(weights, self.target[:rows], self.source[:columns])
            if self.caption:
                yield Text(clean(self.caption), "dim")
            if rows < len(self.target) or columns < len(self.source):
                yield Text(self.drawn(rows, columns), "dim")
        if below:
            yield Text()
            yield _labelled(below)

    def drawn(self, rows: int, columns: int) -> str:
        """Return a note that says how many words the matrix shows, or "" if it shows all words.

        Example: "shown: the first 40 of 52 target words".

        rows, columns: the numbers of target words and of source words in the matrix.
        """
        counts = ((rows, len(self.target), "target"), (columns, len(self.source), "source"))
        unit = "words" if self.texts is None else "characters"
        parts = [f"the first {some} of {all_} {side} {unit}" for some, all_, side in counts if some < all_]
        return f"shown: {' and '.join(parts)}" if parts else ""


def _labelled(lines: list[tuple[str, str]]) -> Table:
    """Return a table for the terminal with two columns: labels in a faint style, and wrapped texts.

    lines: a pair (label, text) for each row of the table.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=9, no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(label, Text(text))
    return table
