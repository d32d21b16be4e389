"""One HTML document that fetches nothing and runs no script or style but its own, which it names by hash."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

from regard.errors import ArgumentError, message
from regard.viewing.terminal_colors import clean

__all__ = ["JOINERS", "Page", "check_ending", "document", "safe", "static"]

JOINERS = "\u200c\u200d"
"""What holds emoji of several people together, and keeps Persian letters apart: shown, not spelled out."""


class Page(str):
    """A whole HTML document as text, which a notebook shows in a frame of its own.

    The frame is sandboxed: the scripts of the page run in it, and cannot reach the notebook or a network.

    >>> Page("<!DOCTYPE html> ...")
    <Page of 19 characters>
    """

    def __repr__(self) -> str:
        return f"<Page of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        size = 'width="100%" height="680" style="border: 0"'
        return f'<iframe sandbox="allow-scripts" {size} srcdoc="{escape(self)}"></iframe>'


def document(title: str, style: str, script: str, body: Iterable[str]) -> Page:
    """A whole document: body is its lines of HTML, escaped by whoever made them.

    Nothing may be fetched, sent or framed, and no text can become markup by a script: every such door of the
    browser is closed (trusted types).
    """
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{safe(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        '<body class="regard">',
        *filter(None, body),
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return Page("\n".join(lines) + "\n")


def safe(text: str) -> str:
    """Text for a page: escaped, quotes too, and what is obeyed rather than shown spelled as Python does.

    >>> safe("<b>\\u202e")
    '&lt;b&gt;\\\\u202e'
    """
    return escape(clean(text, kept=JOINERS))


@cache
def static(name: str) -> str:
    """A file of this folder: a style or a script."""
    return resources.files("regard.viewing").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a Content-Security-Policy names a text that it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def check_ending(path: Path, ending: str, hint: str) -> None:
    """Raise where a file's name does not end as it should."""
    if path.suffix.lower() != ending:
        hint = f"{hint}: {clean(path.stem) or 'page'}{ending}"
        problem = f"{clean(path.name)!r} does not end in {ending}"
        raise ArgumentError(message("save()", problem, expected=ending, hint=hint))
