"""The settings of a classification run: data, model, training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from regard.errors import ArgumentError, message
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.tasks.file_options import TOKENS, train_files
from regard.training.settings import Clash, Part, Section, Training, Whole

Column = Annotated[int, Field(ge=1, le=1_000_000)] | Annotated[str, Field(min_length=1)]
"""A column number, starting at 1, or the name of a column or JSON field."""


class ClassificationData(Section):
    """The settings [data] of a classification run: files of labelled texts, and how they are tokenized.

    train_file: files of the training set.
    valid_file: files of the validation set. Without valid_file, texts of the training set are held out, with
        the same share of each class.
    held_out: the number of texts to hold out. Default: a tenth of the texts, but at most 2,000.
    format: "tsv", "jsonl" or "label-first" (a label, a space, and the text). By default, the format is
        detected from the file names. A file of the format "tsv" whose name ends with .csv is a CSV file; a
        file of the format "jsonl" may also be a JSON array or a Parquet file.
    encoding: the encoding of the text files, such as "cp949". Default: UTF-8.
    label: the column of the label: a number (from 1), a name in the header line, or the name of a JSON field.
        Default: column 1, or the JSON field "label".
    text: the column of the text. Default: column 2, or the JSON field "text".
    second: the column of the second text, for pairs of texts.
    ignore: labels whose texts are left out.
    lowercase: convert all text to lower case.
    tokenizer: "word", "unigram", "bpe" or "character".
    vocab_size: maximum number of tokens of the tokenizer. The default depends on the kind of tokenizer.
    max_length: maximum number of tokens of a text. Longer texts are truncated.
    """

    train_file: Annotated[list[str], Field(min_length=1)]
    valid_file: list[str] | None = None
    encoding: str | None = None
    held_out: Whole | None = None
    format: Literal["tsv", "jsonl", "label-first"] | None = None
    label: Column | None = None
    text: Column | None = None
    second: Column | None = None
    ignore: list[str] = Field(default_factory=list)
    lowercase: bool = False
    tokenizer: Literal["word", "unigram", "bpe", "character"] = "word"
    vocab_size: Annotated[int, Field(ge=5, le=1_000_000)] | None = None
    max_length: Annotated[int, Field(ge=1, le=1_000_000)] = 256

    @model_validator(mode="after")
    def _one_validation_set(self) -> ClassificationData:
        if self.valid_file and self.held_out is not None:
            raise Clash("valid_file and held_out are both set", "one of valid_file, held_out")
        return self


class ClassificationModel(ModelSettings):
    """The settings [model] of a classification run: `name`, and further arguments of build_classifier()."""

    name: str = "lstm"


class ClassificationTraining(Training):
    """The settings [training] of a classification run. For the settings that all tasks have, see Training.

    best: the metric that selects the best checkpoint.
    label_smoothing: weight of the uniform distribution in the target distribution of the loss.
    class_weights: "balanced": every class has the same total weight in the loss.
    """

    best: Literal["loss", "accuracy", "macro_f1"] = "accuracy"
    label_smoothing: Part = 0.0
    class_weights: Literal["none", "balanced"] = "none"


class ClassificationEvaluation(Section):
    """The settings [evaluation] of a classification run: how the model is evaluated during training.

    samples: number of validation texts to print after an evaluation, with their classes and their attention.
        Short texts come first.
    """

    samples: Annotated[int, Field(ge=0, le=100_000)] = 3


class ClassificationSettings(RunSettings):
    """All settings of a classification run, as in config.toml.

    >>> settings = ClassificationSettings(data=ClassificationData(train_file=["reviews.tsv"]))
    >>> settings.model.name, settings.training.best, settings.data.tokenizer
    ('lstm', 'accuracy', 'word')
    """

    fixed = ("task", "model", *TOKENS)
    for_outputs = ("task", "model", "data.lowercase", "data.max_length")
    no_data_hint = "--train-file train.tsv, a file of labels and texts"
    next_command = 'regard classify {run} --text "..." --draw'

    task: Literal["classification"] = "classification"
    data: ClassificationData
    model: ClassificationModel = Field(default_factory=ClassificationModel)
    training: ClassificationTraining = Field(default_factory=ClassificationTraining)
    evaluation: ClassificationEvaluation = Field(default_factory=ClassificationEvaluation)

    @classmethod
    def data_options(cls, options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        return OWN_OPTIONS, labelled_files(options)


DIGITS = 9
"""Maximum number of digits of a column number. Longer numbers are read as names of columns."""

NAMES = ("label", "text", "second")
"""The settings in [data] that --columns and --fields set. For example, --columns 2,1 sets label = 2 and text
= 1."""

FILE_OPTIONS = {"tsv": "columns", "jsonl": "fields"}
"""The options for files. For each, the value is the option for the columns or fields of these files."""

OWN_OPTIONS = (*FILE_OPTIONS, *FILE_OPTIONS.values(), *(f"valid_{each}" for each in FILE_OPTIONS))
"""The options of `regard train` that labelled_files() reads."""


def labelled_columns(option: str, text: str, count: int | None = None) -> dict[str, Any]:
    """Parse the value of --columns or --fields, for example "2,1".

    The value lists the columns of the label, the text and, for pairs, the second text. The result is a dict
    with the keys "label", "text" and, for pairs, "second".

    option: --columns (numbers or names) or --fields (names).
    text: the value of the option.
    count: the expected number of columns. None: 2 or 3 columns.

    >>> labelled_columns("--columns", "2,1"), labelled_columns("--fields", "class,a,b")["second"]
    ({'label': 2, 'text': 1}, 'b')
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(parts) not in ((2, 3) if count is None else (count,)):
        expected = "two or three columns" if count is None else f"{count} columns"
        expected += f", separated by commas: {','.join(NAMES[: count or len(NAMES)])}"
        raise ArgumentError(message(option, f"{text[:80]!r}", expected=expected))
    numbers = option == "--columns" and all(part.isdecimal() and len(part) <= DIGITS for part in parts)
    return dict(zip(NAMES, map(int, parts) if numbers else parts, strict=False))


def has_suffix(file: str, way: str) -> bool:
    """Return whether the name of a file implies the format "tsv" or "jsonl"."""
    from regard.data.labelled_text import FORMATS

    return Path(file.lower().removesuffix(".gz")).suffix in FORMATS[way].suffixes


def labelled_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options --tsv, --jsonl, --columns and --fields of `regard train` to the settings [data].

    --columns and --fields are also for files of --train-file, if their names end with .csv, .jsonl etc.

    >>> labelled_files({"tsv": ["a.tsv"], "columns": "label,review"})
    {'train_file': ['a.tsv'], 'format': 'tsv', 'label': 'label', 'text': 'review'}
    """

    data = train_files(options)
    for way, columns in FILE_OPTIONS.items():
        if options.get(columns) is None:
            continue
        files = [] if "format" in data else list(options.get("train_file") or ())
        if data.get("format") != way and not (files and all(has_suffix(file, way) for file in files)):
            hint = f"name the files with --{way} instead of --train-file" if files else ""
            raise ArgumentError(message(f"--{columns}", f"it needs --{way}", hint=hint))
        data |= labelled_columns(f"--{columns}", options[columns])
    return data
