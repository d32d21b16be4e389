"""regard classify: predict the class of texts, or of pairs of texts, line by line."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from regard.cli.open_runs import encoding_of, open_task, task_in_regard
from regard.cli.options import OF_RUN, RUN, batch_tokens, but, command
from regard.cli.predict import at_once, result_files, write_results
from regard.data.labelled_text import fields_of_json, format_of, likely_columns, text_of_json
from regard.data.line_io import Lines, given_lines, place_name, say
from regard.data.read_text import checked_path
from regard.data.table_formats import Row, check_header_encoding, column_rows
from regard.errors import ArgumentError, DataError, Hint, Setting, message, printable
from regard.evaluation.text_classifier import Classification
from regard.training.command_options import CommandOption, several

AT_ONCE = 4096
"""Number of input lines that are classified together. They are sorted by length for less padding."""

TABLES = (".csv", ".tsv")
"""Endings of the names of files that may have columns."""

NAME_COLUMNS = "name the column of the text, or the two columns of pairs: --columns NAME or --columns A,B"

ONE_TEXT = "one text per line, because this run classifies single texts"
"""Part of error messages: what a file must contain if the run classifies single texts, not pairs."""


@command(
    RUN,
    several(
        "files",
        "Text files: each line has one text, or two texts with a tab between them if the run classifies "
        "pairs. JSON lines files (.jsonl): each line has one JSON object. - is standard input. Without FILES "
        "and --text, standard input is read.",
        "FILES",
    ),
    several("--text", "A text to classify.", "TEXT"),
    CommandOption(
        "--second",
        "Second text of a pair: give one --second for each --text, in the same order.",
        "TEXT",
        list[str],
    ),
    CommandOption(
        "--columns",
        "The column with the text in a CSV or TSV file, or the two columns of pairs: names from the header "
        "line, or numbers (the first column is 1).",
        "A,B",
        shown_default="the columns of the run, if the file is CSV and has them",
    ),
    "encoding",
    "output",
    but(
        "json",
        "Print a JSON object for each text or pair: label, probability of each class, words and their "
        "attention weights.",
    ),
    but("draw", "Draw each text, with its words shaded by their attention weights."),
    at_once(AT_ONCE, "classified"),
    batch_tokens("Batch size in tokens.", 4096),
    *OF_RUN,
)
def classify(
    run: Path, files: list[str] | None, text: list[str] | None, second: list[str] | None, **options: Any
) -> None:
    """Classify texts: print a label, a tab and the probability of the label for each line of input.

    Files are UTF-8 (see --encoding), plain or gzip. A blank line has an empty label and no probability.
    Invalid bytes are replaced. Standard error reports invalid bytes, truncated texts, unknown words and blank
    lines. If the run was trained on pairs of texts, each line has two texts with a tab between them.

    In a CSV file with a header line, the texts are in the columns whose names the run was trained with;
    --columns names other columns.
    If the name of a file ends in .jsonl or .ndjson, each line is a JSON object. The texts are in the fields
    that the run was trained with (data.text and data.second); the defaults are text and second.

    Examples:

    * `regard classify runs/x --text "a stirring , funny film" --draw`

    * `regard classify runs/x < reviews.txt > labels.tsv`

    * `regard classify runs/x reviews.txt --json --output labels.jsonl`

    * `regard classify runs/pairs --text "A man sleeps" --second "Nobody sleeps"`
    """
    written = result_files(options, "line")
    task_in_regard(run, "classification")  # raises DataError if it is not a run folder
    encoding = encoding_of(run, files, options["encoding"])
    lines = given_lines(files, text, encoding=encoding, tables=True)
    classifier = open_task("classification", run, options, tokens_per_batch=options["batch_tokens"])
    if options["draw"] and classifier.model.pool_site is None:
        problem = "this classifier has no attention to draw: its pooling is not attention"
        hint = "choose a run of a classifier with model.pooling=attention (the default)"
        raise ArgumentError(message("--draw", problem, hint=hint))
    pairs, fields = classifier.model.pairs, classifier.json_fields
    columns = _columns(options["columns"], files or (), pairs)
    data = classifier.settings.data
    trained = [data.text or 2, *([data.second] if data.second else []), data.label or 1]
    places = trained if format_of(Path(data.train_file[0]), data.format) == "tsv" else ()
    seconds, labels = _seconds(text, second, pairs), classifier.labels.names
    inputs = Inputs(lines, seconds, pairs, fields, columns, places, labels)
    at_once = options["at_once"] or (1 if lines.keyboard else AT_ONCE)
    look = "pool" if options["draw"] or options["json"] else None
    results = classifier.stream(inputs, at_once, look=look)

    def plain(result: Classification, number: int) -> Iterator[str]:
        chance = "" if result.probability is None else f"{result.probability:.4f}"
        yield f"{printable(result.label or '')}\t{chance}"

    write_results(results, options, plain, written, "Classifications", readers=[lines], inputs=inputs)
    if tabs := len(inputs.tabs):
        more = f", and {tabs - 1:,} more line{'s' * (tabs > 2)}" if tabs > 1 else ""
        say(f"{inputs.tabs[0]}{more}: the line has a tab, which is read as a space; expected {ONE_TEXT}")


def _columns(given: str | None, files: Sequence[str], pairs: bool) -> tuple[str, ...]:
    """Return the columns that --columns names; raise ArgumentError if the number or the files do not fit.

    files: the names of the input files.
    pairs: whether the run classifies pairs.
    """
    if given is None:
        return ()
    columns = tuple(name.strip() for name in (given.split(",") if pairs else [given]))
    if len(columns) != 1 + pairs or not all(columns):
        expected = "the two columns of the texts, as in A,B" if pairs else "the column of the text"
        raise ArgumentError(message("--columns", repr(given), expected=expected))
    if not any(_has_suffix(file, TABLES) for file in files):
        raise ArgumentError(message("--columns", "no file is a .csv or .tsv file", hint="leave it out"))
    return columns


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
    fields: the names of the fields or columns with the texts, in files of JSON lines and CSV files.
    columns: the columns with the texts in CSV and TSV files, if the user names them: names or numbers.
    of_run: the columns of the text, of the second text of pairs, and of the label in the training data, if
        these are tables.
    labels: the classes of the run.
    numbers: the numbers of the texts that were yielded: in a table, the line of the file at which the row
        begins; otherwise, the number of the text. write_results() removes them.
    tabs: if the run classifies single texts, the places of the lines so far that contain a tab.

    >>> list(Inputs(Lines([b"one\\tother\\n"]), None, pairs=True))
    [('one', 'other')]
    """

    lines: Lines
    seconds: list[str] | None
    pairs: bool
    fields: tuple[str, ...] = ("text",)
    columns: tuple[str, ...] = ()
    of_run: Sequence[int | str] = ()
    labels: Sequence[str] = ()
    numbers: deque[int] = field(default_factory=deque)
    tabs: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[str | tuple[str, str]]:
        for count, (number, text) in enumerate(self._numbered(), 1):
            self.numbers.append(number or count)
            yield text

    def _numbered(self) -> Iterator[tuple[int, str | tuple[str, str]]]:
        """Yield each text with its line number; with 0 if it is not in a table."""
        seconds = iter(self.seconds or ())
        for place in self.lines.places:
            if isinstance(place, str) and _has_suffix(place, TABLES if self.columns else TABLES[:1]):
                yield from self._rows(place)
                continue
            for text in self.lines.of(place):
                if isinstance(place, str) and _has_suffix(place, (".jsonl", ".ndjson")):
                    blank = [""] * len(self.fields)
                    values = fields_of_json(text, self.fields, self.lines.where) if text.strip() else blank
                    yield 0, self._texts([text_of_json(value, self.lines.where) for value in values])
                elif not self.pairs:
                    self._check_tab(text, isinstance(place, str) and _has_suffix(place, (".tsv",)))
                    yield 0, text
                elif self.seconds is not None:
                    yield 0, (text, os.fsencode(next(seconds)).decode("utf-8", "replace"))
                else:
                    yield 0, self._pair(text)

    def _texts(self, texts: Sequence[str]) -> str | tuple[str, str]:
        return (texts[0], texts[1]) if self.pairs else texts[0]

    def _rows(self, file: str) -> Iterator[tuple[int, str | tuple[str, str]]]:
        """Yield line numbers and texts of a CSV or TSV file, in the columns that its header line names.

        A file without this header line has only the texts. Raise DataError if it has more columns.
        """
        rows = column_rows(checked_path(file), self.lines.encoding)
        header = next(rows, Row(1, [""]))
        names = [cell.strip() for cell in header.value]
        columns = self.columns or self.fields
        if {*columns} <= {*names}:
            places = [names.index(column) for column in columns]
        elif self.columns and all(map(str.isdecimal, columns)):
            rows, places = chain([header], rows), [max(int(column), 1) - 1 for column in columns]
        elif not self.columns and len(names) == len(columns):
            rows, places = chain([header], rows), list(range(len(names)))
        elif not self.columns and self._like_training_data(names):
            rows = chain([header], rows)
            places = [int(column) - 1 for column in self.of_run[: len(self.fields)]]
        else:
            check_header_encoding(checked_path(file), names)
            problem = f"the columns are {printable(', '.join(names))[:200]}"
            likely = "" if self.pairs else likely_columns(checked_path(file), self.lines.encoding)
            meant = likely.partition(",")[2]
            hint: Hint = ("use ", Setting("read_labelled", "columns", meant)) if meant else NAME_COLUMNS
            where = f"{place_name(file)}, line 1"
            raise DataError(message(where, problem, expected=" and ".join(columns), hint=hint))
        for row in rows:
            if max(places) >= len(row.value):
                problem = f"{len(row.value)} columns, expected at least {max(places) + 1}"
                raise DataError(message(f"{place_name(file)}, line {row.number}", problem))
            yield row.number, self._texts([row.value[place] for place in places])

    def _like_training_data(self, cells: Sequence[str]) -> bool:
        """Return whether a first row has the columns of the training data, which had no header line."""
        numbers = [column for column in self.of_run if isinstance(column, int)]
        if len(numbers) < max(len(self.of_run), 1) or max(numbers) != len(cells):
            return False
        return cells[numbers[-1] - 1] in self.labels

    def _check_tab(self, text: str, is_table: bool) -> None:
        """Count a line with a tab. Raise DataError if it is line 1 of a .tsv file: it has several columns."""
        if "\t" in text.strip():
            if is_table and self.lines.where.endswith(", line 1"):
                hint = "name the column of the text: --columns NUMBER, or a name from the header line"
                problem = "the line has several columns"
                raise DataError(message(self.lines.where, problem, expected=ONE_TEXT, hint=hint))
            self.tabs.append(self.lines.where)

    def _pair(self, text: str) -> tuple[str, str]:
        sides = text.split("\t")
        if not text.strip():
            return "", ""
        if len(sides) != 2:
            problem = f"{len(sides)} column{'s' * (len(sides) > 1)}, expected 2"
            hint = "this run classifies pairs: two texts with a tab between them, or --text with --second"
            raise DataError(message(self.lines.where, problem, hint=hint))
        return sides[0], sides[1]


def _has_suffix(file: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether the name of a file, without .gz, ends in one of the suffixes."""
    return file.lower().removesuffix(".gz").endswith(suffixes)
