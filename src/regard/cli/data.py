"""regard data: check, split and download sentence pairs; write or show the built-in corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard.cli import bounds
from regard.cli.data_split import split as split_pairs
from regard.cli.lazy_commands import MARKUP, Command, CommandGroup
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
from regard.data import korean_english
from regard.data.fetch import SETS
from regard.data.fetch import fetch as fetch_set
from regard.data.korean.corpus import SPLITS, Example
from regard.data.progress_bar import advancing
from regard.errors import DataError, message, shell_word, shown
from regard.evaluation import Links
from regard.files.file_group import check_free, written_together
from regard.viewing import draw

__all__ = ["data"]

data = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=MARKUP)
"""The commands under `regard data`."""

FILES = ("ko", "en", "links")
"""Suffixes of the files of the built-in corpus: Korean, English and word alignments."""


@data.callback()
def about() -> None:
    """Check, split and download sentence pairs; write or show the built-in corpus.

    Examples:

    * `regard data check --source train.de --target train.en`

    * `regard data split --source all.de --target all.en --output data/split`

    * `regard data fetch multi30k-en-de --output data`

    * `regard data korean --pairs 10000 --output data/korean`

    * `regard data sample`
    """


@data.command(cls=Command)
def check(
    source: SourceFiles = None,
    target: TargetFiles = None,
    tsv: TsvFiles = None,
    jsonl: JsonlFiles = None,
    columns: Columns = "1,2",
    fields: Fields = "source,target",
    encoding: Encoding = None,
    choose: Chosen = None,
) -> None:
    """Check sentence pairs and print a table of the problems found.

    The exit status is 0 if you can train on the pairs, and 2 if not. Files are UTF-8 (see
    --encoding), plain or gzip.

    The option --choose sets what to do with a pair that has a problem. For each problem, these are the
    possible values; the first one is the default:

    * malformed=error|skip: the line is not JSON, or has too few columns

    * invalid=error|replace|skip: bytes that are not valid UTF-8

    * nul=replace|error|skip: a NUL byte

    * empty=skip|error: a side is empty

    * long=skip|error|keep: a side has more characters than the limit, longest=1000

    * uneven=keep|error|skip: one side is more than 6 times as long as the other (the limit is ratio=6)

    skip drops the pair, replace repairs it, keep keeps it, and error rejects the data. A limit of none, e.g.
    longest=none, turns the limit off.

    Examples:

    * `regard data check --source train.de --target train.en`

    * `regard data check --tsv pairs.tsv --columns 2,1`

    * `regard data check --jsonl pairs.jsonl --fields translation.de,translation.en`

    * `regard data check --source a.ko --target a.en --choose invalid=replace --choose longest=200`
    """
    files = PairFiles(source, target, tsv, jsonl, columns, fields, encoding)
    files.check("regard data check")
    pairs = files.pairs(choose)
    report = pairs.inspect(full=True)
    printable_console().print(report)
    if report.refused is not None:
        raise report.refused
    if report.kept == 0:
        problem = "no pairs are left after filtering" if report.read else "the file is empty"
        raise DataError(message(pairs.name, problem))


data.command(cls=Command)(split_pairs)


@data.command("fetch", cls=Command)
def fetch(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the dataset. Without a name, all datasets are listed."),
    ] = "",
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Output folder.")] = Path("data"),
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FOLDER", help="Read the files from this folder, instead of downloading them."
        ),
    ] = None,
    any_edition: Annotated[
        bool,
        typer.Option(
            "--any-edition",
            help="Accept files with an unknown hash, e.g. of Tatoeba, which is updated from time to time.",
        ),
    ] = False,
) -> None:
    """Download a public dataset, verify its hash and print its licence. Without NAME, list all datasets.

    Examples:

    * `regard data fetch`

    * `regard data fetch multi30k-en-de --output data`

    * `regard data fetch tatoeba-en-ko --from downloads`
    """
    console = printable_console(soft_wrap=True)
    if not name:
        for each in SETS:
            console.print(_summary(each), "")
        console.print(Text("To download one: regard data fetch NAME --output FOLDER"))
        return
    fetched = fetch_set(name, output, source=source, edition="any" if any_edition else "known")
    for part, how in fetched.about.parts.items():
        options = [
            f"--{side} {shell_word(fetched.folder / how[side])}"
            for side in ("source", "target", "tsv")
            if side in how
        ]
        console.print(Text(f"{part}: {' '.join(options)}"))


@data.command(cls=Command)
def korean(
    pairs: Annotated[
        int, typer.Option(metavar="INT", help="Number of pairs.", min=1, max=bounds.CORPUS)
    ] = 10000,
    split: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Split: {', '.join(SPLITS)} (longer sentences). No sentence is in two splits.",
        ),
    ] = "train",
    seed: Annotated[int, typer.Option(metavar="INT", help="Random seed.", min=0, max=bounds.SEED)] = 0,
    output: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Output folder. - prints a line for each pair instead of writing files: Korean sentence, "
            "English sentence and links, separated by tabs.",
        ),
    ] = Path("data/korean"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite existing files.")] = False,
) -> None:
    """Write pairs of the built-in Korean-English corpus, with their word alignments.

    It writes three files. SPLIT.ko and SPLIT.en have one sentence per line. SPLIT.links has the alignments in
    Pharaoh format: 0-2 links the first Korean word to the third English word, 0p2 is a possible link.

    Examples:

    * `regard data korean --pairs 10000 --output data/korean`

    * `regard data korean --pairs 1000 --split test --output data/korean`

    * `regard data korean --pairs 5 --output -`
    """
    corpus = korean_english(split, pairs, seed)
    if str(output) == "-":
        page = typer.get_binary_stream("stdout")  # UTF-8 in every locale
        for example in corpus:
            page.write(("\t".join(_lines(example)) + "\n").encode())
        return
    paths = [output / f"{split}.{end}" for end in FILES]
    check_free(paths, overwrite)
    with written_together(paths) as files, advancing("writing pairs", pairs) as reached:
        for number, example in enumerate(corpus, 1):
            for file, line in zip(files, _lines(example), strict=True):
                file.write(f"{line}\n")
            if number % 1000 == 0:
                reached(number)
    printable_console(soft_wrap=True).print(
        Text(f"Wrote {pairs:,} pairs: {', '.join(shown(path) for path in paths)}")
    )


@data.command(cls=Command)
def sample(
    count: Annotated[
        int,
        typer.Option("--count", "-n", metavar="INT", help="Number of sentences.", min=1, max=bounds.COUNT),
    ] = 3,
    split: Annotated[
        str, typer.Option(metavar="NAME", help=f"Split: {', '.join(SPLITS)} (longer sentences).")
    ] = "train",
    seed: Annotated[int, typer.Option(metavar="INT", help="Random seed.", min=0, max=bounds.SEED)] = 0,
) -> None:
    """Show sentences of the built-in Korean-English corpus with their word alignments.

    Examples:

    * `regard data sample`

    * `regard data sample --split long --count 1`
    """
    console = printable_console()
    for example in korean_english(split, count, seed):
        console.print(Padding(drawn(example), (0, 0, 1, 0)))
    console.print(Text("dark: sure link; light: possible link", style="dim"))


def drawn(example: Example) -> Any:
    """Draw the word alignment of a sentence pair: a row for each English word, a column for each Korean word.

    Sure links are dark, possible links are light.
    """
    korean_words, english_words = example.source.split(), example.target.split()
    weights = [[0.0] * len(korean_words) for _ in english_words]
    for source, target in example.possible:
        weights[target][source] = 1.0 if (source, target) in example.sure else 0.5
    title = f"{example.source}\n{example.target}"
    return draw(weights, english_words, korean_words, title, legend=False, most=1)


def _summary(name: str) -> Table:
    dataset = SETS[name]
    table = Table(box=None, show_header=False, title=name, title_justify="left", title_style="bold")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    mebibytes = sum(piece.size for piece in dataset.pieces) / 2**20
    rows = {
        "content": dataset.about,
        "size": f"{mebibytes:.1f} MiB",
        "licence": dataset.licence,
        "from": dataset.home,
    }
    for label, value in rows.items():
        table.add_row(label, Text(value))
    return table


def _lines(example: Example) -> tuple[str, str, str]:
    return example.source, example.target, Links(example.sure, example.possible).written()
