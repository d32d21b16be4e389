"""The data of a classification run: labelled texts, read, checked, split and encoded."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from regard.data.labelled_text import (
    MANY,
    ClassBalance,
    LabelledTexts,
    Labels,
    are_dates,
    checked_columns,
    format_of,
    likely_columns,
    read_labelled,
)
from regard.errors import ArgumentError, DataError, message, printable, shell_word
from regard.tasks.classification.settings import ClassificationData
from regard.tasks.corpus import Corpus, stored_json
from regard.tasks.split import Split

LABELS = "labels.json"
"""File in a run folder: the list of classes, in the order of the outputs of the model."""

LISTED = 5
"""Maximum number of classes in the log message about classes with only one training text."""


FEW_TEXTS = 100
"""With fewer training texts, a log message says that more are needed."""

MANY_LABELS = 0.3
"""A log message asks for the column of the labels if there are more classes than this share of the texts."""


@dataclass(frozen=True, eq=False)
class LabelledSplit(Split[LabelledTexts]):
    """The labelled texts of a classification run.

    labels: the classes, that is, the different labels of the training texts.
    """

    labels: Labels = field(kw_only=True)

    @property
    def notes(self) -> tuple[str | ClassBalance, ...]:
        """Messages for the log: the numbers of texts, of omitted texts, and of texts of each class."""
        train, valid = self.train.balance(self.labels), self.valid.balance(self.labels)
        unit = "pairs of texts" if self.train.pairs else "texts"
        held = ", held out from the training files" if self.is_held_out else ""
        both = (self.train,) if self.is_held_out else (self.train, self.valid)
        empty, ignored = sum(each.empty for each in both), sum(each.ignored for each in both)
        left_out = [f"{_are(empty, 'empty text')} left out"] if empty else []
        label = "left out because of the label (data.ignore)"
        left_out += [f"{_are(ignored, 'text')} {label}"] if ignored else []
        majority = f"predicting the same class for all texts has accuracy {valid.majority:.3f} at most"
        return (
            *left_out,
            f"{len(self.train):,} training {unit}, {len(self.valid):,} validation {unit}{held}; {majority}",
            train,
            *_single_texts(self.train),
            *_odd_data(self.train, self.labels),
        )


def read_labelled_split(data: ClassificationData) -> LabelledSplit:
    """Read and check the files named in the settings; hold out training texts if no validation file is set.

    Raises DataError, with file and line, if a line is malformed, if all texts have the same class, or if a
    label of the validation set does not occur in the training set.
    """
    whole = _read(data, data.train_file)
    try:
        whole.label_set()
    except DataError as error:  # the labels are probably in another column
        path = Path(data.train_file[0])
        likely = likely_columns(path, data.encoding) if format_of(path, data.format) == "tsv" else ""
        if not likely or data.second is not None:
            raise
        problem, expected = error.message.problem, error.message.expected
        hint = f"name the columns of label and text: --columns {shell_word(likely)}"
        raise DataError(message(whole.name, problem, expected=expected, hint=hint)) from None
    if data.valid_file:
        train, valid = whole, _read(data, data.valid_file)
    else:
        train, valid = hold_out_texts(whole, data.held_out)
    labels = train.label_set()
    if data.valid_file:
        check_unknown_header(valid, labels, data.format, data.encoding)
    valid.label_indices(labels)
    return LabelledSplit(train, valid, is_held_out=not data.valid_file, labels=labels)


def _read(data: ClassificationData, files: Sequence[str]) -> LabelledTexts:
    return read_labelled(
        files,
        data.format,
        label=data.label,
        text=data.text,
        second=data.second,
        ignore=data.ignore,
        encoding=data.encoding,
    )


def check_header_lines(data: ClassificationData, split: LabelledSplit) -> None:
    """Raise DataError if the columns are numbers, but the first line of a TSV file seems to be a header line.

    A first line seems to be a header line if all these conditions are true:
    - There are at least 10 texts (MANY).
    - The label of the line occurs only in the first lines of files. No other label has this property.
    - Every other label occurs more than once.
    - No column of the line contains a space.

    split: the texts of the training files that `data` names, read by read_labelled_split().
    """
    train = split.train
    parts = (train, split.valid) if split.is_held_out else (train,)
    counts = Counter(label for part in parts for label in part.labels)
    first_lines = Counter(
        label for part in parts for label, line in zip(part.labels, part.lines, strict=True) if line == 1
    )
    headers = {label for label, count in first_lines.items() if counts[label] == count}
    others = [count for label, count in counts.items() if label not in headers]
    if isinstance(data.label, str) or counts.total() < MANY or len(headers) != 1 or min(others) == 1:
        return
    for row in numpy.flatnonzero(train.lines == 1).tolist():
        label = train.labels[row]
        names = _column_names(train, row, data.format, data.encoding) if label in headers else ""
        if names:
            problem = f"no other line has the label {printable(label)[:80]!r}"
            raise _header_error(train.place(row), problem, names)


def check_unknown_header(
    texts: LabelledTexts, labels: Labels, format: str | None, encoding: str | None = None
) -> None:
    """Raise DataError if the first line of a TSV file has an unknown label and looks like a header line.

    A line looks like a header line if none of its columns contains a space.

    texts: the labelled texts of the file.
    labels: the known labels.
    format: "tsv", "jsonl" or "label-first". None: the format is detected from the file names.
    encoding: the encoding of the files; None is UTF-8.
    """
    for row in numpy.flatnonzero(texts.lines == 1).tolist():
        label = texts.labels[row]
        names = _column_names(texts, row, format, encoding) if label not in labels else ""
        if names:
            problem = f"the label {printable(label)[:80]!r} does not occur in the training data"
            raise _header_error(texts.place(row), problem, names, f"one of {labels.listed()}")


def _column_names(texts: LabelledTexts, row: int, format: str | None, encoding: str | None) -> str:
    """Return the columns of a line of a TSV file as the value of --columns, if they may be names, else ""."""
    text = texts[row]
    names = [text.label, text.first, *(() if text.second is None else (text.second,))]
    path = Path(texts.file_names[texts.files[row]])
    if format_of(path, format) != "tsv" or any(len(name.split()) != 1 for name in names):
        return ""
    likely = "" if texts.pairs or not path.is_file() else likely_columns(path, encoding)
    return printable(likely) or ",".join(printable(name)[:80] for name in names)


def _header_error(place: str, problem: str, names: str, expected: str = "") -> DataError:
    hint = f"name the columns, --columns {names}, or remove the line"
    return DataError(message(place, f"the line looks like a header: {problem}", expected=expected, hint=hint))


def _are(count: int, unit: str) -> str:
    """Return a count, its unit and "is" or "are", as text.

    >>> _are(1, "text"), _are(1200, "text")
    ('1 text is', '1,200 texts are')
    """
    return f"1 {unit} is" if count == 1 else f"{count:,} {unit}s are"


def _single_texts(train: LabelledTexts) -> tuple[str, ...]:
    """Return a log message with the classes that have only one training text. Empty if there are none."""
    counts = Counter(train.labels)
    rows = [row for row, label in enumerate(train.labels) if counts[label] == 1]
    if not rows:
        return ()
    listed = "; ".join(f"{printable(train.labels[row])[:80]!r} ({train.place(row)})" for row in rows[:LISTED])
    more = f"; and {len(rows) - LISTED:,} more" if len(rows) > LISTED else ""
    if len(rows) == 1:
        header = "; is this line a header?" if train.lines[rows[0]] == 1 else ""
        return (f"1 class has only one training text: {listed}{header}",)
    return (f"{len(rows):,} classes have only one training text: {listed}{more}",)


def _odd_data(train: LabelledTexts, labels: Labels) -> Iterator[str]:
    """Yield log messages about few texts, and labels that are many, or dates, or differ only in case."""
    spelled: dict[str, list[str]] = {}
    for label in labels:
        spelled.setdefault("".join(label.lower().split()), []).append(repr(printable(label)[:80]))
    same = "; ".join(" and ".join(each) for each in spelled.values() if len(each) > 1)
    if same:
        yield f"labels that differ only in upper case or spaces are different classes: {same}"
    if are_dates(labels.names):
        yield "all labels are dates: are the columns of label and text right? (--columns)"
    elif len(train) >= MANY and len(labels) > MANY_LABELS * len(train):
        yield f"{len(labels):,} classes for {len(train):,} texts: is it the column of the labels? (--columns)"
    if len(train) < FEW_TEXTS:
        yield f"few texts: {len(train):,} to train on. More texts help, and longer training does not"


def check_files(data: ClassificationData) -> None:
    """Raise ArgumentError if the format of a data file is unknown, or if the columns in `data` are invalid.

    For example, the format "label-first" has no columns, so data.label must not be set.

    If data.format is not set, the format is detected from the file name. The files are not read.
    """
    for path in (*data.train_file, *(data.valid_file or ())):
        try:
            kind = format_of(Path(path), data.format)
        except ArgumentError as error:
            problem, expected = error.message.problem, error.message.expected
            hint = "--set data.format=label-first, or tsv, or jsonl"
            raise ArgumentError(message(error.message.call, problem, expected=expected, hint=hint)) from None
        checked_columns("data.label, data.text, data.second", kind, data.label, data.text, data.second)


@dataclass(frozen=True, eq=False)
class LabelledCorpus(Corpus):
    """The data of a classification run: the labelled texts as token ids.

    labels: the classes, in the order of the outputs of the model.
    """

    labels: Labels

    @property
    def sizes(self) -> tuple[int, ...]:
        """The vocabulary size and the number of classes."""
        return self.tokenizer.size, len(self.labels)

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the log: the numbers of truncated training and validation texts, if any."""
        counts = {"training": self.train.truncated, "validation": self.valid.truncated}
        return tuple(
            f"{_are(count, f'{name} text')} truncated: too many tokens (data.max_length)"
            for name, count in counts.items()
            if count
        )


def load_labels(folder: Path) -> Labels:
    """Load the list of classes from a run folder; raise DataError if the file is missing or damaged."""
    return stored_json(folder / LABELS, "list of labels", lambda content: Labels(tuple(content["labels"])))


PART, MOST = 10, 2000
"""By default, 1 / PART of the texts is held out, but at most MOST texts."""


def hold_out_texts(texts: LabelledTexts, count: int | None = None) -> tuple[LabelledTexts, LabelledTexts]:
    """Split texts into a training set and a validation set, both with the same share of each class.

    The split does not depend on the order of the texts. Equal texts are always in the same set. Every class
    keeps at least one text for training. So the validation set can have fewer than `count` texts. A class
    with only one text is not in the validation set.

    count: about how many texts to hold out. Default: a tenth, but at most 2,000.

    >>> from regard.data.labelled_text import labelled_from_lists
    >>> words = [f"text {number}" for number in range(40)]
    >>> train, valid = hold_out_texts(labelled_from_lists(words, ["a"] * 30 + ["b"] * 10), 8)
    >>> len(train), sorted(valid.labels)
    (32, ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b'])
    """
    if count is not None and count >= len(texts):
        problem = f"data.held_out is {count:,}, but there are {len(texts):,} texts"
        raise DataError(message(texts.name, problem, expected="a smaller number, or data.valid_file"))
    wanted = max(min(len(texts) // PART, MOST), 1) if count is None else count
    totals = Counter(texts.labels)
    left = _quotas(totals, wanted)
    groups: dict[bytes, list[int]] = {}
    for row, text in enumerate(texts):
        sides = [(each or "").encode("utf-8", "surrogatepass") for each in (text.first, text.second)]
        digest = hashlib.sha256(b"".join(b"%d " % len(each) + each for each in sides)).digest()
        groups.setdefault(digest, []).append(row)
    held: list[int] = []
    for _, rows in sorted(groups.items()):
        needed = Counter(texts.labels[row] for row in rows)
        if all(left[label] >= number for label, number in needed.items()):
            left.subtract(needed)
            held += rows
    if not held:
        problem = f"no text can be held out for validation: there are {len(texts):,} texts"
        hint = "add texts, or set data.valid_file"
        raise DataError(message(texts.name, problem, expected="two different texts of a class", hint=hint))
    chosen = set(held)
    return texts.select([row for row in range(len(texts)) if row not in chosen]), texts.select(sorted(held))


def _quotas(totals: Counter[str], wanted: int) -> Counter[str]:
    """Return how many texts of each class to hold out: the share of the class in `wanted`, rounded.

    If a class has two or more texts, at least one is held out, and at least one is kept for training.
    """
    whole = totals.total()
    quotas = Counter({label: total * wanted // whole for label, total in totals.items()})
    rest = sorted(totals, key=lambda label: (-(totals[label] * wanted % whole), label))
    for label in rest[: wanted - quotas.total()]:
        quotas[label] += 1
    return Counter({label: min(max(quotas[label], 1), totals[label] - 1) for label in totals})
