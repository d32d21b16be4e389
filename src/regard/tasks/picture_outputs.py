"""Check the options --output (a picture) and --page (an HTML page) of several tasks before the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.errors import ArgumentError, DataError, message, shown
from regard.viewing.html_document import SUFFIXES

__all__ = ["check_output_ending", "check_folder", "check_outputs", "check_page", "is_picture"]

PAGES = (".html", ".htm")
"""File name extensions of HTML pages."""

IMAGES = frozenset((*SUFFIXES, ".bmp", ".eps", ".jpeg", ".jpg", ".ps", ".tif", ".tiff", ".webp"))
"""File name extensions of pictures, also of those that Regard does not write."""


def is_picture(path: Path | None) -> bool:
    """Return whether a file name ends in .png, .svg, .pdf or .gif.

    >>> is_picture(Path("dog.PNG")), is_picture(Path("captions.txt")), is_picture(None)
    (True, False, False)
    """
    return path is not None and path.suffix.lower() in SUFFIXES


def check_outputs(picture: Path | None, page: Path | None, count: int, noun: str, example: str) -> None:
    """Raise an error if a picture or a page cannot be written, before the model runs.

    picture: the picture file to write, or None. A picture shows one example, so `count` must be 1.
    page: the .html file to write, or None.
    count: number of examples.
    noun: the word for an example in error messages, such as "image".
    example: an example of a page name, such as "captions.html", for the hint of an error message.
    """
    if picture is not None and count != 1:
        problem = f"a picture shows one {noun}, but there are {count:,} {noun}s"
        raise ArgumentError(message("--output", problem, hint=f"write a page: --page {example}"))
    check_page(page)
    check_folder(picture)


def check_output_ending(output: Path | None, pictures: Sequence[str] = (), page: bool = False) -> None:
    """Raise ArgumentError if --output names a picture or an HTML page that the command does not write there.

    Without this check, the command would write plain text into a file named, for example, x.html.

    output: the value of --output, or None.
    pictures: the extensions of the pictures that the command writes, such as (".png", ".svg").
    page: whether the command has the option --page.

    >>> check_output_ending(Path("answers.txt")), check_output_ending(Path("x.png"), pictures=(".png",))
    (None, None)
    """
    suffix = "" if output is None else output.suffix.lower()
    if output is None or suffix in pictures or suffix not in (*PAGES, *IMAGES):
        return
    expected = f"a text file, such as {shown(output.stem) or 'output'}.txt"
    if pictures:
        expected += f", or a picture: {', '.join(pictures)}"
    if suffix in PAGES:
        problem = f"{shown(output.name)}: this option writes text, not an HTML page"
        hint = f"use --page {shown(output.with_suffix('.html'))}" if page else ""
    else:
        problem = f"{shown(output.name)}: this command does not write pictures of the type {suffix}"
        hint = "" if pictures else "regard view RUN draws the attention of one input: --output FILE.png"
    raise ArgumentError(message("--output", problem, expected=expected, hint=hint))


def check_page(page: Path | None) -> None:
    """Raise an error if the file name does not end in .html, or if its folder does not exist."""
    if page is not None and page.suffix.lower() != ".html":
        problem = f"{shown(page.name)} does not end in .html"
        raise ArgumentError(message("--page", problem, hint=f"{shown(page.stem) or 'page'}.html"))
    check_folder(page)


def check_folder(path: Path | None) -> None:
    """Raise DataError if the folder of a file to write does not exist."""
    if path is not None and not path.resolve().parent.is_dir():
        problem = "the folder of this file does not exist"
        raise DataError(message(shown(path), problem, hint="create the folder first"))
