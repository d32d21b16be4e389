"""regard align: print the source word, or character, that each target word attends to most."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.pair_options import (
    Columns,
    Fields,
    JsonlFiles,
    PairFiles,
    SourceLines,
    TargetLines,
    TsvFiles,
)
from regard.cli.run_options import (
    BATCH_TOKENS,
    MAX_SOURCE_LENGTH,
    BatchTokens,
    CheckpointName,
    Device,
    MaxSourceLength,
    OutputFile,
    PageFile,
    RunFolder,
    Threads,
    Unit,
    open_run,
)
from regard.data.line_io import Notes, say, tell, writing
from regard.data.pair_stream import PairStream, in_batches
from regard.decoding import Scored, Translator
from regard.decoding.unknown_words import UnknownWords
from regard.decoding.word_alignment import pharaoh
from regard.errors import ArgumentError, UnknownName, message
from regard.evaluation import SYMMETRISATIONS, read_links
from regard.evaluation.gold_alignment import evaluate_alignments
from regard.tasks.translation.alignment_choice import aligned_at, join_directions
from regard.tasks.translation.alignment_search import search_alignments
from regard.tasks.translation.translation_page import TranslationPage

__all__ = ["align"]

AT_ONCE = 1024
"""Number of pairs aligned at once: the attention of all of them is in memory."""

SYMMETRISE = "grow-diag-final-and"

AGREEMENT = "agreement"
"""Value of --choose that needs no gold alignments."""

COMPARED, WHERE, BOTH = "Gold alignments", "Attention to align by", "Both directions"

Gold = Annotated[
    Path | None,
    typer.Option(
        "--alignment", metavar="FILE", help="Gold alignments to compare with.", rich_help_panel=COMPARED
    ),
]
Base = Annotated[
    int,
    typer.Option(
        "--base",
        metavar="INT",
        help="With --alignment and --choose: number of the first word, 0 or 1.",
        min=0,
        max=1,
        rich_help_panel=COMPARED,
    ),
]
Site = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="NAME",
        help="Attention sites, * as wildcard.",
        show_default="chosen by --choose, or guided in training, or all",
        rich_help_panel=WHERE,
    ),
]
Head = Annotated[
    int | None,
    typer.Option(
        "--head",
        metavar="INT",
        help="Number of a head, from 0.",
        show_default="the mean of all heads",
        min=0,
        max=bounds.HEADS,
        rich_help_panel=WHERE,
    ),
]
Shifted = Annotated[
    bool | None,
    typer.Option(
        "--shifted/--not-shifted",
        help="Align each word by the attention one step later, when it is the decoder input.",
        rich_help_panel=WHERE,
    ),
]
Backward = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="Run of the opposite direction, to combine both alignments.", rich_help_panel=BOTH
    ),
]
How = Annotated[
    str | None,
    typer.Option(
        "--symmetrise",
        metavar="NAME",
        help=f"With --backward: how to combine both alignments: {', '.join(SYMMETRISATIONS)}.",
        callback=bounds.none_if_default,
        rich_help_panel=BOTH,
    ),
]
Choose = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Find the best site, head and step by the gold alignments in this file (or, with the word "
        "agreement, by agreement with --backward) and save them in the run.",
        rich_help_panel=WHERE,
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Also write the weights, as in 0-0:0.830.")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        metavar="FLOAT",
        help="Write every link of at least this weight.",
        show_default="the largest of each target word",
        min=0,
        max=1,
        callback=bounds.finite,
    ),
]


def align(
    run: RunFolder,
    source: SourceLines = None,
    target: TargetLines = None,
    tsv: TsvFiles = None,
    jsonl: JsonlFiles = None,
    columns: Columns = "1,2",
    fields: Fields = "source,target",
    output: OutputFile = None,
    alignment: Gold = None,
    base: Base = 0,
    site: Site = None,
    head: Head = None,
    shifted: Shifted = None,
    backward: Backward = None,
    symmetrise: How = SYMMETRISE,
    choose: Choose = None,
    probabilities: Probabilities = False,
    threshold: Threshold = None,
    unit: Unit = "auto",
    page: PageFile = None,
    max_source_length: MaxSourceLength = MAX_SOURCE_LENGTH,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the source word that each target word attends to most, in Pharaoh format, one line per pair.

    With a character tokenizer, characters (including spaces) are aligned; --unit word aligns words.
    --alignment and --choose compare words unless --unit character is given.

    With --alignment, precision, recall and alignment error rate (AER) are printed to standard error. In the
    file, 0-2 is a sure link, 0p2 and 0?2 are possible links. With --choose, the choices of site, head and
    step are printed instead, best first; the best is saved in alignment.json of the run and used afterwards.

    Examples:

    * `regard align runs/x --source test.ko --target test.en > test.links`

    * `regard align runs/x --source test.ko --target test.en --alignment test.links --output model.links`

    * `regard align runs/x --tsv pairs.tsv --columns ko,en > pairs.links`

    * `regard align runs/x --source a.ko --target a.en --site "decoder.5.cross" --head 3 --page a.html`

    * `regard align runs/x --source dev.ko --target dev.en --choose dev.links`

    * `regard align runs/x --backward runs/y --source dev.ko --target dev.en --choose agreement`

    * `regard align runs/x --backward runs/y --source a.ko --target a.en --symmetrise grow-diag-final-and`
    """
    options = AlignOptions(site, head, shifted, symmetrise, probabilities, threshold)
    options.check(choose, backward)
    files = PairFiles(source, target, tsv, jsonl, columns, fields)
    files.check("regard align")
    pairs, html = files.stream(), TranslationPage(page)
    gold = None if alignment is None else read_links(alignment, base)

    def load(folder: Path) -> Any:
        by_words = unit == "auto" and (alignment is not None or choose not in (None, AGREEMENT))
        settings = {"tokens_per_batch": batch_tokens, "longest": max_source_length, "look": "*cross"}
        settings["unit"] = "word" if by_words else unit
        return open_run(folder, checkpoint, device, threads, **settings)

    translator, other = load(run), None if backward is None else load(backward)
    if choose is not None:
        links = None if choose == AGREEMENT else read_links(choose, base)
        for line in search_alignments(translator, other, links, choose, pairs):
            typer.echo(line)
        return
    alignments = write_links(translator, other, options, pairs, output, html)
    html.save(f"Alignments by {run.name or run}")
    if gold is not None:
        say(str(evaluate_alignments(alignments.links, gold, alignments.words, str(alignment))))


@dataclass(frozen=True)
class AlignOptions:
    """Which attention to align by, how to combine two directions, and how links are written."""

    site: str | None = None
    head: int | None = None
    shifted: bool | None = None
    symmetrise: str | None = None
    probabilities: bool = False
    threshold: float | None = None

    def check(self, choose: str | None, backward: Path | None) -> None:
        """Raise ArgumentError for options that cannot be combined."""
        if self.symmetrise is not None and self.symmetrise not in SYMMETRISATIONS:
            raise UnknownName("symmetrisation", self.symmetrise, SYMMETRISATIONS)
        if self.symmetrise is not None and backward is None:
            problem, expected = "it needs two directions", "--backward, a run of the opposite direction"
            raise ArgumentError(message("--symmetrise", problem, expected=expected))
        if choose == AGREEMENT and backward is None:
            problem, expected = "it needs two directions", "--backward, a run of the opposite direction"
            raise ArgumentError(message("--choose agreement", problem, expected=expected))
        values = (self.site, self.head, self.shifted, self.symmetrise, self.threshold)
        if choose is not None and (any(each is not None for each in values) or self.probabilities):
            problem = "it tries all sites, heads and steps, and writes no alignments"
            hint = "use the other options in a second command, without --choose"
            raise ArgumentError(message("--choose", problem, hint=hint))
        if choose not in (None, AGREEMENT) and backward is not None:
            problem = "with gold alignments, it chooses for one run"
            raise ArgumentError(message("--choose", problem, hint="remove --backward"))

    def weighted(self, ours: Scored, theirs: Scored | None) -> list[tuple[int, int, float]]:
        """Return the links of a pair with their weights: (source word, target word, weight)."""
        if theirs is None:
            return ours.align().weighted(self.threshold)
        how = self.symmetrise or SYMMETRISE
        return join_directions(ours.align(), theirs.align(), how, self.threshold)


@dataclass
class Alignments:
    """The links of pairs, and the number of words (or characters) of each pair."""

    links: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)

    def add(self, links: list[tuple[int, int, float]], pair: Scored) -> None:
        """Add the links of a pair."""
        self.links.append(tuple((source, target) for source, target, _ in links))
        self.words.append((len(pair.source_units), len(pair.target_units)))


def write_links(
    translator: Translator,
    other: Translator | None,
    options: AlignOptions,
    pairs: PairStream,
    output: Path | None,
    page: TranslationPage,
) -> Alignments:
    """Align pairs in batches, and write one line for each; other: the run of the opposite direction."""
    notes, unknown, alignments, line = Notes(), UnknownWords(), Alignments(), pairs.first_line
    with writing(output) as write:
        for before, after in in_batches(pairs, AT_ONCE):
            reverse = [None] * len(after) if other is None else map(aligned_at, other.score(after, before))
            for ours, theirs in zip(translator.score(before, after), reverse, strict=True):
                notes.add(line, ours.notes)
                unknown.add(line, ours)
                line += 1
                chosen = aligned_at(ours, options.site, options.head, options.shifted)
                links = options.weighted(chosen, theirs)
                write(pharaoh(links, options.probabilities))
                page.add(chosen)
                alignments.add(links, ours)
    tell(notes, pairs)
    unknown.say()
    return alignments
