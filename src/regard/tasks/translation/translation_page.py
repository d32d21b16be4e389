"""HTML page of translations with their attention, for the option --page."""

from __future__ import annotations

from pathlib import Path

from regard.data.line_io import say
from regard.decoding import Beam, Greedy, Scored, Search
from regard.errors import shown
from regard.tasks.picture_outputs import check_page
from regard.viewing import Entry, save_page

__all__ = ["TranslationPage", "describe_search"]

MAX_ENTRIES = 300
"""Maximum number of translations on a page. Each translation has a table of its attention, and many tables
make browsers slow."""


class TranslationPage:
    """Collects up to MAX_ENTRIES translations for an HTML page, the file of --page.

    path: the file to write. If it is None, nothing is collected or written.

    >>> TranslationPage(None).enabled
    False
    """

    def __init__(self, path: Path | None):
        self.path, self.lines = path, 0
        self._entries: list[Entry] = []
        check_page(path)

    @property
    def enabled(self) -> bool:
        """Whether save() writes a page: False if `path` is None."""
        return self.path is not None

    def add(self, line: Scored, reference: str | None = None) -> None:
        """Add a translation to the page, unless the page has MAX_ENTRIES translations already."""
        self.lines += 1
        if self.enabled and len(self._entries) < MAX_ENTRIES:
            self._entries.append(line.entry(reference))

    def save(self, title: str, about: str = "") -> None:
        """Write the page and print its path. If translations were left out, also print how many."""
        if self.path is None:
            return
        cut = f"the first {len(self._entries)} of {self.lines:,} lines" if self.lines > MAX_ENTRIES else ""
        save_page(self.path, self._entries, title, ". ".join(filter(None, (about, cut))))
        say(f"Wrote {shown(self.path)}" + (f" with {cut}" if cut else ""))


def describe_search(search: Search) -> str:
    """Return the name and beam size of a search as a short text, for HTML pages.

    >>> describe_search(Beam(size=5)), describe_search(Greedy())
    ('beam search, beam size 5', 'greedy search')
    """
    if isinstance(search, Beam):
        return f"beam search, beam size {search.size}"
    return "greedy search" if isinstance(search, Greedy) else "sampled"
