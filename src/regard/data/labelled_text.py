"""Labelled texts: single texts or pairs of texts, each with a class label, read from files; and classes.

    read_labelled("train.tsv", label="label", text="sentence")             tab-separated columns
    read_labelled("train.jsonl", label="gold_label", text="premise", second="hypothesis")
    read_labelled("stsa.binary.train.gz", "label-first")                   "1 a stirring , funny ..."
    labelled_from_lists(["good .", "bad ."], ["pos", "neg"])

Files are UTF-8, plain or gzip. Texts are held in memory. The reader of a format yields rows: line number,
label and texts. To add a format, write its function and add a line to FORMATS."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.data.read_text import Paths, checked_paths, read_lines
from regard.data.table_formats import (
    check_format,
    column_places,
    column_rows,
    fields_of,
    is_csv,
    record_rows,
    similar_columns,
    too_few_columns,
    valid_cell,
)
from regard.data.tokenizers.tokenizer import clean
from regard.errors import (
    ArgumentError,
    DataError,
    Hint,
    Setting,
    UnknownName,
    list_item,
    message,
    printable,
    shown,
)

LISTED = 20
"""Maximum number of labels that an error message lists."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True)
class Labels:
    """The classes that a classifier distinguishes, as strings, in the order of its outputs.

    names: the labels, at least two, all different.

    >>> labels = Labels.of(["pos", "neg", "pos"])
    >>> labels.names, labels.index("pos"), len(labels)
    (('neg', 'pos'), 1, 2)
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not all(isinstance(name, str) for name in self.names):
            problem = f"names is {self.names!r}"
            raise ArgumentError(message("Labels()", problem, expected="a list of strings"))
        object.__setattr__(self, "names", tuple(self.names))
        if len(self._indices) != len(self.names):
            repeated = next(name for name, count in Counter(self.names).items() if count > 1)
            problem = f"the label {repeated!r} occurs more than once"
            raise ArgumentError(message("Labels()", problem, expected="different labels"))
        if len(self.names) < 2:
            problem = f"the only label is {self.names[0]!r}" if self.names else "there are no labels"
            raise ArgumentError(message("Labels()", problem, expected="at least two labels"))

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @classmethod
    def of(cls, labels: Iterable[str]) -> Labels:
        """Collect the different labels and sort them: as numbers if all are integers, else as text."""
        names = sorted(set(labels))
        integers = all(map(_INTEGER.fullmatch, names))
        return cls(tuple(sorted(names, key=int) if integers else names))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, label: object) -> bool:
        return label in self._indices

    def __getitem__(self, index: int) -> str:
        return self.names[index]

    def index(self, label: str) -> int:
        """Return the index of a label.

        For an unknown label, raise UnknownName, which lists the known labels.
        """
        if label not in self._indices:
            raise UnknownName("label", label, self.names)
        return self._indices[label]

    def indices(self, labels: Iterable[str], place: Callable[[int], str]) -> list[int]:
        """Return the index of each label; raise DataError for an unknown label.

        place: function that takes the position of a label in `labels`, from 0, and returns its file and line
            for the error message.
        """
        given = list(labels)
        for position, label in enumerate(given):
            if label not in self:
                problem = f"the label {printable(label)[:80]!r} does not occur in the training data"
                raise DataError(message(place(position), problem, expected=f"one of {self.listed()}"))
        return [self._indices[label] for label in given]

    def listed(self) -> str:
        """Return the labels as text for a message, for example "neg, pos".

        If there are more than LISTED labels, the text ends for example with " and 40 more".
        """
        names = [list_item(name[:80]) for name in self.names[:LISTED]]
        more = f" and {len(self) - LISTED} more" if len(self) > LISTED else ""
        return ", ".join(names) + more


CLASS_WEIGHTS = ("none", "balanced")
"""The kinds of class weights."""


def class_weights(kind: str, counts: Sequence[int]) -> Tensor:
    """Return the weight of each class in the loss, float32 (C,).

    balanced:  w_c = n / (k n_c), with n texts, k classes and n_c texts of class c, as in scikit-learn
    none:      w_c = 1

    kind: "balanced" or "none".
    counts: the number of texts of each class.

    With "balanced", the texts of every class have the same total weight. A class without texts has weight 0.

    >>> class_weights("balanced", [30, 10])
    tensor([0.6667, 2.0000])
    """
    if kind not in CLASS_WEIGHTS:
        raise UnknownName("kind of class weights", kind, CLASS_WEIGHTS)
    texts = torch.tensor(counts, dtype=torch.float64)
    balanced = torch.where(texts > 0, texts.sum() / (len(texts) * texts.clamp(min=1)), 0.0)
    return (balanced if kind == "balanced" else torch.ones_like(texts)).float()


@dataclass(frozen=True)
class ClassBalance:
    """The number of texts of each class; prints as a table.

    labels: the classes.
    counts: the number of texts of each class.

    >>> balance = ClassBalance.of(["a", "b", "a"], Labels(("a", "b", "c")))
    >>> balance.counts, balance.shares[0].__round__(3), balance.majority.__round__(3)
    ((2, 1, 0), 0.667, 0.667)
    >>> print(balance)
    class  texts  share
    a          2  66.7%
    b          1  33.3%
    c          0   0.0%
    """

    labels: Labels
    counts: tuple[int, ...]

    @classmethod
    def of(cls, texts: Iterable[str], labels: Labels) -> ClassBalance:
        """Count the texts of each class.

        texts: the label of each text. All of them must be in `labels`.
        labels: the classes.
        """
        counts = Counter(texts)
        for label in counts:
            labels.index(label)
        return cls(labels, tuple(counts[name] for name in labels))

    @property
    def shares(self) -> tuple[float, ...]:
        """For each class, the fraction of the texts that belong to it, from 0 to 1."""
        total = sum(self.counts)
        return tuple(count / total if total else 0.0 for count in self.counts)

    @property
    def majority(self) -> float:
        """The fraction of the texts that belong to the most frequent class.

        This is the accuracy of a classifier that always predicts this class.
        """
        return max(self.shares)

    def weights(self, kind: str = "balanced") -> Tensor:
        """Return the weight in the loss of each of the C classes, (C,), computed by class_weights()."""
        return class_weights(kind, self.counts)

    def to_dict(self) -> dict[str, int]:
        """Return a dict from each label to its number of texts."""
        return dict(zip(self.labels, self.counts, strict=True))

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("class", overflow="fold")
        table.add_column("texts", justify="right")
        table.add_column("share", justify="right")
        for label, count, share in zip(self.labels, self.counts, self.shares, strict=True):
            table.add_row(Text(printable(label)), f"{count:,}", f"{share:.1%}")
        return table

    def __str__(self) -> str:
        file = io.StringIO()
        Console(file=file, width=100).print(self)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


class Row(NamedTuple):
    """One line of a file with labelled texts.

    number: its line number, from 1.
    label: the label as text.
    texts: one text, or the two texts of a pair.

    A blank line has an empty label and empty texts.
    """

    number: int
    label: str
    texts: tuple[str, ...]


Columns = tuple[int | str, ...]
"""The columns or JSON fields of a file: of the label, of the text, and of the second text of pairs.

Columns are numbers from 1, or names in the header line; "a.b" is the field "b" of the object in the field
"a"."""


def tabbed(path: Path, columns: Columns, encoding: str | None) -> Iterator[Row]:
    """Yield the labelled texts of a TSV file, or of a CSV file if its name ends with .csv.

    columns: numbers or names. If they are names, the first line of the file is a header with these names.
    """
    check_format(path, "tsv", "read_labelled")
    rows = column_rows(path, encoding)
    if isinstance(columns[0], str):
        header = next(rows, None)
        if header is None:
            return
        numbers = "if the file has no header line, use column numbers, starting at 1"
        hint: Hint = numbers
        if not {name.strip() for name in header.value} >= set(columns):
            likely = likely_columns(path, encoding) if len(columns) == 2 else ""
            if likely := likely or similar_columns(header.value, columns):
                use = Setting("read_labelled", "columns", likely)
                hint = ("name the columns of label and text: ", use, f"; {numbers}")
        places = column_places(path, header.value, columns, hint)
    else:
        places = column_places(path, (), columns, "")
    for row in rows:
        cells = row.value
        if problem := too_few_columns(cells, places):
            if any(cell.strip() for cell in cells):
                between = "commas or semicolons" if is_csv(path) else "tabs"
                hint = f"check the columns of label and text; columns are separated by {between}"
                raise DataError(message(f"{shown(path)}, line {row.number}", problem, hint=hint))
            cells = [""] * (max(places) + 1)
        label, *texts = (valid_cell(cells[at], shown(path), row.number, encoding) for at in places)
        yield Row(row.number, label.strip(), tuple(texts))


def likely_columns(path: Path, encoding: str | None = None) -> str:
    """Return the likely columns of label and text of a TSV or CSV file, as for --columns, or "" if none are.

    The text is the column with the most characters; the label is the column with the fewest different values,
    each of which occurs several times. Empty cells are not counted, and a column of dates is not a label.
    Line 1 is a header if its value for the label is not such a value.
    """
    rows = [row.value for row in itertools.islice(column_rows(path, encoding), SAMPLE) if row.value]
    header, *body = rows or [()]
    columns = list(zip(*(cells for cells in body if len(cells) == len(header)), strict=True))
    if len(columns) < 2:
        return ""
    text = max(range(len(columns)), key=lambda column: sum(map(len, columns[column])))
    filled = {at: [cell for cell in cells if cell.strip()] for at, cells in enumerate(columns) if at != text}
    different = {at: len(set(cells)) for at, cells in filled.items() if not are_dates(cells)}
    classes = {at: count for at, count in different.items() if 2 <= count <= len(filled[at]) // 4}
    if not classes:
        return ""
    label = min(classes, key=lambda column: classes[column])
    if header[label] in columns[label]:
        return f"{label + 1},{text + 1}"
    names = header[label], header[text]
    return ",".join(names) if all(name.strip() and "," not in name for name in names) else ""


_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}\b.*")


def are_dates(labels: Sequence[str]) -> bool:
    """Return whether all of these texts are dates.

    >>> are_dates(["2024-03-01", "1.12.2023 10:15"]), are_dates(["2024-03-01", "good"])
    (True, False)
    """
    return bool(labels) and all(_DATE.fullmatch(label) for label in labels)


def records(path: Path, columns: Columns, encoding: str | None) -> Iterator[Row]:
    """Yield the labelled texts of a file of records: JSON lines, a JSON array, or a Parquet file.

    The column name "a.b" means the field "b" of the object in the field "a".
    """
    names = tuple(map(str, columns))
    rows, unit = record_rows(path, names, encoding, "read_labelled")
    for row in rows:
        place = f"{shown(path)}, {unit} {row.number}"
        valid_cell(row.line, shown(path), row.number, encoding)
        if row.reason:
            raise DataError(message(place, row.reason))
        try:
            label, *texts = [None] * len(names) if row.value is None else fields_of(row.value, names)
        except LookupError as error:
            raise DataError(message(place, str(error.args[0]), hint=CHECK_FIELDS)) from None
        yield Row(row.number, _label(label, place), tuple(text_of_json(text, place) for text in texts))


def fields_of_json(line: str, names: Sequence[str], place: str) -> list[Any]:
    """Return the values of fields of a line that is a JSON object.

    names: the names of the fields; "a.b" means the field "b" of the object in the field "a".
    place: the file and the line, for error messages.

    >>> fields_of_json('{"text": "good", "stars": 5}', ["stars", "text"], "x.jsonl, line 1")
    [5, 'good']
    """
    try:
        return fields_of(json.loads(line), names)
    except (ValueError, RecursionError) as error:
        raise DataError(message(place, f"the line is not valid JSON: {error}")) from None
    except LookupError as error:
        raise DataError(message(place, str(error.args[0]), hint=CHECK_FIELDS)) from None


def label_first(path: Path, columns: Columns, encoding: str | None) -> Iterator[Row]:
    """Yield the labelled texts of a file. Each line is a label, a space, and the text.

    columns: not used, because the format has no columns.
    """
    for number, line in enumerate(read_lines(path, encoding), 1):
        label, _, text = line.strip().partition(" ")
        yield Row(number, label, (text,))


@dataclass(frozen=True)
class Format:
    """A file format of labelled texts.

    rows: function that yields the labelled texts of a file, one Row for each text. Its arguments are the
        path, the columns and the encoding of the file (None is UTF-8).
    suffixes: file name extensions that imply this format.
    label: the default column of the label; None if the format has no columns.
    text: the default column of the text; None if the format has no columns.
    """

    rows: Callable[[Path, Columns, str | None], Iterator[Row]]
    label: int | str | None
    text: int | str | None
    suffixes: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {
    "tsv": Format(tabbed, 1, 2, (".tsv", ".csv")),
    "jsonl": Format(records, "label", "text", (".jsonl", ".ndjson", ".json", ".parquet")),
    "label-first": Format(label_first, None, None),
}
"""Name -> file format of labelled texts. Files are plain or gzip."""


def _label(value: Any, place: str) -> str:
    """Return a label from a JSON file as text: 5 becomes "5", true becomes "true", and null becomes "".

    place: the file and the line, for error messages.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int):
        return json.dumps(value)
    if value is None:
        return ""
    problem = f"the label is of type {type(value).__name__}"
    raise DataError(message(place, problem, expected="a string, an integer or a boolean"))


def text_of_json(value: Any, place: str) -> str:
    """Return a text from a JSON file: `value` if it is a string, "" if it is None (null).

    Raise DataError for other types.

    place: the file and the line, for error messages.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        problem = f"the text is of type {type(value).__name__}"
        raise DataError(message(place, problem, expected="a string"))
    return value


def checked_columns(
    call: str, kind: str, label: int | str | None, text: int | str | None, second: int | str | None
) -> Columns:
    """Return the columns to read; raise ArgumentError if they are invalid.

    call: the name of the public function, for error messages.
    kind: the name of the format.
    label, text, second: the columns of the label, of the text and of the second text. If label or text is
        None, the default of the format is used; if second is None, the data are not pairs.
    """
    own = FORMATS[kind]
    if own.label is None or own.text is None:
        if (label, text, second) != (None, None, None):
            problem = f"label, text or second is set, but the format {kind!r} has no columns"
            raise ArgumentError(
                message(call, problem, hint='do not set these arguments, or use format="tsv" or "jsonl"')
            )
        return ()
    first = own.label if label is None else label, own.text if text is None else text
    columns = first if second is None else (*first, second)
    given = ", ".join(map(repr, columns))
    if len(set(columns)) != len(columns):
        raise ArgumentError(message(call, f"two columns are the same: {given}", expected="different columns"))
    names = all(isinstance(column, str) and column for column in columns)
    numbers = all(type(column) is int and column > 0 for column in columns)
    if not names and not (numbers and kind == "tsv"):
        expected = "names of fields" if kind == "jsonl" else "numbers from 1, or names in the header line"
        hint = "use only numbers or only names for label, text and second"
        raise ArgumentError(message(call, f"invalid columns: {given}", expected=expected, hint=hint))
    return columns


CHECK_FIELDS = "check the field names"
CHECK_LABELS = "check which column the labels are in"

EMPTY = ("skip", "error")
"""What to do with an empty text: "skip" drops and counts it, "error" raises DataError."""

SAMPLE = 1000
"""Number of lines from which likely_columns() guesses the columns of label and text."""

MANY = 10
"""With at least this many texts, label_set() raises DataError if nearly every text has a different label. The
labels were probably read from the wrong column."""


class LabelledText(NamedTuple):
    """A text, or a pair of texts, and its class label.

    first: the text, or the first text of the pair.
    second: the second text of the pair; None for a single text.
    label: the label, for example "pos".
    """

    first: str
    second: str | None
    label: str


@dataclass(frozen=True, eq=False, repr=False)
class LabelledTexts:
    """Texts, or pairs of texts, with a class label each.

    firsts: the texts, or the first text of each pair.
    labels: the label of each text (or pair).
    seconds: the second text of each pair; None if the data are not pairs.
    name: a name for all files together, for error messages.
    file_names: the name of each file.
    lines: the line number of each text in its file.
    files: for each text, the index of its file in `file_names`.
    empty: number of texts that were dropped because they were empty.
    ignored: number of texts that were dropped because of their label.

    >>> texts = labelled_from_lists(["good .", "bad .", " "], ["pos", "neg", "neg"])
    >>> len(texts), texts[1], texts.empty
    (2, LabelledText(first='bad .', second=None, label='neg'), 1)
    >>> print(texts.balance())
    class  texts  share
    neg        1  50.0%
    pos        1  50.0%
    """

    firsts: tuple[str, ...]
    seconds: tuple[str, ...] | None
    labels: tuple[str, ...]
    name: str
    lines: NDArray[numpy.int64]
    files: NDArray[numpy.int64]
    file_names: tuple[str, ...]
    empty: int = 0
    ignored: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        unit = "texts" if self.seconds is None else "pairs"
        return f"LabelledTexts({len(self)} {unit}, {self.name})"

    def __getitem__(self, index: int) -> LabelledText:
        second = None if self.seconds is None else self.seconds[index]
        return LabelledText(self.firsts[index], second, self.labels[index])

    def __iter__(self) -> Iterator[LabelledText]:
        return (self[index] for index in range(len(self)))

    @property
    def pairs(self) -> bool:
        """Whether each example is a pair of texts, not a single text."""
        return self.seconds is not None

    @property
    def texts(self) -> tuple[str, ...]:
        """All first texts, then all second texts, in one tuple: the training data of a tokenizer."""
        return self.firsts + (self.seconds or ())

    def place(self, index: int) -> str:
        """Return file and line of the text with this index, for messages: "train.tsv, line 3"."""
        return f"{self.file_names[self.files[index]]}, line {self.lines[index]}"

    def select(self, rows: Sequence[int] | NDArray[numpy.integer]) -> LabelledTexts:
        """Return a copy with only some of the texts, which keep their file names and line numbers.

        rows: the indices of the texts, from 0.
        """
        chosen = numpy.asarray(rows, numpy.int64)
        return replace(
            self,
            firsts=tuple(self.firsts[row] for row in chosen),
            seconds=None if self.seconds is None else tuple(self.seconds[row] for row in chosen),
            labels=tuple(self.labels[row] for row in chosen),
            lines=self.lines[chosen],
            files=self.files[chosen],
        )

    def label_set(self) -> Labels:
        """Return the different labels, sorted.

        Raises DataError if there is only one label, or if there are at least MANY texts and 9 of 10 have
        different labels. In both cases, the labels were probably read from the wrong column.
        """
        different = set(self.labels)
        if len(different) < 2:
            problem = f"all {len(self):,} texts have the label {printable(self.labels[0])[:80]!r}"
            raise DataError(message(self.name, problem, expected="at least two labels", hint=CHECK_LABELS))
        if len(self) >= MANY and len(different) >= 0.9 * len(self):
            problem = f"the {len(self):,} texts have {len(different):,} different labels"
            expected = "several texts for each label"
            raise DataError(message(self.name, problem, expected=expected, hint=CHECK_LABELS))
        return Labels.of(different)

    def label_indices(self, labels: Labels) -> NDArray[numpy.int64]:
        """Return the class index of each of the N texts, (N,).

        Raises DataError, with file and line, if the label of a text is not in `labels`.
        """
        return numpy.array(labels.indices(self.labels, self.place), numpy.int64)

    def balance(self, labels: Labels | None = None) -> ClassBalance:
        """Count the texts of each class.

        labels: the classes; the default is label_set(), all labels that occur.
        """
        return ClassBalance.of(self.labels, self.label_set() if labels is None else labels)

    @property
    def fingerprint(self) -> str:
        """A hash of texts and labels. It does not depend on the file names."""
        digest = hashlib.sha256()
        for text in self:
            for part in text:
                encoded = b"" if part is None else part.encode("utf-8", "surrogatepass")
                digest.update(b"%d " % (-1 if part is None else len(encoded)) + encoded)
        return digest.hexdigest()


def read_labelled(
    paths: Paths,
    format: str | None = None,
    *,
    label: int | str | None = None,
    text: int | str | None = None,
    second: int | str | None = None,
    empty: str = "skip",
    ignore: Sequence[str] = (),
    encoding: str | None = None,
) -> LabelledTexts:
    """Read labelled texts from one or more files.

    paths: a path or a list of paths, plain or gzip.
    format: "tsv" (columns: CSV if the file name ends with .csv, otherwise TSV), "jsonl" (JSON lines, a JSON
        array, or a Parquet file), or "label-first" (each line is a label, a space, and the text). By default,
        the file name decides, if it ends with .tsv, .csv, .jsonl, .json or .parquet.
    label, text: the columns or fields that contain the label and the text. For tsv, they are column numbers
        from 1, or names in the header line. Default: label=1, text=2. For jsonl, they are names of fields;
        "a.b" is the field "b" of the object in the field "a". Default: "label" and "text".
    second: for pairs of texts, the column or field of the second text. Default: single texts.
    empty: what to do with an empty text: "skip" drops and counts it, "error" raises DataError.
    ignore: texts with these labels are dropped and counted. In SNLI, for example, the label "-" means that
        the annotators did not agree.
    encoding: the encoding of the files, such as "cp949"; None is UTF-8.

    Raises DataError for a missing column, a malformed line or an empty label (the error names file and line),
    and if no text is left.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "train.tsv")
    ...     _ = path.write_text("sentence\\tlabel\\nit works .\\tpos\\nit fails .\\tneg\\n", encoding="utf-8")
    ...     list(read_labelled(path, label="label", text="sentence"))[0]
    LabelledText(first='it works .', second=None, label='pos')
    """
    call = "read_labelled()"
    if empty not in EMPTY:
        raise UnknownName("value of empty", empty, EMPTY)
    if isinstance(ignore, str):
        raise ArgumentError(
            message(call, "the argument `ignore` is a str, not a list", expected="a list of labels")
        )
    files = checked_paths(call, paths)
    kinds = [format_of(path, format) for path in files]
    rows = []
    for path, kind in zip(files, kinds, strict=True):
        columns = checked_columns(call, kind, label, text, second)
        rows.append(list(FORMATS[kind].rows(path, columns, encoding)))
        if not rows[-1]:
            hint = "the file has only a header line" if path.stat().st_size else "the file is empty"
            raise DataError(message(shown(path), "the file contains no texts", hint=hint))
    return _collected([shown(path) for path in files], rows, second is not None, empty, ignore)


def labelled_from_lists(
    texts: Sequence[str], labels: Sequence[str], seconds: Sequence[str] | None = None
) -> LabelledTexts:
    """Create LabelledTexts from lists. Empty texts are dropped and counted.

    texts: the texts, or the first text of each pair.
    labels: the label of each text (or pair).
    seconds: the second text of each pair. Default: single texts.

    >>> labelled_from_lists(["A man sleeps ."], ["neutral"], seconds=["A man rests ."]).pairs
    True
    """
    call = "labelled_from_lists()"
    sides = {"texts": texts, "labels": labels} | ({} if seconds is None else {"seconds": seconds})
    for name, values in sides.items():
        if isinstance(values, str) or not all(isinstance(value, str) for value in values):
            raise ArgumentError(message(call, f"{name} is not a list of strings"))
        if len(values) != len(texts):
            problem = f"there are {len(texts)} texts and {len(values)} {name}"
            raise DataError(message(call, problem, expected="the same number of both"))
    both = zip(texts, strict=True) if seconds is None else zip(texts, seconds, strict=True)
    rows = [Row(at, *row) for at, row in enumerate(zip(labels, both, strict=True), 1)]
    return _collected(["lists"], [rows], seconds is not None)


def format_of(path: Path, requested: str | None) -> str:
    """Return `requested`; if it is None, return the format that the file name extension implies."""
    if requested is not None:
        if requested not in FORMATS:
            raise UnknownName("format of labelled texts", requested, FORMATS)
        return requested
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    for kind, format in FORMATS.items():
        if suffixes and suffixes[-1] in format.suffixes:
            return kind
    problem = "the format cannot be detected from the file name"
    hint = f"set the format: {', '.join(FORMATS)}"
    raise ArgumentError(
        message(shown(path), problem, expected=".tsv, .csv, .jsonl, .json or .parquet", hint=hint)
    )


def _collected(
    names: Sequence[str],
    files: Sequence[Sequence[Row]],
    pairs: bool,
    on_empty: str = "skip",
    ignore: Sequence[str] = (),
) -> LabelledTexts:
    """Return the labelled texts of several files, without empty texts and texts with a label in `ignore`."""
    kept: list[tuple[int, Row]] = []
    empty = ignored = 0
    for file, row in ((file, row) for file, rows in enumerate(files) for row in rows):
        place = f"{names[file]}, line {row.number}"
        if not all(map(clean, row.texts)):
            if on_empty == "error":
                hint = 'delete the line, or use empty="skip"'
                raise DataError(message(place, "the text is empty", hint=hint))
            empty += 1
        elif row.label in ignore:
            ignored += 1
        elif not row.label:
            count = sum(not each.label and all(map(clean, each.texts)) for rows in files for each in rows)
            problem = "the label is empty" + (f", as are {count - 1:,} other labels" if count > 1 else "")
            hint = f"{CHECK_LABELS}; to leave these texts out, ignore the empty label: "
            raise DataError(message(place, problem, hint=(hint, Setting("read_labelled", "ignore"))))
        else:
            kept.append((file, row))
    name = ", ".join(names) if len(names) <= 4 else f"{names[0]}, ..., {names[-1]}"
    if not kept:
        problem = f"no text is left: {empty} are empty, {ignored} have a label to ignore"
        raise DataError(message(name, problem, expected="at least one labelled text"))
    return LabelledTexts(
        tuple(row.texts[0] for _, row in kept),
        tuple(row.texts[1] for _, row in kept) if pairs else None,
        tuple(row.label for _, row in kept),
        name,
        numpy.array([row.number for _, row in kept], numpy.int64),
        numpy.array([file for file, _ in kept], numpy.int64),
        tuple(names),
        empty,
        ignored,
    )
