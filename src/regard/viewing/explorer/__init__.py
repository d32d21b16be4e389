"""explore(): show the recorded attention of one sentence in an interactive HTML page with all views.

The page contains the weights as base64 text, and decodes them for drawing. Tokens are inserted as text, never
as markup. Without JavaScript, the page shows the sentence and its alignment as a table.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy

from regard.viewing.entry import Entry
from regard.viewing.explorer.packing import LONG, pack
from regard.viewing.html_document import Page, article_page, check_ending, save_html
from regard.viewing.html_page import WEIGHTS, facts, table
from regard.viewing.seen import Seen
from regard.viewing.view_inputs import Drawable, seen_of

__all__ = ["explore"]

TITLE = "Recorded attention"

SCRIPTS = (
    *("data", "table", "long", "element", "reading", "matrix", "canvas", "map", "lines"),
    *("sentence", "steps", "heads", "choices", "explorer"),
)
"""The JavaScript files of the page. They are joined to one script in this order."""


def explore(seen: Drawable, path: str | Path | None = None, title: str = "") -> Page:
    """Return an interactive HTML page with every view of recorded attention.

    The page is one file and makes no network requests. It has these views: the alignment matrix, two columns
    of words joined by lines, a sentence with shaded words, the attention to one word over time, thumbnails of
    all layers and heads, and attention rollout. The reader can choose between subwords and words, and between
    weights and weights times value norms. Special tokens can be hidden. The full matrix of a long sequence is
    not stored. Then the page has the maximum and the mean of each block of the matrix, and the largest
    weights of each row.

    seen: a Seen, a Translation, or the result of record() for one sequence.
    path: file to write, ending in .html. Default: no file is written.
    title: heading of the page. Default: the title of `seen`.

    Returns the page, a str that a notebook displays. The matrices take less than 9 MB of the page. If all
    weights need more space, only the largest weights of each row are stored. Weights are rounded. The error
    is at most 0.4 % of the largest weight (see `regard.viewing.explorer.packing`).

    >>> from regard.viewing import Seen, Site, explore
    >>> site = Site("decoder.cross", [[0.9, 0.1]], ["<cat>"], ["고양이", "</s>"])
    >>> page = explore(Seen((site,), ("고양이", "</s>"), ("<cat>",), (0, -1), (0,)))
    >>> page.startswith("<!DOCTYPE html>"), "<cat>" in page
    (True, False)
    """
    seen = seen_of(seen, "explore()")
    if path is not None:
        check_ending(path, ".html", "use the ending of an HTML file")
    files = ("explorer/explorer.css", *(f"explorer/{name}.js" for name in SCRIPTS))
    heading = title or seen.title or TITLE
    page = article_page(heading, _still(seen), files=files, after=_data(seen), name="explorer")
    if path is not None:
        save_html(path, lambda: page)
    return page


def _data(seen: Seen) -> Iterator[str]:
    """Yield the elements with the weights, which the JavaScript of the page reads."""
    packed = pack(seen)
    for number, block in enumerate(packed.blocks):
        text = base64.b64encode(block).decode()
        yield f'<script type="text/plain" id="block-{number}">{text}</script>'
    data = json.dumps({"sides": packed.sides, "sites": packed.sites}, separators=(",", ":"))
    # Without the character "<", no text in the data can close this script element or open a new element.
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    yield f'<script type="application/json" id="data">{data}</script>'


def _still(seen: Seen) -> Iterator[str]:
    """Yield the HTML that the page shows without JavaScript: the sentence and its alignment as a table."""
    crossing = tuple(site for site in seen.sites if site.kind == "cross" and site.weights[0].size <= LONG)
    words = replace(seen, sites=crossing).words().without_specials(renormalise=False)
    cross = words.sites
    weights = None
    if cross and {(site.rows, site.columns) for site in cross} == {(words.target, words.source)}:
        weights = numpy.mean([site.weights.mean(0) for site in cross], 0)
    entry = Entry(words.source, words.target, weights, seen.score)
    yield "<article>"
    yield from facts(entry, seen.notes)
    if weights is not None and weights.size:
        yield f'<details id="still" open><summary>weights: {WEIGHTS}</summary>'
        yield from table(entry)
        yield "</details>"
    yield "</article>"
