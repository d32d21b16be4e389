"""regard data: check, split and download sentence pairs; write or show the built-in corpus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard.cli import MARKUP, Command, CommandGroup
from regard.cli.options import CORPUS, COUNT, PAIR_FILES, PAIRS, REQUIRED, but, command
from regard.cli.pair_options import checked_files, chosen_pairs
from regard.cli.printing import facts_table, printable_console
from regard.cli.usage_errors import check_apart
from regard.data import Pairs, hold_out, korean_english
from regard.data.column_names import two_names
from regard.data.fetch import SETS
from regard.data.fetch import fetch as fetch_set
from regard.data.korean import SPLITS, Example
from regard.data.line_io import advancing, say, writing
from regard.errors import ArgumentError, DataError, message, shell_word, shown
from regard.evaluation import Links
from regard.files.atomic_io import check_free, written_together
from regard.training.command_options import CommandOption, flag, integer
from regard.viewing import draw

data = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=MARKUP)
"""The commands under `regard data`."""

FILES = ("ko", "en", "links")
"""Suffixes of the files of the built-in corpus: Korean, English and word alignments."""

SPLIT = CommandOption("--split", f"Split: {', '.join(SPLITS)} (longer sentences).", "NAME", default="train")

PARTS = ("train", "test")
"""The names of the sets of `regard data split`. File names begin with them: train.source, test.source, ..."""


LOWEST = 5
"""Number of pairs with the lowest agreement that `regard data check --align` prints."""


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
@command(
    *PAIR_FILES,
    "choose",
    CommandOption(
        "--align",
        "Also align the words of the pairs, and write to this file how much both directions of each pair "
        "agree, from 0 to 1. It is low for pairs that do not translate each other.",
        "FILE",
        Path,
    ),
)
def check(**options: Any) -> None:
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

    * `regard data check --source a.ko --target a.en --align agreement.tsv`
    """
    checked_files(options, "regard data check")
    pairs = chosen_pairs(options)
    report = pairs.inspect(full=True)
    printable_console().print(report)
    if report.refused is not None:
        raise report.refused
    if report.kept == 0:
        problem = "no pairs are left after filtering" if report.read else "the file is empty"
        raise DataError(message(pairs.name, problem))
    if options["align"] is not None:
        _write_agreement(pairs, options["align"])


def _write_agreement(pairs: Pairs, path: Path) -> None:
    """Align the words of pairs; write the number of each pair and how much both directions agree.

    Also print the pairs that agree least.
    """
    from regard.aligner import Aligner

    numbers: list[int] = []

    def texts() -> Iterator[tuple[str, str]]:
        for pair in pairs:
            numbers.append(pair.number)
            yield pair.source, pair.target

    scores = [aligned.agreement for aligned in Aligner().align(texts())]
    rows = list(zip(numbers, scores, strict=True))
    with writing(path) as write:
        for number, score in rows:
            write(f"{number}\t{score:.3f}")
    lowest = sorted(rows, key=lambda row: (row[1], row[0]))[:LOWEST]
    named = ", ".join(f"pair {number:,} ({score:.2f})" for number, score in lowest)
    say(f"Wrote {shown(path)}; the words of these pairs agree least: {named}")


@data.command(cls=Command)
@command(
    but("output", "Output folder.", metavar="FOLDER", default=REQUIRED),
    *PAIR_FILES,
    integer("--held-out", "Maximum number of pairs in the test set.", 1, PAIRS, default=1000),
    "seed",
    CommandOption(
        "--names",
        "Suffixes of the file names: en,de writes train.en and train.de.",
        "A,B",
        default="source,target",
    ),
    "choose",
    "overwrite",
)
def split(output: Path, names: str, **options: Any) -> None:
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
    files = checked_files(options, "regard data split")
    paths = _paths(output, names)
    check_free(paths, options["overwrite"])
    for path in paths:
        check_apart("--output and --names:", path, files)
    pairs = chosen_pairs(options)
    parts = hold_out(pairs, count=options["held_out"], seed=options["seed"])
    records = (
        # Remove \r at the end of a sentence, because \r\n would be read as one line end.
        ((2 * part, pair.source.rstrip("\r")), (2 * part + 1, pair.target.rstrip("\r")))
        for part, pairs_of_part in enumerate((parts.train, parts.valid))
        for pair in pairs_of_part
    )
    _write(paths, records, len(parts.train) + len(parts.valid))
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


@data.command(cls=Command)
@command(
    CommandOption(
        "name", "Name of the dataset. Without a name, all datasets are listed.", "NAME", default=""
    ),
    but("output", "Output folder.", metavar="FOLDER", default=Path("data")),
    CommandOption("--from", "Read the files from this folder, instead of downloading them.", "FOLDER", Path),
    flag(
        "--any-edition",
        "Accept files with an unknown hash, e.g. of Tatoeba, which is updated from time to time.",
    ),
)
def fetch(name: str, **options: Any) -> None:
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
    fetched = fetch_set(
        name,
        options["output"],
        source=options["from_"],
        edition="any" if options["any_edition"] else "known",
    )
    for part, how in fetched.about.parts.items():
        named = [
            f"--{side} {shell_word(fetched.folder / how[side])}"
            for side in ("source", "target", "tsv")
            if side in how
        ]
        console.print(Text(f"{part}: {' '.join(named)}"))


@data.command(cls=Command)
@command(
    integer("--pairs", "Number of pairs.", 1, CORPUS, default=10000),
    CommandOption("--split", f"{SPLIT.help} No sentence is in two splits.", "NAME", default="train"),
    "seed",
    but(
        "output",
        "Output folder. - prints a line for each pair instead of writing files: Korean sentence, "
        "English sentence and links, separated by tabs.",
        metavar="FOLDER",
        default=Path("data/korean"),
    ),
    "overwrite",
)
def korean(pairs: int, split: str, seed: int, output: Path, overwrite: bool) -> None:
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
    _write(paths, map(enumerate, map(_lines, corpus)), pairs)
    printable_console(soft_wrap=True).print(
        Text(f"Wrote {pairs:,} pairs: {', '.join(shown(path) for path in paths)}")
    )


@data.command(cls=Command)
@command(
    integer("--count -n", "Number of sentences.", 1, COUNT, default=3),
    SPLIT,
    "seed",
)
def sample(count: int, split: str, seed: int) -> None:
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


def _write(paths: Sequence[Path], records: Iterable[Iterable[tuple[int, str]]], count: int) -> None:
    """Write the lines of each record to files. A line has the index of its file in `paths`."""
    with written_together(paths) as files, advancing("writing pairs", count) as reached:
        for number, record in enumerate(records, 1):
            for place, line in record:
                files[place].write(f"{line}\n")
            if number % 1000 == 0:
                reached(number)


def _summary(name: str) -> Table:
    dataset = SETS[name]
    mebibytes = sum(piece.size for piece in dataset.pieces) / 2**20
    facts = {
        "content": dataset.about,
        "size": f"{mebibytes:.1f} MiB",
        "licence": dataset.licence,
        "from": dataset.home,
    }
    return facts_table(facts, name, "dim")


def _lines(example: Example) -> tuple[str, str, str]:
    return example.source, example.target, Links(example.sure, example.possible).written()
