"""Texts that a language model has scored or generated, with token scores and attention.

print(result) prints the text; rich.print(result) and notebooks also draw the attention; result.save("x.html")
writes a page with a picture of every layer.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.data.encoded_text import count_text
from regard.data.tokenizers.tokenizer import clean
from regard.errors import printable
from regard.roles import BySite
from regard.viewing import Picture, Pooled, Seen, Site, long_map, pooled
from regard.viewing.html_document import safe
from regard.viewing.result import Result, listed

STOP_REASONS = {
    "end": "the model generated the end of the line (EOS)",
    "stop": "a stop string was generated",
    "length": "the maximum number of new tokens was reached",
    "positions": "all positions of the model are used",
    "interrupted": "generation was interrupted",
    "prompt": "the model cannot read the prompt: all its words are unknown, or it is too long",
}
"""An explanation of each value of GeneratedText.stop_reason."""

MATRIX = 48
"""Maximum number of words for a picture of the attention as a matrix, with a row for each word.

A longer text is drawn as a map, in which each cell is the largest weight in a block of tokens.
"""

LAYERS = 24
"""Maximum number of attention layers that are drawn on a page."""

_shortened = reprlib.Repr()
_shortened.maxstring = 80


@dataclass(frozen=True, eq=False, repr=False)
class TextResult(Result):
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
    unknown: the words (or characters, see `unit`) that are not in the vocabulary.
    notes: messages for the user, for example that all positions of the model are used.
    word_numbers: the index of the word of each row of the attention. -1 for EOS.
    first_piece: the token before the text: "<s>", or "</s>" in continuous text.
    unit: "word" or "character", the unit of `unknown`.
    bytewise: whether the tokenizer encodes unknown characters as bytes, instead of UNK.
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
    unit: str = field(default="word", kw_only=True)
    bytewise: bool = field(default=False, kw_only=True)
    page_title = "A text"
    most = 100  # it is small because each text has a picture for every layer

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

    def unknown_words(self) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        yield self.unit, self.unknown, self.bytewise

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
        yield from (listed("note", note) for note in (*left_out, *self.all_notes))
        yield "</dl>"


@dataclass(frozen=True, eq=False, repr=False)
class ScoredText(TextResult):
    """A line of text with the log-probability of each of its tokens. The last token is EOS.

    For the fields, see TextResult. This example sets the fields text, token_ids, pieces and token_scores:

    >>> scored = ScoredText("a b", (4, 5, 3), ("a", "b", "</s>"), (-1.0, -0.5, -1.5))
    >>> scored, scored.log_probability, round(scored.perplexity, 4)
    (ScoredText('a b', log_probability=-3), -3.0, 2.7183)
    """

    @property
    def words(self) -> int:
        """Number of words of the line, separated by spaces; EOS is not counted."""
        return count_text([self.text]).words

    @property
    def word_perplexity(self) -> float:
        """Perplexity per word: exp(-log_probability / (words + 1)). The end of the line is a word too."""
        return exp_or_inf(-self.log_probability / (self.words + 1))

    def to_dict(self) -> dict[str, Any]:
        """Return TextResult.to_dict(), and also "words", "line_ends" and "word_perplexity".

        "word_perplexity" is exp(-log_probability / (words + line_ends)). "line_ends" is always 1, because the
        text is one line.
        """
        per_word = None if self.word_perplexity == float("inf") else self.word_perplexity
        return {**super().to_dict(), "words": self.words, "line_ends": 1, "word_perplexity": per_word}

    @property
    def facts(self) -> tuple[str, ...]:
        return (f"{super().facts[0]}, per word {self.word_perplexity:.2f}",)


@dataclass(frozen=True, eq=False, repr=False)
class GeneratedText(TextResult):
    """A prompt and its continuation by a language model.

    text: the continuation, with the space between prompt and continuation. A stop string is not included.
    token_ids: the id of each generated token, including EOS and the tokens of a stop string.
    pieces: the text of each generated token.
    token_scores: the log-probability of each generated token.
    attention: for each attention layer (site), the weights (H, T, T). T is the number of tokens of the prompt
        and the continuation together. See TextResult.
    long: the attention of a text with more than 512 tokens. Then `attention` is empty. See TextResult.
    unknown: the words of the prompt that are not in the vocabulary.
    prompt: the text of the prompt.
    prompt_token_ids: the id of each token of the prompt.
    prompt_pieces: the text of each token of the prompt.
    stop_reason: why generation ended, a key of STOP_REASONS: "end", "stop", "length", "positions",
        "interrupted" or "prompt". With "prompt", there is no continuation.
    ranking: the log-probability with length penalty. Continuations are sorted by this score.
    others: the other continuations of the n-best list, or the other samples.

    For the other fields, see TextResult.

    >>> text = GeneratedText(" CS", (6, 3), ("CS", "</s>"), (-0.25, -0.5), prompt="I learned")
    >>> str(text), text.log_probability, text.stop_reason
    ('I learned CS', -0.75, 'end')
    """

    prompt: str = field(default="", kw_only=True)
    prompt_token_ids: tuple[int, ...] = field(default=(), kw_only=True)
    prompt_pieces: tuple[str, ...] = field(default=(), kw_only=True)
    stop_reason: str = field(default="end", kw_only=True)
    ranking: float = field(default=0.0, kw_only=True)
    others: tuple[GeneratedText, ...] = field(default=(), kw_only=True)

    @property
    def read_pieces(self) -> tuple[str, ...]:
        return (*self.prompt_pieces, *self.pieces)

    @property
    def whole_text(self) -> str:
        """The prompt and its continuation, as one text."""
        before = clean(self.prompt)
        return f"{before}{self.text}" if before else self.text.lstrip()

    @property
    def continued(self) -> bool:
        """Whether the model could read the prompt. If not, `stop_reason` is "prompt", and `text` is empty."""
        return self.stop_reason != "prompt"

    def unknown_words(self) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        if self.continued:  # otherwise the prompt has no known word, and an error says so
            yield from super().unknown_words()

    def to_dict(self) -> dict[str, Any]:
        """Return TextResult.to_dict(), and also the prompt, the stop reason and the other texts.

        If there is no continuation (stop reason "prompt"), all scores are None.
        """
        unscored = {} if self.continued else {"log_probability": None, "perplexity": None}
        return {
            "prompt": self.prompt,
            **super().to_dict(),
            **unscored,
            "stop_reason": self.stop_reason,
            "ranking": self.ranking if self.continued else None,
            "prompt_token_ids": list(self.prompt_token_ids),
            "prompt_pieces": list(self.prompt_pieces),
            "others": [each.to_dict() for each in self.others],
        }

    @property
    def facts(self) -> tuple[str, ...]:
        if not self.continued:
            return (f"not continued: {STOP_REASONS[self.stop_reason]}",)
        return (f"{super().facts[0]}; ended because {STOP_REASONS[self.stop_reason]}",)

    def html_text(self) -> str:
        before = clean(self.prompt)
        return f"{safe(before)}<b>{safe(self.text if before else self.text.lstrip())}</b>"


def exp_or_inf(number: float) -> float:
    """Return exp(number), or infinity if exp() overflows."""
    return math.exp(number) if number < 700 else math.inf
