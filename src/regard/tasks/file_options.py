"""Options of `regard evaluate` that several tasks share."""

from __future__ import annotations

from pathlib import Path

from regard.runs.command_options import CommandOption

__all__ = ["COLUMNS", "FAITHFULNESS", "FIELDS", "JSONL", "PAGE", "SPLIT", "TEST_FILE", "TSV"]

TEST_FILE = CommandOption(
    "--test-file",
    "File to evaluate on, in the format of --train-file of regard train. May be repeated.",
    "FILE",
    list[str],
    shown_default="the validation data of the run",
)
TSV = CommandOption(
    "--tsv",
    "TSV file with sentence pairs, or with labelled texts (see --columns). May be repeated.",
    "FILE",
    list[str],
)
JSONL = CommandOption(
    "--jsonl",
    "JSON lines file with sentence pairs, or with labelled texts (see --fields). May be repeated.",
    "FILE",
    list[str],
)
COLUMNS = CommandOption(
    "--columns",
    "The columns of --tsv: numbers (the first column is 1) or names from the header line. Translation: "
    "source,target. Classification: label,text or label,text,second.",
    "A,B",
    shown_default="1,2; for classification, the columns of the run",
)
FIELDS = CommandOption(
    "--fields",
    "The fields of --jsonl, in the order of --columns. a.b is the field b inside the field a.",
    "A,B",
    shown_default="source,target; for classification, the fields of the run",
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
