"""A page that a command leaves: of the first so many lines, with what looked at what."""

from __future__ import annotations

from pathlib import Path

from regard.data.line_io import say
from regard.decoding import Scored
from regard.errors import ArgumentError, DataError, message, shown
from regard.viewing import Entry, save_page

__all__ = ["Page"]

MOST = 300
"""How many lines a page shows: browsers find their way through so many tables."""


class Page:
    """Collects what is to be shown, no more than a browser bears; without a path, nothing.

    >>> Page(None).wanted
    False
    """

    def __init__(self, path: Path | None):
        self.path, self.lines = path, 0
        self._entries: list[Entry] = []
        if path is None:
            return
        if path.suffix.lower() != ".html":
            problem = f"{shown(path.name)} does not end in .html"
            raise ArgumentError(message("--page", problem, hint=f"{shown(path.stem) or 'page'}.html"))
        if not path.resolve().parent.is_dir():
            raise DataError(message(shown(path), "there is no such folder", hint="create it first"))

    @property
    def wanted(self) -> bool:
        return self.path is not None

    def add(self, line: Scored, reference: str | None = None) -> None:
        """Show this line too, if there is room."""
        self.lines += 1
        if self.wanted and len(self._entries) < MOST:
            self._entries.append(line.entry(reference))

    def save(self, title: str, about: str = "") -> None:
        """Write the page and say where; and of how many lines, if not of all."""
        if self.path is None:
            return
        cut = f"the first {len(self._entries)} of {self.lines:,} lines" if self.lines > MOST else ""
        save_page(self.path, self._entries, title, ". ".join(filter(None, (about, cut))))
        say(f"Wrote {shown(self.path)}" + (f" with {cut}" if cut else ""))
