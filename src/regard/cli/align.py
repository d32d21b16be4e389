"""regard align: which source word, or character, each word of its translation attends to most."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.choosing import choose_and_keep
from regard.cli.page_option import Page
from regard.cli.run_options import (
    BatchTokens,
    Device,
    Longest,
    OutFile,
    PageFile,
    RunFolder,
    SourceFile,
    TargetFile,
    Threads,
    Unit,
    Which,
    opened,
)
from regard.data.line_io import Lines, Notes, given_sides, read_pairs, say, tell, writing
from regard.decoding import Scored, Translator
from regard.decoding.unknown_words import UnknownWords
from regard.decoding.word_alignment import pharaoh
from regard.errors import ArgumentError, UnknownName, message
from regard.evaluation import SYMMETRISATIONS, read_links
from regard.evaluation.gold_alignment import judged

__all__ = ["align", "seen_at"]

AT_ONCE = 1024
"""Pairs read before they are aligned: the attention of all of them is held."""

AGREEMENT = "agreement"
"""What --choose is given where there are no links that people drew."""

COMPARED, WHERE, BOTH = "Links that people drew", "Where alignments are read", "Both directions"

Gold = Annotated[
    Path | None,
    typer.Option(
        "--alignment", metavar="FILE", help="Gold alignments to compare with.", rich_help_panel=COMPARED
    ),
]
Base = Annotated[
    int,
    typer.Option(
        help="With --alignment and --choose: the number of the first word, 0 or 1.",
        min=0,
        max=1,
        rich_help_panel=COMPARED,
    ),
]
Site = Annotated[
    str | None,
    typer.Option(
        help="Sites to read alignments from, * as wildcard. Default: those chosen for the run or used for "
        "guided alignment, or all.",
        rich_help_panel=WHERE,
    ),
]
Head = Annotated[
    int | None,
    typer.Option(
        help="Number of a head, from 0. Default: the mean of all heads.",
        min=0,
        max=bounds.HEADS,
        rich_help_panel=WHERE,
    ),
]
Shifted = Annotated[
    bool | None,
    typer.Option(
        "--shifted/--not-shifted",
        help="Read each word one step later, where it is the input.",
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
        metavar="WAY",
        help=f"With --backward: how to combine: {', '.join(SYMMETRISATIONS)} (default).",
        rich_help_panel=BOTH,
    ),
]
Choose = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Choose site, head and step by the links in this file, or by agreement with --backward, and "
        "keep that in the run.",
        rich_help_panel=WHERE,
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Write the weights too, as in 0-0:0.830.")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Write all links of at least this weight, not only the largest of each target word.",
        min=0,
        max=1,
        callback=bounds.finite,
    ),
]


def align(
    run: RunFolder,
    source: SourceFile,
    target: TargetFile,
    out: OutFile = None,
    alignment: Gold = None,
    base: Base = 0,
    site: Site = None,
    head: Head = None,
    shifted: Shifted = None,
    backward: Backward = None,
    symmetrise: How = None,
    choose: Choose = None,
    probabilities: Probabilities = False,
    threshold: Threshold = None,
    unit: Unit = "auto",
    page: PageFile = None,
    longest: Longest = 512,
    batch: BatchTokens = 4096,
    checkpoint: Which = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the source word that each target word attends to most, in Pharaoh format, one line per pair.

    With a character tokenizer, characters (including spaces) are aligned; --unit word aligns words.
    --alignment and --choose compare words unless --unit character is given.

    With --alignment, precision, recall and the alignment error rate go to standard error; in its file, 0p2
    and 0?2 are possible links, and 0-2 a sure one. With --choose, the ways to align are printed instead, the
    best first; that one is kept in alignment.json of the run, for all alignments from then on.

    Examples:

    * `regard align runs/x --source test.ko --target test.en > test.links`

    * `regard align runs/x --source test.ko --target test.en --alignment test.links --out found.links`

    * `regard align runs/x --source a.ko --target a.en --site "decoder.5.cross" --head 3 --page a.html`

    * `regard align runs/x --source dev.ko --target dev.en --choose dev.links`

    * `regard align runs/x --backward runs/y --source dev.ko --target dev.en --choose agreement`

    * `regard align runs/x --backward runs/y --source a.ko --target a.en --symmetrise grow-diag-final-and`
    """
    asked = Asked(site, head, shifted, symmetrise, probabilities, threshold)
    asked.check(choose, backward)
    (sources, targets), shown = given_sides(source, target), Page(page)
    drawn = None if alignment is None else read_links(alignment, base)

    def ready(folder: Path) -> Any:
        by_words = unit == "auto" and (alignment is not None or choose not in (None, AGREEMENT))
        options = {"tokens_per_batch": batch, "longest": longest, "look": "*cross"}
        options["unit"] = "word" if by_words else unit
        return opened(folder, checkpoint, device, threads, **options)

    translator, other = ready(run), None if backward is None else ready(backward)
    if choose is not None:
        links = None if choose == AGREEMENT else read_links(choose, base)
        choose_and_keep(translator, other, links, choose, sources, targets)
        return
    found = write_links(translator, other, asked, (sources, targets), out, shown)
    shown.save(f"Alignments by {run.name or run}")
    if drawn is not None:
        say(str(judged(found.links, drawn, found.words, str(alignment))))


@dataclass(frozen=True)
class Asked:
    """Where a pair is aligned, by one direction or both, and how that is written."""

    site: str | None = None
    head: int | None = None
    shifted: bool | None = None
    symmetrise: str | None = None
    probabilities: bool = False
    threshold: float | None = None

    def check(self, choose: str | None, backward: Path | None) -> None:
        """Refuse what does not go together."""
        if self.symmetrise is not None and self.symmetrise not in SYMMETRISATIONS:
            raise UnknownName("symmetrisation", self.symmetrise, SYMMETRISATIONS)
        if self.symmetrise is not None and backward is None:
            problem, expected = "there is one direction", "--backward, a run of the other"
            raise ArgumentError(message("--symmetrise", problem, expected=expected))
        if choose == AGREEMENT and backward is None:
            problem, expected = "there is one direction, and nothing to agree with", "--backward"
            raise ArgumentError(message("--choose agreement", problem, expected=expected))
        given = (self.site, self.head, self.shifted, self.symmetrise, self.threshold)
        if choose is not None and (any(each is not None for each in given) or self.probabilities):
            problem = "nothing is aligned yet: sites, heads and steps are all tried"
            raise ArgumentError(message("--choose", problem, hint="align without --choose afterwards"))
        if choose not in (None, AGREEMENT) and backward is not None:
            problem = "links choose for one run at a time"
            raise ArgumentError(message("--choose", problem, hint="leave --backward out"))

    def weighted(self, ours: Scored, theirs: Scored | None) -> list[tuple[int, int, float]]:
        """The links of a pair with their weights."""
        from regard.tasks.translation.alignment_choice import join_directions

        if theirs is None:
            return ours.align().weighted(self.threshold)
        how = self.symmetrise or "grow-diag-final-and"
        return join_directions(ours.align(), theirs.align(), how, self.threshold)


@dataclass
class Found:
    """The links of pairs, and how many words (or characters) they have."""

    links: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)

    def add(self, links: list[tuple[int, int, float]], pair: Scored) -> None:
        """Keep those of a pair."""
        self.links.append(tuple((source, target) for source, target, _ in links))
        self.words.append((len(pair.source_units), len(pair.target_units)))


def write_links(
    translator: Translator,
    other: Translator | None,
    asked: Asked,
    sides: tuple[Lines, Lines],
    out: Path | None,
    page: Page,
) -> Found:
    """Align pairs as they come, and write a line for each; other: the model of the other direction."""
    notes, unknown, found, number = Notes(), UnknownWords(), Found(), 0
    with writing(out) as write:
        for pairs in read_pairs(*sides, AT_ONCE):
            before, after = map(list, zip(*pairs, strict=True))
            turned = [None] * len(pairs) if other is None else map(seen_at, other.score(after, before))
            for ours, theirs in zip(translator.score(before, after), turned, strict=True):
                number += 1
                notes.add(number, ours.notes)
                unknown.add(number, ours)
                chosen = seen_at(ours, asked.site, asked.head, asked.shifted)
                links = asked.weighted(chosen, theirs)
                write(pharaoh(links, asked.probabilities))
                page.add(chosen)
                found.add(links, ours)
    tell(notes, *sides)
    unknown.say()
    return found


def seen_at(
    found: Scored, site: str | None = None, head: int | None = None, shifted: bool | None = None
) -> Scored:
    """A pair that is aligned at these sites, by this head, at this step; raises where the model has none."""
    if not all(passage.attention for passage in found.passages):
        problem = "the model does not look at its source, so it aligns nothing"
        raise ArgumentError(message("regard align", problem, hint="bahdanau, luong and transformer do"))
    return replace(found, aligned_at=found.aligned_at.instead(site, head, shifted))
