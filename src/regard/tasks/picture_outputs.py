"""Write the picture and the HTML page of --output and --page; check their names before the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.line_io import say
from regard.errors import ArgumentError, DataError, message, shown
from regard.viewing.html_document import SUFFIXES
from regard.viewing.result import Result, Saved

PAGES = (".html", ".htm")
"""File name extensions of HTML pages."""

IMAGES = frozenset((*SUFFIXES, ".bmp", ".eps", ".jpeg", ".jpg", ".ps", ".tif", ".tiff", ".webp"))
"""File name extensions of pictures, also of those that Regard does not write."""

DOCUMENTS = dict.fromkeys((".xls", ".xlsx"), "an Excel workbook") | dict.fromkeys(
    (".doc", ".docx", ".odt", ".ods"), "a document"
)
"""File name extensions of other formats that Regard does not write. Extension -> name of the format."""


def is_picture(path: Path | None, endings: Sequence[str] = SUFFIXES) -> bool:
    """Return whether a file name ends in .png, .svg, .pdf or .gif, or in one of `endings`.

    >>> is_picture(Path("dog.PNG")), is_picture(Path("captions.txt")), is_picture(None)
    (True, False, False)
    """
    return path is not None and path.suffix.lower() in endings


class ResultFiles:
    """The picture and the HTML page of the results of a command: its options --output and --page.

    A picture shows one result, a page at most Result.most results.

    noun: the word for an input in messages, such as "image".
    page: the HTML page to write, or None.
    picture: the picture to write, or None.

    >>> ResultFiles("image").enabled
    False
    """

    def __init__(self, noun: str, page: Path | None = None, picture: Path | None = None):
        self.noun, self.page, self.picture, self.count = noun, page, picture, 0
        self._entries: list[Any] = []
        self._is_full = False
        self._drawing: Saved | None = None
        self._write_page = Result.write_page
        check_page(page)
        check_folder(picture)

    @property
    def enabled(self) -> bool:
        """Whether save() writes a file. If so, the attention must be recorded."""
        return self.picture is not None or self.page is not None

    def expect(self, inputs: int) -> None:
        """Raise ArgumentError if there is a picture, and the number of inputs is not 1."""
        if self.picture is not None and inputs != 1:
            raise self._several(f"{inputs:,} {self.noun}s")

    def add(self, result: Result, **about: Any) -> None:
        """Add a result, unless the page is full.

        about: arguments of page_entry(), such as the reference of a translation.

        Raise ArgumentError if it is the second result of a picture.
        """
        self.count += 1
        if self.picture is not None and self.count > 1:
            raise self._several("several")
        self._is_full = len(self._entries) >= result.most
        if not self.enabled or self._is_full:
            return
        entry = result.page_entry(**about)
        if entry is not None:
            self._entries.append(entry)
            self._write_page = result.write_page
            self._drawing = None if self.picture is None else result.drawing()

    def save(self, title: str, about: str = "") -> None:
        """Write the files and print their names, and how many results a page leaves out.

        title, about: the heading of the page, and a line below it.
        """
        if self.enabled and not self._entries:
            say(f"no file was written: there is no {self.noun} with a result to draw")
            return
        if self.picture is not None and self._drawing is not None:
            for hint in self._drawing.save(self.picture):
                say(hint)
            say(f"Wrote {shown(self.picture)}")
        if self.page is not None:
            kept = len(self._entries)
            cut = f"{kept} of {self.count:,} {self.noun}s" if kept < self.count else ""
            cut = f"the first {cut}" if self._is_full else cut
            self._write_page(self.page, self._entries, title, ". ".join(filter(None, (about, cut))))
            say(f"Wrote {shown(self.page)}" + (f" with {cut}" if cut else ""))

    def _several(self, count: str) -> ArgumentError:
        problem = f"a picture shows one {self.noun}, but there are {count}"
        return ArgumentError(message("--output", problem, hint="write a page: --page page.html"))


def write_results(
    page: Path, results: Sequence[Result], total: int, noun: str, title: str, about: str
) -> None:
    """Write the first results of an evaluation to an HTML page, and print its name.

    total: number of all results.
    noun: the word for the inputs, such as "images".
    title, about: the heading of the page, and a line below it.
    """
    if not results:
        say(f"no page was written: there are no {noun}")
        return
    cut = f", the first {len(results)} of {total:,} {noun}" if total > len(results) else ""
    entries = [entry for each in results if (entry := each.page_entry()) is not None]
    results[0].write_page(page, entries, title, f"{about}{cut}")
    say(f"Wrote {shown(page)}")


def check_output_ending(output: Path | None, pictures: Sequence[str] = (), page: bool = False) -> None:
    """Raise ArgumentError if --output names a picture, page or document that the command does not write.

    Without this check, the command would write plain text into a file named, for example, x.html.

    output: the value of --output, or None.
    pictures: the extensions of the pictures that the command writes, such as (".png", ".svg").
    page: whether the command has the option --page.

    >>> check_output_ending(Path("answers.txt")), check_output_ending(Path("x.png"), pictures=(".png",))
    (None, None)
    """
    suffix = "" if output is None else output.suffix.lower()
    if output is None or suffix in pictures or suffix not in (*PAGES, *IMAGES, *DOCUMENTS):
        return
    expected = f"a text file, such as {shown(output.stem) or 'output'}.txt"
    if pictures:
        expected += f", or a picture: {', '.join(pictures)}"
    if suffix in PAGES:
        problem = f"{shown(output.name)}: this option writes text, not an HTML page"
        hint = f"use --page {shown(output.with_suffix('.html'))}" if page else ""
    elif suffix in DOCUMENTS:
        problem = f"{shown(output.name)}: this option writes text, not {DOCUMENTS[suffix]}"
        hint = ""
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
