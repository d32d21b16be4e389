"""Pages: translations as one HTML file that opens anywhere, fetches nothing and obeys nothing it shows.

Every text is cleaned and escaped: what a browser or a reader's eye would obey is spelled out, and the rest is
text. Weights are a table, which is all there is without scripts; page.js reads that table, so that no data
stands in a script, and the page allows no other script or style than its own, by their hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy

from regard.files.atomic_io import write_whole
from regard.viewing.entry import UNSEEN, Entry
from regard.viewing.html_document import JOINERS, check_ending, document, safe, static
from regard.viewing.terminal_colors import clean, cropped
from regard.viewing.word_groups import SHOWN_SPACE

__all__ = ["fragment", "page", "save_page"]

LONGEST = 100
"""The most words of a side whose weights are drawn."""

LEVELS = 16
"""How many depths of colour a weight may have; entry.css names each."""

OPEN, FIRST = 10, 3
"""In pages of more than OPEN translations, tables after the first few are folded until they are asked for."""

WIDE = 90
"""Words above a table stand on end where side by side they would take more letters than this."""

LONGEST_HEAD = 24
"""Longer words are cut in the heads of tables; above, they are whole."""

WEIGHTS = "how much each target word (down) looked at each source word (across); a blank is less than .005"


def page(entries: Iterable[Entry], title: str = "Translations", about: str = "") -> str:
    """One self-contained HTML page of translations: source, target, and a table of what looked at what.

    entries: one or a few hundred. about: a line under the title. Pointing at a word, or reaching it with Tab
    and the arrow keys, shows what it looked at.

    >>> from regard.viewing import Entry, page
    >>> text = page([Entry(["고양이"], ["<cat>"], [[1.0]])], title="One word")
    >>> text.startswith("<!DOCTYPE html>"), "<cat>" in text, "&lt;cat&gt;" in text
    (True, False, True)
    """
    listed = list(entries)
    many = f"{len(listed)} translations. Weights: {WEIGHTS}." if len(listed) != 1 else ""
    body = [
        "<header>",
        f'<h1 dir="auto">{safe(title)}</h1>',
        f'<p dir="auto">{safe(about)}</p>' if about else "",
        f'<p class="quiet">{many}</p>' if many else "",
        '<p class="quiet" id="hint" hidden>Point at a word, or reach it with Tab and the arrow keys, to see '
        "what it looked at.</p>",
        "</header>",
        "<main>",
        *(
            line
            for number, entry in enumerate(listed, 1)
            for line in _article(
                entry, number if len(listed) > 1 else None, len(listed) <= OPEN or number <= FIRST
            )
        ),
        "</main>",
    ]
    return document(title, static("entry.css") + static("page.css"), static("page.js"), body)


def fragment(entry: Entry) -> str:
    """One translation as a piece of HTML for a notebook: escaped, styled by itself, without a script.

    >>> from regard.viewing import Entry, fragment
    >>> text = fragment(Entry(["고양이"], ["cat"], [[1.0]]))
    >>> "<td" in text, "<script" in text
    (True, False)
    """
    lines = [
        '<div class="regard">',
        f"<style>{static('entry.css')}</style>",
        *_article(entry, None, True),
        "</div>",
    ]
    return "\n".join(lines) + "\n"


def save_page(
    path: str | Path, entries: Iterable[Entry], title: str = "Translations", about: str = ""
) -> None:
    """Write a page to a file that ends in .html, which is there whole or not at all."""
    path = Path(path)
    check_ending(path, ".html", "a page is one file of HTML")
    write_whole(path, page(entries, title, about).encode())


def _article(entry: Entry, number: int | None, unfolded: bool) -> Iterator[str]:
    """One translation; with its number where it is one of many."""
    yield "<article>" if number is None else f'<article id="t{number}">'
    if number is not None:
        yield f'<h2><a href="#t{number}">{number}</a></h2>'
    rows, columns = shown(entry)
    yield from facts(entry, (*entry.notes, *([UNSEEN] if entry.weights is None else [])))
    if rows and columns:
        told = entry.drawn(rows, columns)
        about = "weights" if number is not None else f"weights: {WEIGHTS}"
        yield f"<details{' open' if unfolded else ''}><summary>{about}{told and f' ({told})'}</summary>"
        yield from table(entry)
        yield "</details>"
    yield "</article>"


def shown(entry: Entry) -> tuple[int, int]:
    """Of how many target and source words the weights are drawn."""
    rows, columns = (0, 0) if entry.weights is None else entry.weights.shape
    return min(rows, LONGEST), min(columns, LONGEST)


def facts(entry: Entry, notes: Sequence[str]) -> Iterator[str]:
    """What there is to say of a translation, in words."""
    rows, columns = shown(entry)
    apart = entry.texts is None
    yield "<dl>"
    yield f'<dt>source</dt><dd class="source" dir="auto" lang="">{_line(entry.source, columns, apart)}</dd>'
    yield f'<dt>target</dt><dd class="target" dir="auto" lang="">{_line(entry.target, rows, apart)}</dd>'
    if entry.reference is not None:
        yield f'<dt>reference</dt><dd dir="auto" lang="">{safe(entry.reference) or _NOTHING}</dd>'
    if entry.score is not None:
        yield f"<dt>score</dt><dd>log-probability {entry.score:.2f}</dd>"
    if notes:
        yield "<dt>notes</dt>" + "".join(f'<dd dir="auto">{safe(note)}</dd>' for note in notes)
    yield "</dl>"


_NOTHING = '<i class="quiet">nothing</i>'


def _line(words: Sequence[str], seen: int, apart: bool) -> str:
    """Words with a span for each that has weights, and the others as they are; apart: with spaces between.

    No <bdi>: the direction of the line is found from its words, and their order is that of the sentence.
    """
    words = words if apart else [" " if word == SHOWN_SPACE else word for word in words]
    spans = [f"<span>{safe(word)}</span>" for word in words[:seen]]
    return (" " if apart else "").join([*spans, *map(safe, words[seen:])]) or _NOTHING


def table(entry: Entry) -> Iterator[str]:
    """The weights as a table, target words down, source words across."""
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
    """A weight to two digits, and its depth as a class: a style of its own is what the policy forbids."""
    if weight != weight:
        return "<td>?</td>"
    number = f"{weight:.2f}".removeprefix("0").removesuffix(".00")
    depth = round(level * LEVELS)
    return f'<td class="l{depth}">{number}</td>' if depth else f"<td>{number}</td>"


def _head(word: str) -> str:
    return escape(cropped(clean(word, kept=JOINERS), LONGEST_HEAD))
