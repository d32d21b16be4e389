"""The explorer: what a model looked at for one sentence, as one HTML file with every view of it.

The numbers are text in the page that nothing executes, decoded when they are asked for; tokens are made text
by the browser, never markup. Without scripts, the page has the sentence and its alignment as a table.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy

from regard.files.atomic_io import write_whole
from regard.viewing.entry import Entry
from regard.viewing.explorer.packing import LONG, pack
from regard.viewing.html_document import Page, check_ending, document, safe, static
from regard.viewing.html_page import WEIGHTS, facts, table
from regard.viewing.seen import Seen
from regard.viewing.view_inputs import Explorable, seen_of

__all__ = ["explore"]

TITLE = "What the model looked at"

SCRIPTS = (
    *("data", "table", "long", "element", "reading", "matrix", "canvas", "map", "lines"),
    *("sentence", "steps", "heads", "choices", "explorer"),
)
"""The parts of the script, in the order they are read."""


def explore(seen: Explorable, path: str | Path | None = None, title: str = "") -> Page:
    """Make one HTML page with every view of what a model looked at: it opens anywhere and fetches nothing.

    The alignment matrix, two columns of words joined by lines, one sentence with shaded words, the attention
    of one word over time, all layers and heads side by side, and rollout; for pieces or words, with special
    tokens or without, for weights or weights times value norms. Long sequences are drawn from a map and the
    largest weights of each row, with zoom.

    seen: a Seen, or a Translation. path: where to write it; the name ends in .html. title: seen.title unless
    given. Returns the page, a str that a notebook displays. All
    matrices together take less than 9 MB: where they are more, only the largest weights of each row are
    kept. Numbers are rounded as `regard.viewing.explorer.packing` tells: 0.4 % of the largest weight at most.

    >>> from regard.viewing import Seen, Site, explore
    >>> site = Site("decoder.cross", [[0.9, 0.1]], ["<cat>"], ["고양이", "</s>"])
    >>> page = explore(Seen((site,), ("고양이", "</s>"), ("<cat>",), (0, -1), (0,)))
    >>> page.startswith("<!DOCTYPE html>"), "<cat>" in page
    (True, False)
    """
    seen = seen_of(seen, "explore()")
    if path is not None:
        check_ending(Path(path), ".html", "a page is one file of HTML")
    style = static("entry.css") + static("page.css") + static("explorer/explorer.css")
    script = "\n".join(static(f"explorer/{name}.js") for name in SCRIPTS)
    heading = title or seen.title or TITLE
    page = document(heading, style, script, _body(seen, heading))
    if path is not None:
        write_whole(Path(path), page.encode())
    return page


def _body(seen: Seen, heading: str) -> Iterator[str]:
    packed = pack(seen)
    yield "<header>"
    yield f'<h1 dir="auto">{safe(heading)}</h1>'
    yield "</header>"
    yield '<main id="explorer">'
    yield from _still(seen)
    yield "</main>"
    for number, block in enumerate(packed.blocks):
        text = base64.b64encode(block).decode()
        yield f'<script type="text/plain" id="block-{number}">{text}</script>'
    told = json.dumps({"sides": packed.sides, "sites": packed.sites}, separators=(",", ":"))
    # No "<" in it, so that nothing in it ends the element or begins another.
    for obeyed in "<>&":
        told = told.replace(obeyed, f"\\u{ord(obeyed):04x}")
    yield f'<script type="application/json" id="data">{told}</script>'


def _still(seen: Seen) -> Iterator[str]:
    """What there is without scripts: the sentence, and its alignment as a table."""
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
