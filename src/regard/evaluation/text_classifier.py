"""TextClassifier: classify texts, or pairs of texts. Classification: the predicted class, and the attention.

print(result) prints the label. rich.print(result) and notebooks draw the words, shaded by their weights.
result.save("x.html") writes a page.
"""

from __future__ import annotations

import itertools
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy
import torch
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text
from torch import nn

from regard.attended import Attended
from regard.data.batch import EOS, LabelledBatch
from regard.data.labelled_text import LabelledTexts, Labels
from regard.data.line_io import advancing
from regard.data.tokenizers import Tokenizer
from regard.data.tokenizers.tokenizer import clean
from regard.errors import ArgumentError, DataError, list_item, message, positive, printable
from regard.evaluation.classification_report import ClassificationReport, classification_report
from regard.look import Look
from regard.models.classifier import POOL, Classifier
from regard.roles import POOLING, BySite, Role, sites_matching
from regard.sites import Record, scope
from regard.torch_modules.eval_mode import in_eval_mode
from regard.viewing import Picture, Seen, Site, shaded
from regard.viewing.result import Chances, listed
from regard.viewing.word_groups import SHOWN_SPACE, grouped, joined, spelled_or_space

Line = str | tuple[str, str]
"""A text, or a pair of texts."""

AT_ONCE = 4096
"""Number of lines that stream() reads and classifies together. They are sorted by length for less padding."""

BLANK = "not classified: the line is blank"

ALL_UNKNOWN = "no word of the text is in the vocabulary of the model, so the label says nothing about it"


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


class TextClassifier:
    """Classifies lines with a model. A line is a text, or a pair of texts if the model classifies pairs.

    There is one result for each line, in order, also for blank lines.

    model: a Classifier.
    tokenizer: the tokenizer that the model was trained with.
    labels: the names of the classes, in the order of the outputs of the model.
    tokens_per_batch: maximum number of tokens per batch, padding included.
    longest: maximum number of tokens of a text, EOS included. If model.longest is smaller, it is the maximum.
        A longer text is truncated, and the result has a note about this.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> from regard.named_models.classifiers import build_classifier
    >>> tokenizer, labels = train_tokenizer("word", ["a good film", "a bad film"]), Labels(("neg", "pos"))
    >>> model = build_classifier("lstm", tokenizer.size, len(labels), width=8)
    >>> first, blank = TextClassifier(model, tokenizer, labels).classify(["a good film", ""])
    >>> first.texts[0].words, round(sum(first.texts[0].weights), 4)
    (('a', 'good', 'film'), 1.0)
    >>> round(sum(first.probabilities.values()), 4)
    1.0
    >>> blank.label, blank.notes
    (None, ('not classified: the line is blank',))
    """

    def __init__(
        self,
        model: Classifier,
        tokenizer: Tokenizer,
        labels: Labels | Sequence[str],
        *,
        tokens_per_batch: int = 8192,
        longest: int = 1024,
    ):
        call = "TextClassifier()"
        positive(call, tokens_per_batch=tokens_per_batch, longest=longest)
        labels = labels if isinstance(labels, Labels) else Labels(tuple(labels))
        if len(labels) != model.classes:
            problem = f"there are {len(labels)} labels, but the model has {model.classes} classes"
            raise ArgumentError(message(call, problem, hint="use the labels that the model was trained with"))
        if tokenizer.size != model.vocabulary_size:
            problem = f"the tokenizer has {tokenizer.size} tokens, but the model has {model.vocabulary_size}"
            raise ArgumentError(
                message(call, problem, hint="use the tokenizer that the model was trained with")
            )
        self.model, self.tokenizer, self.labels = model, tokenizer, labels
        self.tokens_per_batch = tokens_per_batch
        self.longest = longest if model.longest is None else min(longest, model.longest)
        if self.longest < 2:
            problem = f"longest is {self.longest}"
            raise ArgumentError(message(call, problem, expected="2 or more: one token and EOS"))

    @overload
    def classify(self, lines: str, *, look: str | None = POOL) -> Classification: ...  # type: ignore[overload-overlap]

    @overload
    def classify(self, lines: tuple[str, str], *, look: str | None = POOL) -> Classification: ...  # type: ignore[overload-overlap]

    @overload
    def classify(self, lines: Iterable[Line], *, look: str | None = POOL) -> list[Classification]: ...

    def classify(
        self, lines: Line | Iterable[Line], *, look: str | None = POOL
    ) -> Classification | list[Classification]:
        """Classify one line or several lines.

        lines: one line, or an iterable of lines. A line is a str; for a model of pairs, it is a tuple
            (first, second).
        look: the names of the attention layers (sites) to record, with * as wildcard. "pool" records the
            pooling, "*" every layer, None nothing.

        Returns one Classification for one line, and a list for several lines.
        """
        single = isinstance(lines, str) or (self.model.pairs and isinstance(lines, tuple) and _is_pair(lines))
        texts = self._checked([lines] if single else lines)  # type: ignore[list-item]
        results = self._results(texts, look)
        return results[0] if single else results

    def stream(
        self, lines: Iterable[Line], at_once: int = AT_ONCE, *, look: str | None = POOL
    ) -> Iterator[Classification]:
        """Classify lines one after the other, and yield the result of each line.

        lines: an iterable of lines, for example an iterator over a file that is larger than memory. A line is
            a str; for a model of pairs, it is a tuple (first, second).
        at_once: the number of lines that are read and classified together.
        look: the names of the attention layers (sites) to record, as in classify().
        """
        positive("stream()", at_once=at_once)
        remaining, first = iter(lines), 0
        while chunk := list(itertools.islice(remaining, at_once)):
            yield from self._results(self._checked(chunk, first), look)
            first += len(chunk)

    def evaluate(self, texts: LabelledTexts) -> ClassificationReport:
        """Classify labelled texts, and return a report that compares predicted with true classes.

        texts: from read_labelled().
        """
        if not isinstance(texts, LabelledTexts):
            name = repr(texts) if isinstance(texts, str | os.PathLike) else "file"
            hint = f"read the file first: evaluate(regard.data.read_labelled({name}))"
            if isinstance(texts, list | tuple):
                hint = "use regard.data.labelled_from_lists(texts, labels)"
            problem = f"texts is a {type(texts).__name__}"
            raise ArgumentError(message("evaluate()", problem, expected="LabelledTexts", hint=hint))
        if texts.pairs != self.model.pairs:
            unit = "pairs" if self.model.pairs else "single texts"
            problem = f"{texts.name} contains {'pairs' if texts.pairs else 'single texts'}"
            raise ArgumentError(
                message("evaluate()", problem, expected=f"{unit}: the model was trained with {unit}")
            )
        true = texts.label_indices(self.labels)
        sides = (texts.firsts,) if texts.seconds is None else (texts.firsts, texts.seconds)
        predicted = []
        for row, result in enumerate(self._results(list(zip(*sides, strict=True)), None)):
            if result.label is None:
                raise DataError(message(texts.place(row), "the tokenizer finds no tokens in this text"))
            predicted.append(self.labels.index(result.label))
        return classification_report(true.tolist(), predicted, self.labels)

    def _checked(self, lines: Iterable[Line], first: int = 0) -> list[tuple[str, ...]]:
        """Return each line as a tuple of one or two texts; raise ArgumentError if a line has another type.

        first: number of input lines that were read before `lines`, to compute the line number in the error.
        """
        if isinstance(lines, str | bytes) or not isinstance(lines, Iterable):
            problem = f"the argument is of type {type(lines).__name__}"
            raise ArgumentError(message("classify()", problem, expected="a line, or a list of lines"))
        texts: list[tuple[str, ...]] = []
        for number, line in enumerate(lines, first + 1):
            expected = "a pair (first, second)" if self.model.pairs else "a text (str)"
            if not (_is_pair(line) if self.model.pairs else isinstance(line, str)):
                problem = f"line {number} is of type {type(line).__name__}"
                raise ArgumentError(message("classify()", problem, expected=expected))
            texts.append(tuple(map(_valid, (line,) if isinstance(line, str) else line)))
        return texts

    def _results(self, lines: list[tuple[str, ...]], look: str | None) -> list[Classification]:
        """Classify lines, in batches of similar length. Return the results in the order of the lines.

        lines: each line is a tuple of one or two texts.
        look: the names of the attention layers (sites) to record; None records nothing.
        """
        encoded = self._read(lines)
        results: dict[int, Classification] = {}
        lengths: dict[int, int] = {}
        for row, (texts, notes) in enumerate(encoded):
            if any(len(text.tokens) == 1 for text in texts):
                results[row] = Classification(None, {}, texts, (BLANK, *notes))
            else:
                lengths[row] = max(len(text.tokens) for text in texts)
        with advancing("classifying", len(lines)) as report:
            for rows in batches_by_length(lengths, self.tokens_per_batch):
                results.update(self._classified({row: encoded[row] for row in rows}, look))
                report(len(results))
        return [results[row] for row in range(len(lines))]

    def _read(self, lines: list[tuple[str, ...]]) -> list[tuple[tuple[ReadText, ...], list[str]]]:
        """Tokenize lines. Return, for each line, its one or two texts as ReadText, and notes for the user.

        A text with too many tokens is truncated to `longest` tokens, with a note.
        """
        notes = [list[str]() for _ in lines]
        sides = []
        for side in zip(*lines, strict=True):
            texts = []
            for row, tokens in enumerate(self.tokenizer.encode_lines(side)):
                if len(tokens) >= self.longest:
                    notes[row].append(f"truncated to {self.longest - 1:,} of {len(tokens):,} tokens")
                    tokens = tokens[: self.longest - 1]
                uncovered = not self.tokenizer.uncovered.isdisjoint(tokens)
                texts.append(
                    ReadText(
                        side[row],
                        (*tokens, EOS),
                        (*self.tokenizer.pieces(tokens), "</s>"),
                        (*self.tokenizer.units(tokens), -1),
                        unit=self.tokenizer.unit,
                        unknown=self.tokenizer.unknown(side[row]) if uncovered else (),
                        bytewise=self.tokenizer.bytewise,
                    )
                )
                if tokens and self.tokenizer.uncovered.issuperset(tokens):
                    notes[row].append(ALL_UNKNOWN)
            sides.append(texts)
        return list(zip(zip(*sides, strict=True), notes, strict=True))

    def _classified(
        self, lines: dict[int, tuple[tuple[ReadText, ...], list[str]]], look: str | None
    ) -> Iterator[tuple[int, Classification]]:
        """Classify one batch of lines, and record the attention layers (sites) that match `look`.

        lines: for each line, its one or two texts, and notes for the user.
        look: names of sites, with * as wildcard; None records nothing.
        """
        tokens = ([text.tokens[:-1] for text in texts] for texts, _ in lines.values())
        batch = LabelledBatch.collate(*map(list, zip(*tokens, strict=True)))
        scores_BC, record = recorded_probabilities(self.model, batch, look, "classify()", missing=POOL)
        widths = [batch.first.shape[1], *([] if batch.second is None else [batch.second.shape[1]])]
        recorded = {site: _by_text(calls, widths) for site, calls in record.items()}
        pools = sites_matching(BySite(recorded, record.roles), POOLING.kind)
        for place, (row, (texts, notes)) in enumerate(lines.items()):
            read = []
            for side, text in enumerate(texts):
                size = len(text.tokens) + self.model.begins
                weights = {
                    # The pooling has one query; at the other sites, every token is a query. The weights are
                    # copied, because a view would keep the weights of the whole batch in memory.
                    site: own[..., :size].copy() if site in pools else own[..., :size, :size].copy()
                    for site, own in ((site, each[side][place]) for site, each in recorded.items())
                }
                read.append(replace(text, attention=BySite(weights, record.roles)))
            chances = dict(zip(self.labels, numpy.exp(scores_BC[place]).tolist(), strict=True))
            label = self.labels[int(scores_BC[place].argmax())]
            yield row, Classification(label, chances, tuple(read), tuple(notes))


def recorded_probabilities(
    model: nn.Module, batch: Any, look: str | None, call: str, missing: str = ""
) -> tuple[NDArray[numpy.float64], Record]:
    """Return the log-probability of each class or answer for each input, (B, C), and the recorded attention.

    look: the names of the attention layers (sites) to record, with * as wildcard; None records nothing.
    call: the public function that was called, for the error if `look` matches no site.
    missing: a value of `look` that need not match a site.
    """
    recording = nullcontext(Record()) if look is None else scope(Look(weights=True), at=look)
    with recording as record:
        scores_BC = log_probabilities(model, batch)
    if look not in (None, missing) and record.called and not record:
        problem = f"look is {look!r}, which matches no site of {type(model).__name__}"
        hint = f"its sites are {', '.join(record.called)}; * is a wildcard"
        raise ArgumentError(message(call, problem, hint=hint))
    return scores_BC, record


def log_probabilities(model: nn.Module, batch: Any) -> NDArray[numpy.float64]:
    """Return the log-probability of each class or answer for each input, (B, C), computed in eval mode."""
    device = next(model.parameters()).device
    with in_eval_mode(model), torch.no_grad():
        logits_BC = model(batch.to(device)).cpu().double()
    return torch.log_softmax(logits_BC, -1).numpy()


def batches_by_length(lengths: dict[int, int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of texts, as lists of their indices, longest first.

    lengths: maps the index of each text to its number of tokens.
    tokens: maximum number of tokens of a batch, padding included. A longer text is a batch with one row.

    >>> list(batches_by_length({0: 2, 1: 5, 2: 3}, tokens=6))
    [[1], [2, 0]]
    """
    rows: list[int] = []
    for row in sorted(lengths, key=lambda row: -lengths[row]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > tokens:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _is_pair(line: object) -> bool:
    return isinstance(line, tuple | list) and len(line) == 2 and all(isinstance(side, str) for side in line)


def _valid(text: str) -> str:
    """Return the text as valid Unicode: surrogate pairs are joined, lone surrogates become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _by_text(calls: list[Attended], widths: list[int]) -> list[NDArray[Any]]:
    """Return the recorded weights of an attention layer (site) on the CPU.

    There is one array (B, [H,] T, S) for single texts, and a second array for the second texts of pairs.

    calls: the recorded calls of the site, for a batch of B texts or pairs. An LSTMN calls its site once per
        token; the weights of these calls are concatenated. Other models call a site once for each text.
    widths: the number of tokens, including padding, of the texts and of the second texts of pairs.
    """
    weights = [call.weights.float().cpu().numpy() for call in calls if call.weights is not None]
    if len(weights) == len(widths):
        return weights
    ends = numpy.cumsum(widths).tolist()
    texts = [weights[end - width : end] for end, width in zip(ends, widths, strict=True)]
    wide = [
        [numpy.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, len(text) - each.shape[-1])]) for each in text]
        for text in texts
    ]
    return [numpy.concatenate(text, -2) for text in wide]
