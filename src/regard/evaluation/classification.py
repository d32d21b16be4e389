"""Classification: the predicted class of a text or of a pair of texts, and the attention to its words.

print(result) prints the label. rich.print(result) and notebooks draw the words, shaded by their weights.
result.save("x.html") writes a page.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.data.tokenizers.tokenizer import clean
from regard.errors import list_item, printable
from regard.roles import POOLING, BySite, Role, sites_matching
from regard.viewing import Picture, Seen, Site, shaded
from regard.viewing.result import Chances, listed
from regard.viewing.word_groups import SHOWN_SPACE, grouped, joined, spelled_or_space

__all__ = ["Classification", "ReadText"]

SIDES = ("first", "second")
"""The names of the two texts of a pair."""

BEGIN = "<s>"
"""The text shown for BOS, a token that some classifiers put before the first token of the text."""

DRAWN = 400
"""Maximum number of words of a text that are drawn."""

LISTED = 20
"""Maximum number of classes whose probabilities are printed, the most probable first."""

UNCLASSIFIED = "not classified"
"""This text is printed instead of a label if there was nothing to classify. A note may give the reason."""

_shortened = reprlib.Repr()
_shortened.maxstring = 80


@dataclass(frozen=True, eq=False)
class ReadText:
    """One text that was classified: its tokens, its words, and the attention weights of the classifier.

    text: the text itself.
    tokens: token ids, including EOS.
    pieces: the text of each token, "</s>" for EOS.
    word_numbers: for each token, the index of its word (or character, see `unit`); -1 for EOS.
    attention: maps the name of each recorded attention layer (site) to its weights ([H,] T, S). The site
        "pool" is the attention pooling, which combines the states of all tokens into one vector, with T = 1.
    unit: "word" or "character".
    unknown: the words or characters that the vocabulary does not cover.
    bytewise: whether the tokenizer encodes the unknown words or characters as bytes, instead of UNK.

    >>> weights = {"pool": numpy.array([[0.25, 0.5, 0.25, 0.0]])}
    >>> read = ReadText("bad film", (8, 9, 5, 3), ("▁b", "ad", "▁film", "</s>"), (0, 0, 1, -1), weights)
    >>> read.words, read.weights
    (('bad', 'film'), (0.75, 0.25))
    """

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    word_numbers: tuple[int, ...]
    attention: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    unit: str = "word"
    unknown: tuple[str, ...] = ()
    bytewise: bool = False

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each word of the text, the indices of its tokens in `tokens`."""
        groups = grouped(self.word_numbers)
        return tuple(tuple(group) for group in groups if self.word_numbers[group[0]] >= 0)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of the text. If `unit` is "character", its characters, with ␣ for a space."""
        cleaned = clean(self.text)
        units = cleaned.split() if self.unit == "word" else list(cleaned.replace(" ", SHOWN_SPACE))
        if len(units) == len(self.places):
            return tuple(units)
        return tuple(spelled_or_space([self.pieces[place] for place in group]) for group in self.places)

    @cached_property
    def weights(self) -> tuple[float, ...] | None:
        """The attention weight of each word in the pooling, summed over the tokens of the word.

        None if the weights of the pooling were not recorded, or if the text has no words.
        """
        pools = sites_matching(self.attention, POOLING.kind)
        if not pools or not self.places:
            return None
        by_word = joined(self.attention[pools[0]].astype(numpy.float64), self.places, axis=1)[0]
        return tuple(by_word.tolist())

    def picture(self, label: str) -> Picture | None:
        """Draw the text with each word shaded by its attention weight in the pooling.

        None if there are no such weights. Of a long text, only the first words are drawn.

        label: the text beside the drawing, for example the predicted class.
        """
        if self.weights is None:
            return None
        return shaded([self.weights[:DRAWN]], [label], self.words[:DRAWN])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON with the keys "text", "token_ids", "pieces", "words" and "weights"."""
        return {
            "text": self.text,
            "token_ids": list(self.tokens),
            "pieces": list(self.pieces),
            "words": list(self.words),
            "weights": None if self.weights is None else list(self.weights),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Classification(Chances):
    """The predicted class of a text or of a pair of texts, with probabilities and attention.

    label: the predicted class; None if there was nothing to classify (a blank line).
    probabilities: maps each label to its probability, in the order of the classes; {} if `label` is None.
    texts: the text, or the two texts of the pair, as the classifier read them.
    notes: messages for the user.
    true_label: the true class, if it is known.

    >>> read = ReadText("fine", (7, 3), ("fine", "</s>"), (0, -1))
    >>> result = Classification("pos", {"neg": 0.25, "pos": 0.75}, (read,))
    >>> result, result.probability, str(result), result.to_dict()["probabilities"]
    (Classification('pos', 0.75, 'fine'), 0.75, 'pos', {'neg': 0.25, 'pos': 0.75})
    """

    label: str | None
    probabilities: dict[str, float]
    texts: tuple[ReadText, ...]
    notes: tuple[str, ...] = ()
    true_label: str | None = None
    page_title = "A classification"
    picture_view = "shaded"

    @property
    def text(self) -> str:
        """The text that was classified; for a pair of texts, the first text."""
        return self.texts[0].text

    @property
    def second(self) -> str | None:
        """The second text, if a pair of texts was classified, otherwise None."""
        return self.texts[1].text if len(self.texts) > 1 else None

    @property
    def probability(self) -> float | None:
        """The probability of the predicted class, 0 to 1; None if there was nothing to classify."""
        return None if self.label is None else self.probabilities[self.label]

    @property
    def unknown(self) -> tuple[str, ...]:
        """The words or characters of the texts that the vocabulary does not cover, each once."""
        return tuple(dict.fromkeys(word for read in self.texts for word in read.unknown))

    def unknown_words(self) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        words = tuple(word for read in self.texts for word in read.unknown)
        yield self.texts[0].unit, words, self.texts[0].bytewise

    def to_dict(self) -> dict[str, Any]:
        """Return the label, the probabilities, the texts and the notes as a dict for JSON.

        The dict contains the attention weights of the pooling only.
        """
        return {
            "label": self.label,
            "probability": self.probability,
            "probabilities": dict(self.probabilities),
            "texts": [read.to_dict() for read in self.texts],
            "unknown": list(self.unknown),
            "notes": list(self.notes),
        }

    def seen(self, title: str = "") -> Seen:
        """Return the recorded attention as arrays with their tokens, to draw, explore or save.

        For a pair, the names of the sites begin with "first." or "second.", for example "first.pool". The
        pooling has one query; its row is labelled with the predicted class.
        """
        sites = []
        for side, read in zip(SIDES, self.texts, strict=False):
            by_site = read.attention if isinstance(read.attention, BySite) else BySite(read.attention)
            pools = sites_matching(by_site, POOLING.kind)
            for name, weights in sorted(by_site.items(), key=lambda item: item[0] in pools):
                columns, numbers = read.pieces, read.word_numbers
                if weights.shape[-1] == len(columns) + 1:
                    columns, numbers = (BEGIN, *columns), (-1, *numbers)
                rows, row_numbers = (columns, numbers) if name not in pools else ((str(self.label),), (0,))
                role = by_site.role(name)
                if len(self.texts) > 1:
                    role = Role(role.kind, role.rows if name in pools else side, side)
                    name = f"{side}.{name}"
                sites.append(Site(name, weights, rows, columns, None, row_numbers, numbers, role))
        source, target = self.texts[0], (str(self.label),)
        heading = title or str(self)
        return Seen(tuple(sites), source.pieces, target, source.word_numbers, (0,), heading, self.all_notes)

    def __str__(self) -> str:
        return "" if self.label is None else self.label

    def __repr__(self) -> str:
        texts = ", ".join(_shortened.repr(read.text) for read in self.texts)
        chance = "" if self.probability is None else f" {self.probability:.4g},"
        return f"Classification({self.label!r},{chance} {texts})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(self.summary(), "bold")
        yield from self.body()

    def body(self) -> Iterator[RenderableType]:
        """Yield the texts and the notes. rich prints them below the line with label and probabilities.

        A text is drawn with its words shaded by their attention weights, if these were recorded.
        """
        for read in self.texts:
            drawn = read.picture(str(self.label))
            yield Text(printable(read.text)) if drawn is None else drawn
        for note in self.all_notes:
            if note != self.summary():
                yield Text(printable(note), "dim")

    def summary(self) -> str:
        """Return label and probabilities as one line of text, for example "pos (pos 0.750, neg 0.250)".

        If there was nothing to classify, the line says so.
        """
        if self.label is None:
            return next((note for note in self.notes if note.startswith(UNCLASSIFIED)), UNCLASSIFIED)
        return f"{list_item(self.label)} ({self.chances(LISTED, ' classes')})"

    def html(self) -> Iterator[str]:
        """Yield the lines of an HTML list with the label, the texts, the probabilities and the notes.

        Texts are escaped. If attention was recorded, an SVG drawing shows the words shaded by their weights.
        """
        yield "<dl>"
        yield listed("label", self.label or self.summary(), "target")
        if self.true_label is not None:
            wrong = "" if self.true_label == self.label else " (the prediction is wrong)"
            yield listed("true label", self.true_label + wrong)
        for name, read in zip(SIDES if len(self.texts) > 1 else ("text",), self.texts, strict=True):
            yield listed(name, read.text, "source")
            drawn = read.picture(str(self.label))
            if drawn is not None:
                yield f"<dt>attention</dt><dd>{drawn.svg(f'attention to the words, {name}')}</dd>"
        if self.probabilities:
            yield self.chances_table(LISTED)
        yield from (listed("note", note) for note in self.all_notes if note != self.summary())
        yield "</dl>"
