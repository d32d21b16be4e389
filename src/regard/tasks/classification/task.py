"""The classification task: data, batches, loss, and evaluation with accuracy and macro F1."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import torch
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text
from torch import Tensor
from torch.nn import functional

from regard.data.batch import NO_LABEL, LabelledBatch
from regard.data.batching import LabelledBatches, encode_texts
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
from regard.data.line_io import say
from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, DataError, Setting, list_item, message, printable, shell_word
from regard.evaluation.attribution import page_of
from regard.evaluation.classification_report import ClassificationReport, classification_report
from regard.evaluation.classifier_erasure import WordEffects, attribute_label, erase_words, hide_each_word
from regard.evaluation.text_classifier import DRAWN, SIDES, Classification, Line, TextClassifier
from regard.models.classifier import POOL, Classifier
from regard.named_models.classifiers import build_classifier
from regard.runs.run_commands import (
    Changeable,
    ChosenRun,
    RunReport,
    RunView,
    ViewOptions,
    report_changed_data,
)
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import StoredRun
from regard.runs.stored_runs import LoadedRun, with_weights
from regard.tasks.batched_task import BatchedTask, EpochRules, unless_stopped
from regard.tasks.classification.settings import (
    FILE_OPTIONS,
    ClassificationData,
    ClassificationSettings,
    has_suffix,
    labelled_columns,
)
from regard.tasks.corpus import (
    TOKENIZER,
    Corpus,
    Split,
    spread_by_length,
    store_json,
    stored_json,
    text_tokenizer,
)
from regard.tasks.file_options import (
    COLUMNS,
    ENCODING,
    FAITHFULNESS,
    FIELDS,
    JSONL,
    PAGE,
    TEST_FILE,
    TSV,
    evaluated_files,
)
from regard.tasks.picture_outputs import check_page, write_results
from regard.training.command_options import CommandOption
from regard.training.estimators import (
    Reinforce,
    RowLosses,
    embedding_features,
    sampled_loss,
)
from regard.training.settings import merged
from regard.training.task import Evaluation, Loss
from regard.viewing import Picture, shaded
from regard.viewing.picture import noted
from regard.viewing.pictures.picture_files import stacked

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
    whole = _read_files(data, data.train_file)
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
        train, valid = whole, _read_files(data, data.valid_file)
    else:
        train, valid = hold_out_texts(whole, data.held_out)
    labels = train.label_set()
    if data.valid_file:
        check_unknown_header(valid, labels, data.format, data.encoding)
    valid.label_indices(labels)
    return LabelledSplit(train, valid, is_held_out=not data.valid_file, labels=labels)


def _read_files(data: ClassificationData, files: Sequence[str]) -> LabelledTexts:
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


LEAST_SCALE = 0.01
"""Minimum of the colour scale of the view "erasure". The shade of a word shows how much the probability
decreases without the word. The darkest shade is the largest decrease, or LEAST_SCALE if this is larger. So no
word looks important if all decreases are small."""

TOKENS_PER_BATCH = 4096
"""Default of --batch-tokens."""

MOST_TEXTS = 1000
"""Maximum number of texts, or pairs, for which faithfulness is measured. This is slow: each text is
classified 9 times."""

MOST_ENTRIES = 300
"""Maximum number of texts on an HTML page."""

ERASURE = "erasure"

LEAST_CHANCE = 2.0**-149
"""Lower limit of a probability, so that its logarithm is finite."""

BETWEEN = 12.0
"""Distance between the two texts of a pair, in points."""


WIDTH = 128
"""The default width of recurrent models (size of their states). A Transformer has its own default size."""

RECURRENT = {False: (0.3, 4e-3), True: (0.2, 2e-3)}
"""Default dropout and learning rate of a recurrent model of width WIDTH: for single texts (False) and for
pairs of texts (True)."""

TRANSFORMER_RATE, TUNING_RATE = 1e-3, 3e-4
"""Learning rates. TRANSFORMER_RATE: for a Transformer with random initial weights. TUNING_RATE: for any model
that starts from the weights of another run."""


class ClassificationRun(LoadedRun, TextClassifier):
    """A TextClassifier that was loaded from a run folder, with the settings and the folder of its run."""

    settings: ClassificationSettings

    @property
    def json_fields(self) -> tuple[str, ...]:
        """The names of the JSON fields with the text and, for pairs, the second text.

        The settings data.text and data.second are used if they are names (not numbers). Otherwise, the names
        are "text" and "second".
        """
        data = self.settings.data
        columns = {"text": data.text, "second": data.second} if self.model.pairs else {"text": data.text}
        return tuple(column if isinstance(column, str) else name for name, column in columns.items())

    def validation_texts(self, count: int) -> list[str]:
        return list(itertools.islice(read_labelled_split(self.settings.data).valid.firsts, count))

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "labels": list(self.labels)}


@dataclass(frozen=True, eq=False)
class ClassificationView(RunView):
    """What `regard view` draws for a classifier: the attention for one text or pair of texts.

    result: the predicted class of the text, with the attention.
    effects: how much the probability of the predicted class decreases without each word.
    """

    result: Classification
    effects: WordEffects
    default_view: str = field(default="shaded", kw_only=True)

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. In the terminal, also show the effect of hiding each word."""
        view = options.view or self.default_view
        if view in self.own:
            return self.own[view]()
        if view == ERASURE or (view == "shaded" and options == ViewOptions(options.view)):
            drawn = self._texts(view)
        else:
            if len(self.result.texts) > 1 and options.site is None:
                sites = ", ".join(each.name for each in self.seen.sites)
                problem = "a pair has two texts, each with its own attention"
                expected = f"the option --site with one of {sites}"
                raise ArgumentError(message(f"--view {view}", problem, expected=expected))
            drawn = super().picture(options)
        drawn.terminal = Group(drawn.terminal, Text(), self.effects)
        return drawn

    def _texts(self, view: str) -> Picture:
        """Draw each text with shaded words.

        If `view` is ERASURE, the shade of a word shows the effect of hiding the word. Otherwise, the shade
        shows the attention weight of the word.
        """
        label, parts = printable(str(self.result.label)), []
        for side, read in zip(SIDES, self.result.texts, strict=False):
            words = read.words[:DRAWN]
            values = read.weights if view != ERASURE else self.effects.decreases(side, len(words))
            if values is not None and words:
                name = side if len(self.result.texts) > 1 else label
                most = max(LEAST_SCALE, *values[:DRAWN]) if view == ERASURE else None
                parts.append(shaded([values[:DRAWN]], [name], words, most=most))
        drawn = stacked(parts, BETWEEN)
        chances = ", ".join(f"{list_item(name)} {chance:.3f}" for name, chance in self.result.ranked[:5])
        about = "shaded by the weights of the pooling"
        if view == ERASURE:
            about = "shaded by how much the probability decreases without the word"
        drawn.frames[0].head(chances, about)
        drawn.terminal = Group(Text(chances, "bold"), drawn.terminal)
        return noted(drawn, *self.seen.notes)


class ClassificationTask(BatchedTask):
    """Trains a classifier on labelled texts, or pairs of texts, and evaluates it on the validation texts."""

    model: Classifier
    settings_type = ClassificationSettings
    metrics = MappingProxyType({"loss": "lower", "accuracy": "higher", "macro_f1": "higher"})
    best = "accuracy"
    counted = "texts"
    files = (TOKENIZER, LABELS)
    smallest_sizes = MappingProxyType({"tokens": 8, "classes": 2})
    evaluate_options = (
        TEST_FILE,
        TSV,
        JSONL,
        COLUMNS,
        FIELDS,
        ENCODING,
        PAGE,
        FAITHFULNESS,
        "batch_tokens",
    )
    view_options = intervene_options = (
        "text",
        CommandOption("--second", "Classification of pairs: the second text.", "TEXT"),
    )

    def _set_up(self, device: str) -> None:
        options = self._start(device, *[self.model.embedding] * (2 if self.model.pairs else 1))
        if options["tokens"] is None:
            del options["tokens"]
        self._train = LabelledBatches(self.corpus.train, **options)
        shared = {name: options[name] for name in ("tokens", "sentences") if name in options}
        self._valid = LabelledBatches(self.corpus.valid, **shared, shuffle=False)
        training = self.settings.training
        balance = self.corpus.split.train.balance(self.corpus.labels)
        weighted = training.class_weights != "none"
        self._class_weights = balance.weights(training.class_weights) if weighted else None
        self._samples = spread_by_length(self.corpus.split.valid.firsts, self.settings.evaluation.samples)

    @classmethod
    def read_data(
        cls, settings: ClassificationSettings, fingerprints: Mapping[str, str] | None = None
    ) -> LabelledSplit:
        split = read_labelled_split(settings.data)
        if fingerprints is None:  # only for a new run: a resumed run keeps its classes
            check_header_lines(settings.data, split)
        return split

    @classmethod
    def encode_data(
        cls,
        data: LabelledSplit,
        settings: ClassificationSettings,
        folder: Path,
        cache: Path | None = None,
        lines: int | None = None,
    ) -> LabelledCorpus:
        tokenizer = text_tokenizer(folder, settings.data, data.train.texts, lines)
        if not (folder / LABELS).exists():
            store_json(folder / LABELS, {"labels": list(data.labels)})
        labels = load_labels(folder)
        for row, label in enumerate(data.train.labels):
            # labels.json may be older than the data, or a copy from another run (--init-from).
            if label not in labels:
                problem = f"the classifier has no class {printable(label)[:80]!r}"
                expected = f"one of {labels.listed()}"
                hint = "leave it out with data.ignore, or start a new run without --init-from"
                raise DataError(message(data.train.place(row), problem, expected=expected, hint=hint))
        longest = settings.data.max_length
        train, valid = (
            encode_texts(texts, labels, tokenizer, longest=longest) for texts in (data.train, data.valid)
        )
        return LabelledCorpus(data, tokenizer, train, valid, labels)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: ClassificationSettings) -> tuple[int, ...]:
        return text_tokenizer(folder, settings.data).size, len(load_labels(folder))

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Classifier:
        vocabulary_size, classes = sizes
        return build_classifier(model.name, vocabulary_size, classes, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> ClassificationRun:
        check_load_keywords(TextClassifier, options)
        settings = run.settings
        tokenizer, labels = text_tokenizer(run.folder, settings.data), load_labels(run.folder)
        model = cls.build_model(settings.model, (tokenizer.size, len(labels)))
        options = {"longest": settings.data.max_length + 1, **options}
        return ClassificationRun(with_weights(model, run, device), tokenizer, labels, **options).from_run(run)

    @classmethod
    def evaluate_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> RunReport:
        page: Path | None = options["page"]
        check_page(page)
        tokens = options["batch_tokens"] or TOKENS_PER_BATCH
        classifier: ClassificationRun = run.load(cls, tokens_per_batch=tokens)
        if options["faithfulness"] and classifier.model.pool_site is None:
            problem = "this classifier has no attention: its pooling is not attention"
            hint = "choose a run of a classifier with model.pooling=attention (the default)"
            raise ArgumentError(message("--faithfulness", problem, hint=hint))
        data = classifier.settings.data
        texts = _read(data, classifier.labels, options)
        name = "" if texts is None else texts.name
        if texts is None:
            split = read_labelled_split(data)
            report_changed_data(run.folder, split.fingerprints)
            texts, name = split.valid, "the validation texts of the run"
        if left_out := texts.empty + texts.ignored:
            many = "1 text is" if left_out == 1 else f"{left_out:,} texts are"
            say(f"{many} left out: {texts.empty:,} empty, {texts.ignored:,} of ignored classes")
        scores = classifier.evaluate(texts)
        seconds = texts.seconds
        lines: list[Line] = [*texts.firsts] if seconds is None else [*zip(texts.firsts, seconds, strict=True)]
        if page is not None:
            both = zip(classifier.classify(lines[:MOST_ENTRIES]), texts.labels, strict=False)
            results = [replace(each, true_label=label) for each, label in both]
            title = f"Classifications by {classifier.folder.name}"
            write_results(page, results, len(texts), "texts", title, f"{scores.summary()}; {name}")
        balance = texts.balance(classifier.labels)
        values = {**scores.to_dict(), "balance": balance.to_dict(), "majority": balance.majority}
        always = f"always predicting the most frequent class has accuracy {balance.majority:.3f}"
        report = RunReport.of(classifier, name, values, scores, Text(always, "dim"))
        if not options["faithfulness"]:
            return report
        count = f"the first {MOST_TEXTS:,}" if len(texts) > MOST_TEXTS else f"{len(texts):,}"
        say(f"measuring faithfulness on {count} {'pairs' if texts.pairs else 'texts'}")
        erasure = erase_words(classifier, lines[:MOST_TEXTS])
        more = (
            f"If the word is replaced by the unknown token instead, the decrease is "
            f"{erasure.mean('unknown'):.2f} nats, and {erasure.mean('unknown_random'):.2f} for a random "
            "word.",
            f"In {erasure.better:.0%} of the texts, hiding the most attended word has a larger effect than "
            "hiding a random word. See docs/faithfulness.md.",
        )
        return report.with_faithfulness(erasure, *(more if erasure.texts else ()))

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> ClassificationView:
        classifier: ClassificationRun = run.load(cls)
        text, second, pairs = options["text"], options["second"], classifier.model.pairs
        if pairs and second is None:
            problem = "this run classifies pairs of texts"
            raise ArgumentError(message("regard view", problem, expected="--text and --second"))
        if not pairs and second is not None:
            raise ArgumentError(message("--second", "this run classifies single texts, not pairs"))
        line = (text, second) if pairs else text
        result = classifier.classify(line, look="*")
        if not isinstance(result, Classification) or result.label is None:
            problem = "the tokenizer finds no tokens in the text"
            raise ArgumentError(message("--text", problem, expected="at least one word"))
        effects = hide_each_word(classifier, line)

        def gradient() -> Picture:
            sides = range(len(result.texts))
            return stacked([attribute_label(classifier, result, side).picture() for side in sides])

        seen = result.seen().noted(effects.sentence())
        if classifier.model.pool_site is not None:
            return ClassificationView(seen, result, effects, own={"gradient": gradient})
        page = page_of(lambda methods: attribute_label(classifier, result, methods=methods))
        own = {"gradient": gradient}
        return ClassificationView(seen, result, effects, default_view=ERASURE, own=own, page=page)

    @classmethod
    def change_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> Changeable:
        classifier: ClassificationRun = run.load(cls)
        text, second = options["text"], options["second"]
        if classifier.model.pairs is not (second is not None):
            problem = f"this run classifies {'pairs of texts' if classifier.model.pairs else 'single texts'}"
            raise ArgumentError(message("--second", problem))
        line = text if second is None else (text, second)
        result = classifier.classify(line)
        if not isinstance(result, Classification) or result.label is None:
            problem = "the tokenizer finds no tokens in the text"
            raise ArgumentError(message("--text", problem, expected="at least one word"))
        label = result.label

        def chances() -> Classification:
            again = classifier.classify(line)
            assert isinstance(again, Classification)
            return again

        return Changeable(
            lambda: str(chances().label),
            [label],
            lambda: [math.log(max(dict(chances().ranked)[label], LEAST_CHANCE))],
            (),
            () if classifier.model.pairs else result.texts[0].places,
            ("", "word"),
            POOL,
        )

    @classmethod
    def defaults(
        cls, settings: Mapping[str, Any], data: Any = None, other: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        pairs = settings.get("data", {}).get("second") is not None
        return merged({"model": {"pairs": True}} if pairs else {}, settings), ()

    @classmethod
    def check(cls, settings: ClassificationSettings, model: Classifier | None = None) -> None:
        check_files(settings.data)
        pairs, second = settings.model.options.get("pairs", False), settings.data.second
        if pairs is not (second is not None):
            problem = f"model.pairs is {pairs}, and data.second is {'not set' if second is None else second}"
            hint = (
                *("do not set model.pairs; for pairs, use ", Setting("data", "second")),
                ", the column of the second text",
            )
            raise ArgumentError(message("the settings", problem, hint=hint))
        longest = settings.data.max_length
        if model is not None and model.longest is not None and longest >= model.longest:
            # If the classifier puts BOS before each text, its table needs one more position.
            fewest = longest + 1 + model.begins
            problem = (
                f"data.max_length is {longest:,}, but the model has {model.longest:,} positions for a text, "
                "one of them for </s>"
            )
            most = model.longest - 1
            advice = "use ", Setting("data", "max_length", most), " or ", Setting("model", "longest", fewest)
            raise ArgumentError(message("the settings", problem, hint=advice))

    @classmethod
    def usual(
        cls, settings: Mapping[str, Any], corpus: LabelledCorpus
    ) -> tuple[EpochRules, dict[str, Any], int]:
        model, rate = _model_and_rate(settings)
        rules = EpochRules("texts", batch_size=32, min_steps=400)
        return rules, {"model": model, "training": {"learning_rate": rate}}, len(corpus.train)

    def count(self, batch: LabelledBatch) -> int:
        return len(batch)

    def prepare(self, batch: LabelledBatch, device: Any) -> LabelledBatch:
        if self._shapes is not None:
            need = max(batch.first.shape[1], 0 if batch.second is None else batch.second.shape[1])
            batch = batch.padded_to(*self._shapes.size(len(batch), need))
        return batch.to(device)

    def loss(self, batch: LabelledBatch) -> Loss:
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(batch, self._estimator)
        logits_BC = self.model(batch).float()
        plain = functional.cross_entropy(logits_BC, batch.labels, reduction="sum")
        if self._class_weights is None and not self.settings.training.label_smoothing:
            return Loss(plain, {"loss": plain.detach()})
        return Loss(self._weighted(logits_BC, batch.labels, "sum"), {"loss": plain.detach()})

    def _weighted(self, logits_BC: Tensor, labels: Tensor, reduction: str) -> Tensor:
        """Return the cross-entropy with the class weights and the label smoothing of the settings.

        logits_BC: the logits of C classes.
        labels: (B,), the index of the true class of each text.
        reduction: "sum" or "none", see torch.nn.functional.cross_entropy().
        """
        weights_C = None if self._class_weights is None else self._class_weights.to(logits_BC.device)
        return functional.cross_entropy(
            logits_BC,
            labels,
            weight=weights_C,
            label_smoothing=self.settings.training.label_smoothing,
            reduction=reduction,
        )

    def _sampled_loss(self, batch: LabelledBatch, estimator: Reinforce) -> Loss:
        """Return the loss of a model with hard attention, with a gradient estimated from sampled keys.

        batch: labelled texts.
        estimator: the estimator of the gradient; each text is read estimator.samples times.
        """
        repeated = batch.repeat(estimator.samples)

        def row_losses() -> RowLosses:
            logits_RC = self.model(repeated).float()
            plain_R = functional.cross_entropy(logits_RC, repeated.labels, reduction="none")
            return RowLosses(self._weighted(logits_RC, repeated.labels, "none"), -plain_R)

        texts, lengths = [repeated.first], [repeated.first_lengths]
        if repeated.second is not None and repeated.second_lengths is not None:
            texts, lengths = [*texts, repeated.second], [*lengths, repeated.second_lengths]
        return sampled_loss(
            estimator,
            row_losses,
            len(batch),
            lengths={"source": [each + self.model.begins for each in lengths]},
            features=embedding_features(*((self.model.embedding, each) for each in texts)),
            counted=repeated.labels != NO_LABEL,
        )

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        total, true, predicted = 0.0, list[int](), list[int]()
        device = next(self.model.parameters()).device
        for batch in unless_stopped(stopping, self._valid.epoch(0)):
            logits_BC = self.model(batch.to(device)).float().cpu()
            total += float(functional.cross_entropy(logits_BC, batch.labels, reduction="sum"))
            true += batch.labels.tolist()
            predicted += logits_BC.argmax(-1).tolist()
        report = classification_report(true, predicted, self.corpus.labels)
        scores = {"loss": total / len(true), "accuracy": report.accuracy, "macro_f1": report.macro_f1}
        texts = [self.corpus.split.valid[place] for place in self._samples]
        longest = self.settings.data.max_length + 1
        classifier = TextClassifier(self.model, self.corpus.tokenizer, self.corpus.labels, longest=longest)
        lines = [text.first if text.second is None else (text.first, text.second) for text in texts]
        samples = [
            Group(Text(f"true class {list_item(text.label)}, predicted {result.summary()}"), *result.body())
            for text, result in zip(texts, classifier.classify(lines), strict=True)
        ]
        return Evaluation(scores, [_Tables(report), *samples])


def _model_and_rate(given: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the default options of the model as a dict, and the learning rate.

    The caller replaces these options by the options that the user has set. The learning rate depends on the
    width: on the width that the user has set, or else on the default width.

    In this example, the learning rate is chosen for the width 32:

    >>> _model_and_rate({"model": {"name": "gru", "width": 32}})
    ({'width': 128, 'dropout': 0.3}, 0.008)
    """
    model = given.get("model", {})
    if given.get("init_from") is not None:
        return {}, TUNING_RATE
    if model.get("name") == "transformer":
        return {}, TRANSFORMER_RATE
    dropout, rate = RECURRENT[bool(model.get("pairs"))]
    rate *= (WIDTH / max(model.get("width", WIDTH), 1)) ** 0.5
    return {"width": WIDTH, "dropout": dropout}, float(f"{rate:.2g}")


def _read(data: ClassificationData, labels: Labels, options: Mapping[str, Any]) -> LabelledTexts | None:
    """Read the labelled texts of --test-file, --tsv or --jsonl. Return None if none of these options is set.

    data: the data settings of the run. They give the columns or fields, unless --columns or --fields is set.
    labels: the classes of the run.
    options: the values of the options.
    """
    files, kind = evaluated_files(options, data.format)
    named = None
    for way, option in FILE_OPTIONS.items():
        if options[option] is not None:
            if not options[way] and not (files and all(has_suffix(file, way) for file in files)):
                raise ArgumentError(message(f"--{option}", f"--{option} requires --{way}"))
            named, kind = way, way
    if not files:
        return None
    columns: dict[str, Any] = {"label": data.label, "text": data.text, "second": data.second}
    if named is not None:
        option = FILE_OPTIONS[named]
        columns = labelled_columns(f"--{option}", options[option], 2 if data.second is None else 3)
    texts = read_labelled(files, kind, **columns, ignore=data.ignore, encoding=options.get("encoding"))
    check_unknown_header(texts, labels, kind, options.get("encoding"))
    return texts


@dataclass(frozen=True)
class _Tables:
    """The tables of a report, without accuracy and macro F1, which the log prints already."""

    report: ClassificationReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.report.tables(options.max_width)
