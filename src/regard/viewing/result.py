"""Result: what a model returned for one input, to print, draw, write as JSON, or save as a page or picture.

print(result) prints its text. rich.print(result) and notebooks draw the attention, too. result.save("x.html")
writes a page.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from regard.errors import list_item
from regard.viewing.html_document import SUFFIXES, article_page, check_ending, fragment_of, safe, save_html

if TYPE_CHECKING:
    from regard.viewing.seen import Seen

NAMED = 5
"""Maximum number of unknown words that a note lists, and of labels whose probabilities are printed."""

LONGEST_WORD = 40
"""Maximum number of characters of a word in a note."""


class Saved(Protocol):
    """A drawing that writes itself to a file, such as a Picture. It returns hints for the user."""

    def save(self, path: str | Path) -> Sequence[str]: ...


class Result(ABC):
    """Base class of the results of all tasks: translations, texts, classes, captions, answers and solutions.

    A subclass is a frozen dataclass with the input, the output, their tokens, scores and attention. It has
    the methods to_dict(), seen(), __str__() and __rich_console__(), and html() or, for pages of another
    layout, write_page().

    page_title: the title of a page with one result.
    most: the maximum number of results on a page, which would be slow in a browser with more.
    picture_view: the view of a picture (see regard.viewing.picture()), if drawing() is not overridden.
    """

    page_title: ClassVar[str] = "A result"
    most: ClassVar[int] = 300
    picture_view: ClassVar[str] = "matrix"

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user, for example that the input was too long."""
        return ()

    @property
    def others(self) -> tuple[Any, ...]:
        """The other results of the n-best list, after this one."""
        return ()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the texts, tokens, scores and notes as values for JSON. seen() returns the attention."""

    @abstractmethod
    def seen(self, title: str = "") -> Seen:
        """Return the recorded attention as arrays with their tokens, to draw, explore or save.

        title: the title of drawings.
        """

    def unknown_words(self) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        """Yield what is not in the vocabulary: its name, such as "source word", and the words.

        The third value says whether the tokenizer encodes them as bytes, instead of UNK.
        """
        yield from ()

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and a note that lists the words that are not in the vocabulary."""
        unknown = [word for _, words, _ in self.unknown_words() for word in words]
        return (*self.notes, *([unknown_note(unknown)] if unknown else []))

    def html(self) -> Iterator[str]:
        """Yield the HTML of this result on a page, with all texts escaped."""
        yield f"<p>{safe(str(self))}</p>"

    def drawing(self) -> Saved:
        """Return what save() writes to a picture file."""
        drawn: Saved = importlib.import_module("regard.viewing.picture").picture(self, self.picture_view)
        return drawn

    def save(self, path: str | Path, title: str = "") -> tuple[str, ...]:
        """Write an HTML page or a picture (.png, .svg, .pdf or .gif). Return hints for the user.

        The page is a single file and loads nothing from the network.

        title: the title of the page.
        """
        check_ending(path, (".html", *SUFFIXES))
        if Path(path).suffix.lower() != ".html":
            return tuple(self.drawing().save(path))
        self.write_page(path, [self.page_entry()], title or self.page_title)
        return ()

    def page_entry(self) -> Any:
        """Return what a page needs of this result; by default, the result itself."""
        return self

    @staticmethod
    def write_page(path: str | Path, entries: Sequence[Any], title: str, about: str = "") -> None:
        """Write an HTML page of several results.

        path: the file to write; it must end in .html.
        entries: the values of page_entry().
        title, about: the heading of the page, and a line below it.
        """
        body = (line for entry in entries for line in ("<article>", *entry.html(), "</article>"))
        save_html(path, lambda: article_page(title, body, about=about))

    def _repr_html_(self) -> str:
        return fragment_of(self.html())


class Chances(Result):
    """Base class of results that choose one of several labels, by their probabilities."""

    probabilities: dict[str, float]

    @property
    def ranked(self) -> list[tuple[str, float]]:
        """The labels as pairs (label, probability), the most probable first."""
        return sorted(self.probabilities.items(), key=lambda item: -item[1])

    def chances(self, listed: int, noun: str = "") -> str:
        """Return the probabilities of the most probable labels as text: "pos 0.750, neg 0.250"."""
        text = ", ".join(f"{list_item(label)} {chance:.3f}" for label, chance in self.ranked[:listed])
        return text + (f", and {len(self.ranked) - listed} more{noun}" if len(self.ranked) > listed else "")

    def chances_table(self, listed: int) -> str:
        """Return an HTML table of the probabilities of the most probable labels."""
        rows = (
            f'<tr><th scope="row">{safe(label)}</th><td>{chance:.3f}</td></tr>'
            for label, chance in self.ranked[:listed]
        )
        return f"<dt>probability</dt><dd><table><tbody>{''.join(rows)}</tbody></table></dd>"


def listed(name: str, text: str, kind: str = "") -> str:
    """Return a line of an HTML list (<dl>): a name, and a text, which is escaped.

    kind: the CSS class of a text that may be in any language.

    >>> listed("label", "<b>")
    '<dt>label</dt><dd dir="auto">&lt;b&gt;</dd>'
    """
    attributes = f'class="{escape(kind)}" dir="auto" lang=""' if kind else 'dir="auto"'
    return f"<dt>{name}</dt><dd {attributes}>{safe(text)}</dd>"


def unknown_note(unknown: Iterable[str], side: str = "", bytewise: bool = False) -> str:
    """Return a message that lists the first unknown words.

    side: "source" or "target", in a result with both.
    bytewise: whether the tokenizer encodes unknown characters as bytes.

    >>> unknown_note(("zebra", "yak"))
    "not in the vocabulary: 'zebra', 'yak'"
    """
    words = list(dict.fromkeys(unknown))
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    problem = "characters not in the vocabulary, encoded as bytes" if bytewise else "not in the vocabulary"
    named = ", ".join(repr(word[:LONGEST_WORD]) for word in words[:NAMED])
    return f"{problem}{side and f' ({side})'}: {named}{more}"
