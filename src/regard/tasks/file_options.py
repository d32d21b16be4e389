"""The command-line options for data files that several tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, message
from regard.training.command_options import CHOSEN, CommandOption

TOKENS = ("data.lowercase", "data.tokenizer", "data.vocab_size")
"""The settings that define the vocabulary of a tokenizer. The weights of a model fit only one vocabulary. So
these settings must stay the same when a run is resumed, or when a model starts from the weights of another
run."""

FILE_FORMATS = ("tsv", "jsonl")
"""The formats of data files. Each format is also the name of an option for files: --tsv and --jsonl."""

SOURCE = CommandOption("--source", "File with one source sentence per line. May be repeated.", "FILE")
TARGET = CommandOption(
    "--target",
    "File with translations: line N is the translation of line N of --source. May be repeated.",
    "FILE",
)
TRAIN_FILE = CommandOption(
    "--train-file",
    "Language models: text file. Classification: file with labelled texts (.tsv, .csv, .jsonl, .json or "
    ".parquet). Captioning: file with captions (.tsv, .csv, .jsonl or .json). Answering: file with stories "
    "and questions (bAbI or .jsonl). May be repeated.",
    "FILE",
)
VALID_FILE = CommandOption(
    "--valid-file",
    "File of the validation set, in the format of --train-file. May be repeated.",
    "FILE",
    shown_default="held out from --train-file",
)
VOCAB_SIZE = CommandOption(
    "--vocab-size",
    "Vocabulary size; for translation, of the source and of the target.",
    "INT",
    shown_default=CHOSEN,
    least=5,
)
TEST_FILE = CommandOption(
    "--test-file",
    "File to evaluate on, in the format of --train-file of regard train. May be repeated.",
    "FILE",
    list[str],
    shown_default="validation data of the run",
)
TSV = CommandOption(
    "--tsv",
    "TSV or CSV file with sentence pairs or labelled texts (see --columns), or with captions. May "
    "be repeated.",
    "FILE",
    list[str],
)
JSONL = CommandOption(
    "--jsonl",
    "JSON or Parquet file with sentence pairs or labelled texts (see --fields), or JSON lines file with "
    "captions, or with stories and questions. May be repeated.",
    "FILE",
    list[str],
)
COLUMNS = CommandOption(
    "--columns",
    "The columns of --tsv: numbers (the first column is 1) or names from the header line. Translation: "
    "source,target. Classification: label,text or label,text,second. Captioning: image,caption (names).",
    "A,B",
    shown_default="1,2; for classification and captioning, the columns of the run",
)
FIELDS = CommandOption(
    "--fields",
    "The fields of --jsonl, in the order of --columns. a.b is the field b inside the field a.",
    "A,B",
    shown_default="source,target; for classification, the fields of the run",
)
ENCODING = CommandOption(
    "--encoding",
    "Encoding of the text files, e.g. cp949 (Korean), shift_jis, gb18030, latin-1 or utf-16.",
    "NAME",
    shown_default="utf-8",
)
SPLIT = CommandOption(
    "--split",
    "Evaluate on this split of the built-in corpus, instead of on files. Translation: test, long or valid. "
    "Captioning: test, held-out or valid, or a split of the caption file.",
    "NAME",
)
PAGE = CommandOption("--page", "Write the results and their attention to this HTML page.", "FILE.html", Path)
FAITHFULNESS = CommandOption(
    "--faithfulness",
    "Also measure how much the predictions of the model change without the words that have the largest "
    "attention weights (slow).",
    kind=bool,
    default=False,
)


def train_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of [data] for --tsv, --jsonl, --valid-tsv and --valid-jsonl of `regard train`.

    options: the value of each option by its name, with _ instead of -. All files have the same format.

    >>> train_files({"tsv": ["a.tsv"], "valid_tsv": ["b.tsv"]})
    {'train_file': ['a.tsv'], 'valid_file': ['b.tsv'], 'format': 'tsv'}
    """
    for prefix, file in (("", "train_file"), ("valid_", "valid_file")):
        ways = [each for each in (file, *(prefix + way for way in FILE_FORMATS)) if options.get(each)]
        if len(ways) > 1:
            named = " and ".join(f"--{each.replace('_', '-')}" for each in ways)
            problem = f"{named} cannot be combined"
            raise ArgumentError(message("regard train", problem, expected="one of them"))
    data: dict[str, Any] = {}
    for way in FILE_FORMATS:
        files = {"train_file": options.get(way), "valid_file": options.get(f"valid_{way}")}
        if any(files.values()):
            data |= {name: value for name, value in files.items() if value} | {"format": way}
    return data


def evaluated_files(options: Mapping[str, Any], usual: str | None) -> tuple[list[str], str | None]:
    """Return the files of --test-file, --tsv or --jsonl of `regard evaluate`, and their format.

    options: the value of each option by its name, with _ instead of -.
    usual: the format of the files of --test-file.

    >>> evaluated_files({"test_file": None, "tsv": None, "jsonl": ["a.jsonl"]}, "tsv")
    (['a.jsonl'], 'jsonl')
    """
    ways = {each: options[each] for each in ("test_file", *FILE_FORMATS) if options.get(each)}
    if len(ways) > 1:
        problem = "more than one kind of file is named"
        expected = "one of --test-file, --tsv and --jsonl"
        raise ArgumentError(message("regard evaluate", problem, expected=expected))
    for way, files in ways.items():
        return list(files), usual if way == "test_file" else way
    return [], usual
