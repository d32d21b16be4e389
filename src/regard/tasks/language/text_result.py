"""TextResult: a text that a language model has scored or generated, with token scores and attention.

print(result) prints the text; rich.print(result) and notebooks also draw the attention; result.save("x.html")
writes a page with a picture of every layer.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.errors import printable
from regard.files.atomic_io import write_whole
from regard.roles import BySite
from regard.viewing import Picture, Pooled, Seen, Site, long_map, pooled
from regard.viewing.html_document import check_ending, document, safe, static

__all__ = ["TextResult", "save_texts", "unknown_note"]

MATRIX = 48
"""Maximum number of words for a picture of the attention as a matrix, with a row for each word.

A longer text is drawn as a map, in which each cell is the largest weight in a block of tokens.
"""

LAYERS = 24
"""Maximum number of attention layers that are drawn on a page."""

NAMED = 5
"""Maximum number of unknown words that unknown_note() lists."""

_shortened = reprlib.Repr()
_shortened.maxstring = 80


@dataclass(frozen=True, eq=False, repr=False)
class TextResult:
    """Base class of ScoredText and GeneratedText: a text with the log-probability of each of its tokens.

    text: the text that was scored or generated.
    token_ids: the id of each token.
    pieces: the text of each token, "</s>" for EOS.
    token_scores: log p(x_t | x_1 ... x_t-1) of each token.
    attention: for each attention layer (site), the weights (H, T, T). Row t has the weights with which token
        t is predicted. Columns are the input tokens: column 0 is the token before the text, column 1 is the
        first token of the text, and so on.
    long: the attention of a text with more than 512 tokens, for each layer: the 32 largest weights of each
        row, and a map in which each cell is the largest weight in a block of tokens. For such a text,
        `attention` is empty.
    unknown: the words that are not in the vocabulary.
    notes: messages for the user, for example that all positions of the model are used.
    word_numbers: the index of the word of each row of the attention. -1 for EOS.
    first_piece: the token before the text: "<s>", or "</s>" in continuous text.
    """

    text: str
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    token_scores: tuple[float, ...]
    attention: dict[str, NDArray[Any]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    long: tuple[Pooled, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    word_numbers: tuple[int, ...] = field(default=(), kw_only=True)
    first_piece: str = field(default="<s>", kw_only=True)

    @property
    def log_probability(self) -> float:
        """The log-probability of the tokens: the sum of the token scores."""
        return sum(self.token_scores)

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp(-mean of the token scores). Infinity if exp() overflows."""
        return exp_or_inf(-self.log_probability / max(len(self.token_scores), 1))

    @property
    def read_pieces(self) -> tuple[str, ...]:
        """The text of each token that has a row in the attention matrix, including tokens of a prompt."""
        return self.pieces

    @property
    def whole_text(self) -> str:
        """The whole text: the field `text`. In GeneratedText, the prompt followed by `text`."""
        return self.text

    def seen(self, title: str = "") -> Seen:
        """Return the recorded attention as arrays with their tokens, to draw, explore or save.

        Columns are the input tokens: the token before the text, then all tokens of the text except the last.
        Rows are the predicted tokens. Only in the model "lstmn", rows are the input tokens, because its
        queries belong to input tokens.

        title: the title of the pictures. Default: the text.

        >>> import numpy
        >>> weights = {"decoder.0.self": numpy.array([[[1.0, 0.0], [0.5, 0.5]]])}
        >>> seen = TextResult("a", (4, 3), ("a", "</s>"), (-1.0, -0.5), weights).seen()
        >>> seen.site("decoder.0.self").columns
        ('<s>', 'a')
        """
        rows, numbers = self.read_pieces, self.word_numbers or tuple(range(len(self.read_pieces)))
        columns, column_numbers = (self.first_piece, *rows[:-1]), (-1, *numbers[:-1])
        by_site = self.attention if isinstance(self.attention, BySite) else BySite(self.attention)
        sides = {"input": (columns, column_numbers)}
        sites = []
        for name, weights in by_site.items():
            role = by_site.role(name)
            queries, query_numbers = sides.get(role.rows, (rows, numbers))
            sites.append(Site(name, weights, queries, columns, None, query_numbers, column_numbers, role))
        score = self.log_probability if self.token_scores else None
        heading = title or self.whole_text
        return Seen(tuple(sites), (), rows, (), numbers, heading, self.all_notes, score, self.long)

    def pictures(self) -> Iterator[Picture]:
        """Yield one picture of the attention for each layer (site).

        A text of at most 48 words is drawn as a matrix, with the mean over all heads. A longer text is drawn
        as a map, so that the picture does not become too large. Each cell of the map is the largest weight in
        a block of tokens.
        """
        seen = self.seen()
        words = seen.words()
        for site, by_word in zip(seen.sites, words.sites, strict=True):
            if len(by_word.rows) <= MATRIX:
                yield words.picture(site=site.name, title=site.name)
            else:
                yield long_map(pooled(site.name, site.weights, site.rows, site.columns))
        for each in self.long:
            yield long_map(each)

    def to_dict(self) -> dict[str, Any]:
        """Return the text, its tokens, scores and notes as a dict for JSON, without the attention."""
        return {
            "text": self.text,
            "log_probability": self.log_probability,
            "perplexity": self.perplexity if math.isfinite(self.perplexity) else None,
            "token_ids": list(self.token_ids),
            "pieces": list(self.pieces),
            "token_scores": list(self.token_scores),
            "unknown": list(self.unknown),
            "notes": list(self.notes),
        }

    def save(self, path: str | Path, title: str = "A text") -> None:
        """Write an HTML page with the text, its scores and its attention.

        The page is a single file and loads nothing from the network.

        path: the file to write; it must end in .html.
        title: the title of the page.
        """
        save_texts(path, [self], title)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The field `notes`, and a note that lists the words of the text that are not in the vocabulary."""
        return (*self.notes, unknown_note(self.unknown)) if self.unknown else self.notes

    def __str__(self) -> str:
        return self.whole_text

    def __repr__(self) -> str:
        score = f"log_probability={self.log_probability:.4g}"
        return f"{type(self).__name__}({_shortened.repr(self.text)}, {score})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(printable(self.whole_text))
        yield from self.pictures()
        for note in (*self.facts, *self.all_notes):
            yield Text(printable(note), "dim")

    def _repr_html_(self) -> str:
        lines = ['<div class="regard">', f"<style>{static('entry.css')}</style>", *self.html(), "</div>"]
        return "\n".join(lines) + "\n"

    @property
    def facts(self) -> tuple[str, ...]:
        """The lines to print below the text: its log-probability and its perplexity."""
        return (f"log-probability {self.log_probability:z.2f}, perplexity per token {self.perplexity:.2f}",)

    def html_text(self) -> str:
        """Return the text as escaped HTML."""
        return safe(self.whole_text)

    def html(self) -> Iterator[str]:
        """Yield the text, scores, attention (as SVG) and notes as escaped HTML."""
        yield "<dl>"
        yield f'<dt>text</dt><dd class="target" dir="auto" lang="">{self.html_text()}</dd>'
        for fact in self.facts:
            yield f"<dt>score</dt><dd>{safe(fact)}</dd>"
        count = len(self.attention) + len(self.long)
        for number, drawn in zip(range(LAYERS), self.pictures(), strict=False):
            yield f"<dt>attention</dt><dd>{drawn.svg(f'attention, layer {number}')}</dd>"
        left_out = (f"the first {LAYERS} of {count} attention layers are drawn",) if count > LAYERS else ()
        for note in (*left_out, *self.all_notes):
            yield f'<dt>note</dt><dd dir="auto">{safe(note)}</dd>'
        yield "</dl>"


def save_texts(path: str | Path, results: Iterable[TextResult], title: str) -> None:
    """Write an HTML page with several texts, their scores and their attention.

    path: the file to write; it must end in .html.
    results: the texts, scored or generated.
    title: the title of the page.
    """
    path = check_ending(path, ".html", "use the ending of an HTML file")
    style = static("entry.css") + static("page.css")
    body = ["<header>", f'<h1 dir="auto">{safe(title)}</h1>', "</header>", "<main>"]
    for result in results:
        body += ["<article>", *result.html(), "</article>"]
    write_whole(path, document(title, style, "", [*body, "</main>"]).encode())


def unknown_note(unknown: tuple[str, ...]) -> str:
    """Return a message that lists the first unknown words.

    >>> unknown_note(("zebra", "yak"))
    "not in the vocabulary: 'zebra', 'yak'"
    """
    words = list(dict.fromkeys(unknown))
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return f"not in the vocabulary: {', '.join(repr(word[:40]) for word in words[:NAMED])}{more}"


def exp_or_inf(number: float) -> float:
    """Return exp(number), or infinity if exp() overflows."""
    return math.exp(number) if number < 700 else math.inf
