"""Build a self-contained HTML document. The browser accepts no other JavaScript and CSS in it."""

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
"""Zero-width joiners. They are not escaped, because composed emoji and Persian need them. Other control
characters are escaped."""


class Page(str):
    """A complete HTML document as a string. A notebook displays it in an iframe.

    The iframe is sandboxed: the JavaScript of the page cannot access the notebook or the network.

    >>> Page("<!DOCTYPE html> ...")
    <Page of 19 characters>
    """

    def __repr__(self) -> str:
        return f"<Page of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        size = 'width="100%" height="680" style="border: 0"'
        return f'<iframe sandbox="allow-scripts" {size} srcdoc="{escape(self)}"></iframe>'


def document(title: str, style: str, script: str, body: Iterable[str], images: bool = False) -> Page:
    """Return a complete HTML document.

    title: the title, as plain text.
    style, script: the CSS and the JavaScript of the document.
    body: lines of HTML, which the caller has already escaped.
    images: whether the body contains images as data URIs.

    The Content-Security-Policy forbids network requests, form submission and frames. With trusted types, the
    browser also refuses any JavaScript that tries to turn text into markup.
    """
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        f"{'img-src data:; ' if images else ''}base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
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
    """Escape text for HTML, including quotes. Control characters are written as Python escapes.

    >>> safe("<b>\\u202e")
    '&lt;b&gt;\\\\u202e'
    """
    return escape(clean(text, kept=JOINERS))


@cache
def static(name: str) -> str:
    """Return the text of a CSS or JavaScript file of this package. name: e.g. "page.css"."""
    return resources.files("regard.viewing").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of inline JavaScript or CSS, as text "sha256-...".

    A Content-Security-Policy that contains the hash allows this JavaScript or CSS and no other.
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def check_ending(path: Path, ending: str, hint: str) -> None:
    """Raise ArgumentError if the file name does not end in `ending`.

    hint: the beginning of the hint in the error message. An example of a valid name is appended.
    """
    if path.suffix.lower() != ending:
        hint = f"{hint}: {clean(path.stem) or 'page'}{ending}"
        problem = f"{clean(path.name)!r} does not end in {ending}"
        raise ArgumentError(message("save()", problem, expected=ending, hint=hint))
