"""regard align: print word alignments, which link each target word to the source word it attends to most."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.pair_options import (
    DEFAULT_COLUMNS,
    Columns,
    Encoding,
    Fields,
    JsonlFiles,
    PairFiles,
    SourceLines,
    TargetLines,
    TsvFiles,
)
from regard.cli.run_options import (
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
from regard.data.pairs import PairStream, in_batches
from regard.decoding import Scored, Translator
from regard.decoding.unknown_words import UnknownWords
from regard.decoding.word_alignment import pharaoh
from regard.errors import ArgumentError, UnknownName, message
from regard.evaluation import SYMMETRISATIONS, read_links
from regard.evaluation.alignment_error_rate import evaluate_alignments
from regard.roles import CROSS
from regard.tasks.translation.alignment import aligned_at, join_directions, search_alignments
from regard.tasks.translation.translation_page import TranslationPage

__all__ = ["align"]

AT_ONCE = 1024
"""Number of sentence pairs that are aligned at once. It is limited because their attention is in memory."""

SYMMETRISE = "grow-diag-final-and"

AGREEMENT = "agreement"
"""The value of --choose that chooses the alignments that agree best with the --backward run."""

COMPARED, WHERE, BOTH = "Gold alignments", "Attention weights to align with", "Two directions"

Gold = Annotated[
    Path | None,
    typer.Option(
        "--gold-alignments",
        metavar="FILE",
        help="Compare the alignments with the gold alignments in this file. Line N has the links of pair N: "
        "0-2 is a sure link of source word 0 and target word 2, 0p2 or 0?2 is a possible link.",
        rich_help_panel=COMPARED,
    ),
]
Base = Annotated[
    int,
    typer.Option(
        "--base",
        metavar="INT",
        help="Number of the first word in the gold alignments of --gold-alignments or --choose: 0 or 1.",
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
        help="Attention layers (sites): a role, e.g. cross, or a name, e.g. decoder.5.cross (* matches any "
        "text). Several sites are averaged.",
        show_default="the site saved by --choose; else the site trained with --guided; else all sites",
        rich_help_panel=WHERE,
    ),
]
Head = Annotated[
    int | None,
    typer.Option(
        "--head",
        metavar="INT",
        help="Number of an attention head; the first is 0.",
        show_default="the head saved by --choose; else the mean of all heads",
        min=0,
        max=bounds.HEADS,
        rich_help_panel=WHERE,
    ),
]
Shifted = Annotated[
    bool | None,
    typer.Option(
        "--shifted/--not-shifted",
        help="Which attention weights align a target word: with --not-shifted those of the decoder step that "
        "predicts the word, with --shifted those of the next step, which gets the word as input.",
        show_default="the choice that --choose saved in the run; --not-shifted if nothing is saved",
        rich_help_panel=WHERE,
    ),
]
Backward = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="Run that translates in the opposite direction. The alignments of both runs are combined.",
        rich_help_panel=BOTH,
    ),
]
How = Annotated[
    str | None,
    typer.Option(
        "--symmetrise",
        metavar="NAME",
        help=f"With --backward: how to combine the alignments of both runs: {', '.join(SYMMETRISATIONS)}.",
        callback=bounds.none_if_default,
        rich_help_panel=BOTH,
    ),
]
Choose = Annotated[
    str | None,
    typer.Option(
        metavar=f"FILE|{AGREEMENT}",
        help="Try every site and head, with and without --shifted, and save the best choice in the run. With "
        "FILE, the best choice is the one with the lowest AER on the gold alignments in this file. With "
        f"{AGREEMENT}, it is the one whose alignments agree best with those of --backward.",
        rich_help_panel=WHERE,
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Also write the weight of each link, e.g. 0-2:0.830.")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        metavar="FLOAT",
        help="Write all links with at least this weight.",
        show_default="one link per target word: the largest weight",
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
    columns: Columns = DEFAULT_COLUMNS,
    fields: Fields = "source,target",
    encoding: Encoding = None,
    output: OutputFile = None,
    gold_alignments: Gold = None,
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
    batch_tokens: BatchTokens = None,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print word alignments: the source word that each target word attends to most.

    Each sentence pair gives one line in Pharaoh format: 0-2 links source word 0 to target word 2. Runs with a
    character tokenizer align characters, including spaces; runs with a morpheme tokenizer align Korean
    morphemes; --unit word aligns words.

    --gold-alignments prints precision, recall and alignment error rate (AER) to standard error. With this
    option, or with --choose FILE, all runs align words, unless --unit is character or morpheme.

    --choose writes no alignments. It tries the attention weights of every attention layer (site), head and
    decoder step (see --shifted). It prints the choices that align best, and saves the first one in the file
    alignment.json of the run, for later commands.

    Examples:

    * `regard align runs/x --source test.ko --target test.en > test.links`

    * `regard align runs/x --source test.ko --target test.en --gold-alignments test.links`

    * `regard align runs/x --tsv pairs.tsv --columns ko,en > pairs.links`

    * `regard align runs/x --source a.ko --target a.en --site "decoder.5.cross" --head 3 --page a.html`

    * `regard align runs/x --source dev.ko --target dev.en --choose dev.links`

    * `regard align runs/x --backward runs/y --source dev.ko --target dev.en --choose agreement`

    * `regard align runs/x --backward runs/y --source a.ko --target a.en --symmetrise grow-diag-final-and`
    """
    options = AlignOptions(site, head, shifted, symmetrise, probabilities, threshold)
    options.check(choose, backward)
    files = PairFiles(source, target, tsv, jsonl, columns, fields, encoding)
    files.check("regard align")
    files = files.of_run(run)
    pairs, html = files.stream(), TranslationPage(page)
    gold = None if gold_alignments is None else read_links(gold_alignments, base)

    def load(folder: Path) -> Any:
        by_words = unit == "auto" and (gold_alignments is not None or choose not in (None, AGREEMENT))
        settings = {"tokens_per_batch": batch_tokens, "longest": max_source_length, "look": CROSS}
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
        say(str(evaluate_alignments(alignments.links, gold, alignments.words, str(gold_alignments))))


@dataclass(frozen=True)
class AlignOptions:
    """Options of `regard align` that decide how links are computed. Each field has the name of its option."""

    site: str | None = None
    head: int | None = None
    shifted: bool | None = None
    symmetrise: str | None = None
    probabilities: bool = False
    threshold: float | None = None

    def check(self, choose: str | None, backward: Path | None) -> None:
        """Raise ArgumentError if options cannot be combined, or if an option needs --backward.

        choose, backward: the values of --choose and --backward.
        """
        if self.symmetrise is not None and self.symmetrise not in SYMMETRISATIONS:
            raise UnknownName("symmetrisation", self.symmetrise, SYMMETRISATIONS)
        if self.symmetrise is not None and backward is None:
            problem, expected = "a second run is required", "--backward RUN, a run of the opposite direction"
            raise ArgumentError(message("--symmetrise", problem, expected=expected))
        if choose == AGREEMENT and backward is None:
            problem, expected = "a second run is required", "--backward RUN, a run of the opposite direction"
            raise ArgumentError(message("--choose agreement", problem, expected=expected))
        values = (self.site, self.head, self.shifted, self.symmetrise, self.threshold)
        if choose is not None and (any(each is not None for each in values) or self.probabilities):
            problem = "--choose tries all sites, heads and steps, and writes no alignments"
            hint = "use the other options in a second command, without --choose"
            raise ArgumentError(message("--choose", problem, hint=hint))
        if choose not in (None, AGREEMENT) and backward is not None:
            problem = "with a file of gold alignments, --choose uses one run only"
            raise ArgumentError(message("--choose", problem, hint="remove --backward"))

    def weighted(self, ours: Scored, theirs: Scored | None) -> list[tuple[int, int, float]]:
        """Return the links of a sentence pair as (source word, target word, weight), such as (0, 2, 0.75).

        ours: the sentence pair with the attention weights of the run.
        theirs: the same pair with the attention weights of the --backward run; None without --backward.
        """
        if theirs is None:
            return ours.align().weighted(self.threshold)
        how = self.symmetrise or SYMMETRISE
        return join_directions(ours.align(), theirs.align(), how, self.threshold)


@dataclass
class Alignments:
    """The word alignments of all sentence pairs, and the number of words of each sentence.

    links: the links of each pair, as (source word, target word), such as (0, 2).
    words: for each pair, the number of source words and of target words (or characters).
    """

    links: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)

    def add(self, links: list[tuple[int, int, float]], pair: Scored) -> None:
        """Append the links of a sentence pair to `links`, and its numbers of words to `words`.

        links: the links, as (source word, target word, weight). The weights are not stored.
        pair: the sentence pair.
        """
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
    """Align sentence pairs in batches, and write the links of each pair as one line in Pharaoh format.

    other: the run of the opposite direction, for --backward; None without it.
    options: how the links are computed.
    pairs: the sentence pairs.
    output: the file to write; None for standard output.
    page: the HTML page of --page, to which the pairs are added.
    """
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
