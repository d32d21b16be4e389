"""regard data split: split sentence pairs into a training set and a test set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from regard.cli import bounds
from regard.cli.output_files import check_apart
from regard.cli.pair_options import (
    Chosen,
    Columns,
    Encoding,
    Fields,
    JsonlFiles,
    PairFiles,
    SourceFiles,
    TargetFiles,
    TsvFiles,
)
from regard.cli.printable_console import printable_console
from regard.data import hold_out
from regard.data.column_names import two_names
from regard.data.hold_out import HeldOut
from regard.data.progress_bar import advancing
from regard.errors import ArgumentError, message, shown
from regard.files.file_group import check_free, written_together

__all__ = ["split"]

PARTS = ("train", "test")
"""The names of the two sets. File names begin with them: train.source, test.source, ..."""

HeldOutPairs = Annotated[
    int,
    typer.Option(
        "--held-out", metavar="INT", help="Maximum number of pairs in the test set.", min=1, max=bounds.PAIRS
    ),
]
Seed = Annotated[int, typer.Option(metavar="INT", help="Random seed.", min=0, max=bounds.SEED)]
Folder = Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Output folder.")]
Names = Annotated[
    str, typer.Option(metavar="A,B", help="Suffixes of the file names: en,de writes train.en and train.de.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite existing files.")]


def split(
    output: Folder,
    source: SourceFiles = None,
    target: TargetFiles = None,
    tsv: TsvFiles = None,
    jsonl: JsonlFiles = None,
    columns: Columns = "1,2",
    fields: Fields = "source,target",
    encoding: Encoding = None,
    held_out: HeldOutPairs = 1000,
    seed: Seed = 0,
    names: Names = "source,target",
    choose: Chosen = None,
    overwrite: Overwrite = False,
) -> None:
    """Split sentence pairs into a training set and a test set.

    It writes four text files, with one sentence per line: train.source, train.target, test.source and
    test.target. Duplicate pairs are written once. The test set depends only on the sentences and the seed,
    not on the order of the pairs in the input files.

    The two sets have no source sentence in common. Normally they have no target sentence in common either:
    training pairs whose target is in the test set are dropped, and the report says how many. If more than
    half of the training pairs would be dropped (e.g. because the targets are labels), these pairs are kept,
    and the report says so.

    Examples:

    * `regard data split --source all.de --target all.en --held-out 1000 --output data/split`

    * `regard data split --tsv data/tatoeba/eng-deu.txt --names en,de --seed 1 --output data/split`

    * `regard data split --jsonl pairs.jsonl --fields translation.de,translation.en --output data/split`
    """
    files = PairFiles(source, target, tsv, jsonl, columns, fields, encoding)
    files.check("regard data split")
    paths = _paths(output, names)
    check_free(paths, overwrite)
    for path in paths:
        check_apart("--output and --names:", path, files.all)
    pairs = files.pairs(choose)
    parts = hold_out(pairs, count=held_out, seed=seed)
    _write(parts, paths)
    console = printable_console(soft_wrap=True)
    report = pairs.inspect()
    if report.kept < report.read:
        printable_console().print(report)
    console.print(Text(str(parts)))
    for part, (one, other) in zip(PARTS, (paths[:2], paths[2:]), strict=True):
        console.print(Text(f"{part}: --source {shown(one)} --target {shown(other)}"))


def _paths(out: Path, names: str) -> list[Path]:
    """Return the four output files: source and target of the training set, then of the test set.

    out: the output folder.
    names: the value of --names; with "en,de", the files are train.en, train.de, test.en and test.de.
    """
    ends = two_names("--names", names)
    for end in ends:
        if not re.fullmatch(r"[\w.+-]+", end):
            expected = "letters, digits, - and _, as in en,de"
            raise ArgumentError(message("--names", f"{names!r}", expected=expected))
    return [out / f"{part}.{end}" for part in PARTS for end in ends]


def _write(parts: HeldOut, paths: list[Path]) -> None:
    total = len(parts.train) + len(parts.valid)
    with written_together(paths) as files, advancing("writing pairs", total) as reached:
        written = 0
        for part, sides in ((parts.train, files[:2]), (parts.valid, files[2:])):
            for pair in part:
                for file, text in zip(sides, (pair.source, pair.target), strict=True):
                    # Remove \r at the end of a sentence, because \r\n would be read as one line end.
                    file.write(text.rstrip("\r") + "\n")
                written += 1
                if written % 10_000 == 0:
                    reached(written)
