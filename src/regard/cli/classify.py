"""regard classify: predict the class of texts, or of pairs of texts, line by line."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.json_output import json_text
from regard.cli.pair_file_options import Encoding
from regard.cli.printable_console import printable_console
from regard.cli.run_options import (
    BATCH_TOKENS,
    CheckpointName,
    Device,
    OutputFile,
    RunFolder,
    Threads,
    batch_tokens_option,
    open_task,
)
from regard.data.labelled_text import fields_of_json, text_of_json
from regard.data.line_io import Lines, Notes, given_lines, place_name, say, tell, writing
from regard.data.read_text import checked_path
from regard.data.table_formats import Row, column_rows
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, DataError, message, printable
from regard.evaluation.classification import Classification

__all__ = ["classify"]

AT_ONCE = 4096
"""Number of input lines that are classified together. They are sorted by length for less padding."""

ONE_TEXT = "one text per line, because this run classifies single texts"
"""Part of error messages: what a file must contain if the run classifies single texts, not pairs."""

DRAWN_WIDTH = 100
"""The width, in characters, of texts that are drawn in a file (--draw with --output)."""

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILES",
        help="Text files: each line has one text, or two texts with a tab between them if the run classifies "
        "pairs. JSON lines files (.jsonl): each line has one JSON object. - is standard input. Without FILES "
        "and --text, standard input is read.",
    ),
]
Texts = Annotated[
    list[str] | None, typer.Option("--text", metavar="TEXT", help="A text to classify. May be repeated.")
]
Seconds = Annotated[
    list[str] | None,
    typer.Option(
        "--second",
        metavar="TEXT",
        help="Second text of a pair: give one --second for each --text, in the same order.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print a JSON object for each text or pair: label, probability of each class, words and their "
        "attention weights.",
    ),
]
Draw = Annotated[
    bool, typer.Option("--draw", help="Draw each text, with its words shaded by their attention weights.")
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        metavar="INT",
        help="Number of input lines that are read and classified together, before the results are written.",
        show_default=f"{AT_ONCE}, or 1 for a terminal",
        min=1,
        max=bounds.LINES,
    ),
]
BatchTokens = Annotated[int, batch_tokens_option("Batch size in tokens.")]


def classify(
    run: RunFolder,
    files: Files = None,
    text: Texts = None,
    second: Seconds = None,
    encoding: Encoding = None,
    output: OutputFile = None,
    json: Json = False,
    draw: Draw = False,
    at_once: AtOnce = None,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Classify texts: print a label, a tab and the probability of the label for each line of input.

    Files are UTF-8 (see --encoding), plain or gzip. A blank line has an empty label and no probability.
    Invalid bytes are replaced. Standard error reports invalid bytes, truncated texts, unknown words and blank
    lines. If the run was trained on pairs of texts, each line has two texts with a tab between them.

    In a CSV file with a header line, the texts are in the columns whose names the run was trained with.
    If the name of a file ends in .jsonl or .ndjson, each line is a JSON object. The texts are in the fields
    that the run was trained with (data.text and data.second); the defaults are text and second.

    Examples:

    * `regard classify runs/x --text "a stirring , funny film" --draw`

    * `regard classify runs/x < reviews.txt > labels.tsv`

    * `regard classify runs/x reviews.txt --json --output labels.jsonl`

    * `regard classify runs/pairs --text "A man sleeps" --second "Nobody sleeps"`
    """
    if draw and json:
        raise ArgumentError(message("--draw", "cannot be combined with --json"))
    lines = given_lines(files, text, encoding=encoding)
    classifier = _open_classifier(run, checkpoint, device, threads, batch_tokens)
    if draw and classifier.model.pool_site is None:
        problem = "this classifier has no attention to draw: its pooling is not attention"
        hint = "choose a run of a classifier with model.pooling=attention (the default)"
        raise ArgumentError(message("--draw", problem, hint=hint))
    pairs, fields = classifier.model.pairs, classifier.json_fields
    inputs = Inputs(lines, _seconds(text, second, pairs), pairs, fields=fields)
    results = classifier.stream(
        inputs, at_once or (1 if lines.keyboard else AT_ONCE), look="pool" if draw or json else None
    )
    write_results(results, OutputForm(output, json, draw), inputs)


def _open_classifier(run: Path, checkpoint: str, device: str, threads: int | None, batch_tokens: int) -> Any:
    """Load the classifier of a run, and report checkpoints that were skipped because they are damaged."""
    return open_task("classification", run, checkpoint, device, threads, tokens_per_batch=batch_tokens)


def _seconds(text: Sequence[str] | None, second: Sequence[str] | None, pairs: bool) -> list[str] | None:
    """Return the texts of all --second options; None if there are none.

    Raise ArgumentError unless there is one --second for each --text, and the run classifies pairs.

    text, second: the texts of all --text and of all --second options.
    pairs: whether the run classifies pairs.
    """
    if not second:
        return None
    if not pairs:
        raise ArgumentError(message("--second", "this run classifies single texts, not pairs"))
    if len(second) != len(text or ()):
        problem = f"--second is used {len(second)} times, but --text is used {len(text or ())} times"
        raise ArgumentError(message("--second", problem, expected="one --second for each --text"))
    return list(second)


@dataclass
class Inputs:
    """An iterable of the texts, or pairs of texts, of all input lines. Errors name the file and the line.

    lines: the input lines.
    seconds: the second text of each line, from --second; None if both texts of a pair are in the line.
    pairs: whether the run classifies pairs.
    repaired: number of lines so far that had invalid UTF-8.
    tabs: if the run classifies single texts, the number of lines so far that contain a tab.
    first_tab: file and line number of the first line that contains a tab.
    fields: the names of the fields with the texts, in files of JSON lines.

    >>> list(Inputs(Lines([b"one\\tother\\n"]), None, pairs=True))
    [('one', 'other')]
    """

    lines: Lines
    seconds: list[str] | None
    pairs: bool
    repaired: int = 0
    tabs: int = 0
    first_tab: str = ""
    fields: tuple[str, ...] = ("text",)

    @property
    def invalid(self) -> list[bytes]:
        """The first lines with invalid bytes."""
        return self.lines.invalid

    def __iter__(self) -> Iterator[str | tuple[str, str]]:
        for number, place in enumerate(self.lines.places):
            if isinstance(place, str) and _has_suffix(place, (".csv",)):
                yield from self._rows(place)
                continue
            part = Lines([place], encoding=self.lines.encoding, invalid=self.lines.invalid)
            for text in part:
                self.repaired += part.repaired
                part.repaired = 0
                if isinstance(place, str) and _has_suffix(place, (".jsonl", ".ndjson")):
                    yield self._json(text, f"{place_name(place)}, line {part.read}")
                elif not self.pairs:
                    if "\t" in text.strip():
                        self._count_tab(place, part.read)
                    yield text
                elif self.seconds is not None:
                    yield text, os.fsencode(self.seconds[number]).decode("utf-8", "replace")
                else:
                    yield self._pair(text, f"{place_name(place)}, line {part.read}")

    def _rows(self, file: str) -> Iterator[str | tuple[str, str]]:
        """Yield the texts of a CSV file, in the columns that its header line names.

        A file without this header line has only the texts. Raise DataError if it has more columns.
        """
        rows = column_rows(checked_path(file), self.lines.encoding)
        header = next(rows, Row(1, [""]))
        names = [cell.strip() for cell in header.value]
        if {*self.fields} <= {*names}:
            places = [names.index(field) for field in self.fields]
        elif len(names) == len(self.fields):
            rows, places = chain([header], rows), list(range(len(names)))
        else:
            problem = f"the columns are {printable(', '.join(names))[:200]}"
            hint = "name the columns in line 1, or write the texts to a file of their own, one in each line"
            where = f"{place_name(file)}, line 1"
            raise DataError(message(where, problem, expected=" and ".join(self.fields), hint=hint))
        for row in rows:
            yield self._cells(row, places, file)

    def _cells(self, row: Row, columns: Sequence[int], place: str) -> str | tuple[str, str]:
        """Return the text, or the pair of texts, in some columns of a row."""
        if max(columns) >= len(row.value):
            problem = f"{len(row.value)} columns, expected at least {max(columns) + 1}"
            raise DataError(message(f"{place_name(place)}, line {row.number}", problem))
        texts = [row.value[column] for column in columns]
        return (texts[0], texts[1]) if self.pairs else texts[0]

    def _count_tab(self, place: str | bytes, line: int) -> None:
        """Count a line with a tab, in a run that classifies single texts.

        Raise DataError if it is line 1 of a .tsv file, because then the file has several columns.

        place: the file that contains the line.
        line: the line number, from 1.
        """
        where = f"{place_name(place)}, line {line}"
        if line == 1 and isinstance(place, str) and _has_suffix(place, (".tsv",)):
            hint = "write the column with the texts to a file of its own"
            raise DataError(message(where, "the line has several columns", expected=ONE_TEXT, hint=hint))
        self.first_tab = self.first_tab or where
        self.tabs += 1

    def _json(self, line: str, place: str) -> str | tuple[str, str]:
        """Return the text in a line that is a JSON object; a pair of texts if the run classifies pairs.

        place: file and line number, for error messages.
        """
        values = fields_of_json(line, self.fields, place) if line.strip() else [""] * len(self.fields)
        texts = [text_of_json(value, place) for value in values]
        return (texts[0], texts[1]) if self.pairs else texts[0]

    def _pair(self, text: str, place: str) -> tuple[str, str]:
        sides = text.split("\t")
        if not text.strip():
            return "", ""
        if len(sides) != 2:
            problem = f"{len(sides)} column{'s' * (len(sides) > 1)}, expected 2"
            hint = "this run classifies pairs: two texts with a tab between them, or --text with --second"
            raise DataError(message(place, problem, hint=hint))
        return sides[0], sides[1]


def _has_suffix(file: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether the name of a file, without .gz, ends in one of the suffixes."""
    return file.lower().removesuffix(".gz").endswith(suffixes)


@dataclass(frozen=True)
class OutputForm:
    """Where results are written, and in which format.

    output: the file to write; None for standard output.
    json: whether each result is written as a JSON object.
    draw: whether each text is drawn, with its words shaded by their attention weights.
    """

    output: Path | None = None
    json: bool = False
    draw: bool = False

    def format(self, result: Classification) -> str:
        """Return a result as one line, or as a drawing of several lines.

        >>> OutputForm().format(Classification("pos", {"neg": 0.25, "pos": 0.75}, ()))
        'pos\\t0.7500'
        """
        if self.json:
            return json_text(result.to_dict())
        if self.draw:
            file = io.StringIO()
            printable_console(file=file, width=DRAWN_WIDTH).print(result)
            return file.getvalue()
        chance = "" if result.probability is None else f"{result.probability:.4f}"
        return f"{printable(result.label or '')}\t{chance}"


def write_results(results: Iterator[Classification], form: OutputForm, inputs: Inputs) -> None:
    """Write each result as soon as it is computed. At the end, report problems of the input lines."""
    notes, unknown = Notes(), UnknownWords()
    with writing(form.output) as write:
        for number, result in enumerate(results, 1):
            notes.add(number, result.notes)
            if result.unknown:
                words = [word for read in result.texts for word in read.unknown]
                unknown.add_words(number, result.texts[0].unit, words, result.texts[0].bytewise)
            if form.draw and form.output is None:
                printable_console().print(result, "")
            else:
                write(form.format(result))
    tell(notes, inputs)
    unknown.say()
    if inputs.tabs:
        more = f", and {inputs.tabs - 1:,} more line{'s' * (inputs.tabs > 2)}" if inputs.tabs > 1 else ""
        say(f"{inputs.first_tab}{more}: the line has a tab, which is read as a space; expected {ONE_TEXT}")
