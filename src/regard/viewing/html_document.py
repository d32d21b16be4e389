"""Build a self-contained HTML document. The browser accepts no other JavaScript and CSS in it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

from regard.errors import ArgumentError, message
from regard.files.atomic_io import write_whole
from regard.viewing.terminal_colors import clean

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


def document(title: str, style: str, script: str, body: Iterable[str]) -> Page:
    """Return a complete HTML document.

    title: the title, as plain text.
    style, script: the CSS and the JavaScript of the document.
    body: lines of HTML, which the caller has already escaped. Images are data URIs.

    The Content-Security-Policy forbids network requests, form submission and frames. With trusted types, the
    browser also refuses any JavaScript that tries to turn text into markup.
    """
    lines = list(filter(None, body))
    images = any("<img " in line for line in lines)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        f"{'img-src data:; ' if images else ''}base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    page = [
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
        *lines,
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return Page("\n".join(page) + "\n")


def article_page(
    title: str,
    body: Iterable[str],
    *,
    about: str = "",
    count: str = "",
    hint: str = "",
    files: Iterable[str] = (),
    after: Iterable[str] = (),
    name: str = "",
) -> Page:
    """Return a page with a heading and articles, in the style of all pages of attention.

    title: the heading, as plain text.
    body: lines of HTML, which the caller has already escaped.
    about, count: lines below the heading, as plain text.
    hint: how to use the page; the JavaScript of the page shows it.
    files: the JavaScript files of the page, and its CSS files besides those of all pages.
    after: lines of HTML after the articles.
    name: the id of the element with the articles.
    """
    lines = [
        "<header>",
        f'<h1 dir="auto">{safe(title)}</h1>',
        f'<p dir="auto">{safe(about)}</p>' if about else "",
        f'<p class="quiet">{safe(count)}</p>' if count else "",
        f'<p class="quiet" id="hint" hidden>{safe(hint)}</p>' if hint else "",
        "</header>",
        f'<main id="{name}">' if name else "<main>",
        *body,
        "</main>",
        *after,
    ]
    names = ("entry.css", "page.css", *files)
    style = "".join(static(each) for each in names if each.endswith(".css"))
    script = "\n".join(static(each) for each in names if each.endswith(".js"))
    return document(title, style, script, lines)


def fragment_of(body: Iterable[str]) -> str:
    """Return HTML for a notebook: the lines of `body`, which are escaped, with their CSS, no JavaScript."""
    lines = ['<div class="regard">', f"<style>{static('entry.css')}</style>", *filter(None, body), "</div>"]
    return "\n".join(lines) + "\n"


def save_html(path: str | Path, page: Callable[[], str]) -> None:
    """Write a page to a file, atomically. Raise ArgumentError if the name does not end in .html.

    page: a function that returns the page; it is called after the name is checked.
    """
    path = check_ending(path, ".html", "use the ending of an HTML file")
    write_whole(path, page().encode())


def image_uri(kind: str, data: bytes) -> str:
    """Return an image as the value of an attribute src. kind: "png" or "svg+xml"."""
    return escape(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


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


SUFFIXES = (".png", ".svg", ".pdf", ".gif")
"""The endings of picture files."""


def check_ending(path: str | os.PathLike[str], endings: str | Sequence[str], hint: str = "") -> Path:
    """Return the path of a file to write; raise ArgumentError if it does not end in one of `endings`.

    hint: the beginning of the hint in the error message. An example of a valid name is appended.

    >>> check_ending(b"x.svg", ".svg")
    Traceback (most recent call last):
    regard.errors.ArgumentError: save(): path is of type bytes
    expected: a path: str or pathlib.Path
    """
    if not isinstance(path, str | os.PathLike):
        problem, expected = f"path is of type {type(path).__name__}", "a path: str or pathlib.Path"
        raise ArgumentError(message("save()", problem, expected=expected))
    path = Path(path)
    known = (endings,) if isinstance(endings, str) else tuple(endings)
    if path.suffix.lower() not in known:
        problem, expected = f"{clean(path.name)!r} has an unknown file type", ", ".join(known)
        hint = f"{hint}: {clean(path.stem) or 'page'}{known[0]}" if hint else ""
        raise ArgumentError(message("save()", problem, expected=f"a name ending in {expected}", hint=hint))
    return path
