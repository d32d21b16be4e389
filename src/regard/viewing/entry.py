"""Entry: one translation as words and attention weights, printed in the terminal or written as HTML.

A page of translations is one file and makes no network requests. Every text is escaped, and control
characters are written as Python escapes. The weights are an HTML table, which works without JavaScript.
page.js reads this table, so the JavaScript contains no data. The Content-Security-Policy allows only the
JavaScript and CSS of the page, by their hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import checked_weights
from regard.viewing.html_document import JOINERS, article_page, fragment_of, safe, save_html
from regard.viewing.terminal import Shown, draw
from regard.viewing.terminal_colors import clean, cropped
from regard.viewing.word_groups import SHOWN_SPACE

ROWS = 40
"""Maximum number of target words drawn in the terminal."""

LINES = 4
"""Approximate maximum number of terminal lines for one sentence. Longer sentences are truncated."""

UNSEEN = "no alignment: the model has no cross-attention, or its weights were not recorded"

LONGEST = 100
"""Maximum number of rows, and maximum number of columns, in the table of weights."""

LEVELS = 16
"""Number of different colours of the cells. entry.css has one CSS class for each colour."""

OPEN, FIRST = 10, 3
"""If a page has more than OPEN translations, only the first FIRST tables are expanded."""

WIDE = 90
"""If all column headings together have more characters than this, they are written vertically."""

LONGEST_HEAD = 24
"""Maximum number of characters in a table heading. Longer words are truncated. The sentence above the table
shows the full words."""

WEIGHTS = "attention of the target (rows) to the source (columns); blank cells are below .005"


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


def page(entries: Iterable[Entry], title: str = "Translations", about: str = "") -> str:
    """Return a self-contained HTML page of translations: source, target, and a table of attention weights.

    entries: the translations, at most a few hundred.
    title: the heading of the page.
    about: a line below the heading.

    If the reader points at a word, or selects it with Tab and the arrow keys, the page shows its largest
    weights.

    >>> from regard.viewing import Entry, page
    >>> text = page([Entry(["고양이"], ["<cat>"], [[1.0]])], title="One word")
    >>> text.startswith("<!DOCTYPE html>"), "<cat>" in text, "&lt;cat&gt;" in text
    (True, False, True)
    """
    listed = list(entries)
    many = f"{len(listed)} translations. Weights: {WEIGHTS}." if len(listed) != 1 else ""
    several = len(listed) > 1
    body = (
        line
        for number, entry in enumerate(listed, 1)
        for line in _article(entry, number if several else None, len(listed) <= OPEN or number <= FIRST)
    )
    hint = "Point at a word, or move to it with Tab and the arrow keys, to see what it attended to."
    return article_page(title, body, about=about, count=many, hint=hint, files=["words.js", "page.js"])


def fragment(entry: Entry) -> str:
    """Return one translation as an HTML fragment for a notebook. It contains its CSS and no JavaScript.

    >>> from regard.viewing import Entry, fragment
    >>> text = fragment(Entry(["고양이"], ["cat"], [[1.0]]))
    >>> "<td" in text, "<script" in text
    (True, False)
    """
    return fragment_of(_article(entry, None, True))


def save_page(
    path: str | Path, entries: Iterable[Entry], title: str = "Translations", about: str = ""
) -> None:
    """Write the HTML page that page() returns to a file, atomically.

    path: the file to write, ending in .html.
    entries, title, about: see page().
    """
    save_html(path, lambda: page(entries, title, about))


def _article(entry: Entry, number: int | None, unfolded: bool) -> Iterator[str]:
    """Yield the HTML of an <article> with one translation and its table of attention weights.

    number: the number of the translation on a page of several translations. None for a single translation.
    unfolded: whether the table is expanded when the page opens.
    """
    yield "<article>" if number is None else f'<article id="t{number}">'
    if number is not None:
        yield f'<h2><a href="#t{number}">{number}</a></h2>'
    rows, columns = shown(entry)
    yield from facts(entry, (*entry.notes, *([UNSEEN] if entry.weights is None else [])))
    if rows and columns:
        note = entry.drawn(rows, columns)
        about = "weights" if number is not None else f"weights: {WEIGHTS}"
        yield f"<details{' open' if unfolded else ''}><summary>{about}{note and f' ({note})'}</summary>"
        yield from table(entry)
        yield "</details>"
    yield "</article>"


def shown(entry: Entry) -> tuple[int, int]:
    """Return how many rows and columns the HTML table of weights has, at most LONGEST each.

    The result for an Entry without weights is (0, 0).
    """
    rows, columns = (0, 0) if entry.weights is None else entry.weights.shape
    return min(rows, LONGEST), min(columns, LONGEST)


def facts(entry: Entry, notes: Sequence[str]) -> Iterator[str]:
    """Yield the HTML of a list (<dl>) with source, target, reference, score and notes of a translation."""
    rows, columns = shown(entry)
    apart = entry.texts is None
    yield "<dl>"
    yield f'<dt>source</dt><dd class="source" dir="auto" lang="">{_line(entry.source, columns, apart)}</dd>'
    yield f'<dt>target</dt><dd class="target" dir="auto" lang="">{_line(entry.target, rows, apart)}</dd>'
    if entry.reference is not None:
        yield f'<dt>reference</dt><dd dir="auto" lang="">{safe(entry.reference) or _NOTHING}</dd>'
    if entry.score is not None:
        yield f"<dt>score</dt><dd>log-probability {entry.score:z.2f}</dd>"
    if notes:
        yield "<dt>notes</dt>" + "".join(f'<dd dir="auto">{safe(note)}</dd>' for note in notes)
    yield "</dl>"


_NOTHING = '<i class="quiet">nothing</i>'


def _line(words: Sequence[str], weighted: int, apart: bool) -> str:
    """Return a sentence as HTML, with a <span> around each of the first `weighted` words.

    apart: whether to put spaces between the words.

    The words have no <bdi> element. So the browser derives the direction of the line from the words, and
    keeps the order of the sentence.
    """
    words = words if apart else [" " if word == SHOWN_SPACE else word for word in words]
    spans = [f"<span>{safe(word)}</span>" for word in words[:weighted]]
    return (" " if apart else "").join([*spans, *map(safe, words[weighted:])]) or _NOTHING


def table(entry: Entry) -> Iterator[str]:
    """Yield the weights as an HTML table, a row for each target word and a column for each source word."""
    rows, columns = shown(entry)
    heads = [f'<th scope="col"><bdi>{_head(word)}</bdi></th>' for word in entry.source[:columns]]
    letters = sum(max(len(word[:LONGEST_HEAD]), 5) for word in entry.source[:columns])
    yield '<div class="scroll" tabindex="0" role="region" aria-label="weights">'
    yield '<table class="tall">' if letters > WIDE else "<table>"
    yield f"<thead><tr><td></td>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    weights = entry.weights[:rows, :columns]
    most = weights[~numpy.isnan(weights)].max(initial=0.0) or 1.0
    for word, row in zip(entry.target, weights, strict=False):
        cells = "".join(_cell(weight, weight / most) for weight in row.tolist())
        yield f'<tr><th scope="row"><bdi>{_head(word)}</bdi></th>{cells}</tr>'
    yield "</tbody></table></div>"


def _cell(weight: float, level: float) -> str:
    """Return the HTML of a table cell with a weight, rounded to two digits.

    level: the colour of the cell, from 0 (smallest weight) to 1 (largest). A CSS class sets the colour,
        because the Content-Security-Policy of the page allows no inline styles.
    """
    if weight != weight:
        return "<td>?</td>"
    number = f"{weight:.2f}".removeprefix("0").removesuffix(".00")
    depth = round(level * LEVELS)
    return f'<td class="l{depth}">{number}</td>' if depth else f"<td>{number}</td>"


def _head(word: str) -> str:
    return escape(cropped(clean(word, kept=JOINERS), LONGEST_HEAD))
