"""regard align: which word of a source each word of its translation looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.lines import Notes, given_sides, read_pairs, say, tell, writing
from regard.cli.pages import Page
from regard.cli.searching import (
    BatchTokens,
    Device,
    Longest,
    OutputFile,
    PageFile,
    RunFolder,
    SourceFile,
    TargetFile,
    Threads,
    Which,
    opened,
)
from regard.decoding import Scored
from regard.errors import ArgumentError, DataError, message
from regard.evaluation import AlignmentScore, Links, read_links, score_links

__all__ = ["align", "judged", "seen_at"]

AT_ONCE = 1024
"""Pairs read before they are aligned: the attention of all of them is held."""

Gold = Annotated[Path | None, typer.Option(metavar="FILE", help="Links that people drew, to compare with.")]
Base = Annotated[int, typer.Option(help="Of --gold: the number of a first word, 0 or 1.", min=0, max=1)]
Site = Annotated[
    str | None,
    typer.Option(
        help="The places of attention that count, * as wildcard; else the one that was guided, or all."
    ),
]
Head = Annotated[int | None, typer.Option(help="One head of each, from 0 on; all unless given.", min=0)]


def align(
    run: RunFolder,
    source: SourceFile,
    target: TargetFile,
    output: OutputFile = None,
    gold: Gold = None,
    base: Base = 0,
    site: Site = None,
    head: Head = None,
    page: PageFile = None,
    longest: Longest = 512,
    batch: BatchTokens = 4096,
    checkpoint: Which = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print which source word each target word looked at most, in Pharaoh format: 0-0 2-1, a line a pair.

    With --gold, precision, recall and the alignment error rate go to standard error; there, 0p2 and 0?2 are
    possible links, and 0-2 a sure one.

    Examples:

    * `regard align runs/x --source test.ko --target test.en > test.links`

    * `regard align runs/x --source test.ko --target test.en --gold test.links --output found.links`

    * `regard align runs/x --source a.ko --target a.en --site "decoder.5.cross" --head 3 --page a.html`
    """
    (sources, targets), shown = given_sides(source, target), Page(page)
    drawn = None if gold is None else read_links(gold, base)
    translator = opened(
        run, checkpoint, device, threads, tokens_per_batch=batch, longest=longest, look="*cross"
    )
    notes, number = Notes(), 0
    links: list[tuple[tuple[int, int], ...]] = []
    words: list[tuple[int, int]] = []
    with writing(output) as write:
        for pairs in read_pairs(sources, targets, AT_ONCE):
            for found in translator.score(*map(list, zip(*pairs, strict=True))):
                number += 1
                notes.add(number, found.notes)
                chosen = seen_at(found, site, head)
                alignment = chosen.align()
                write(str(alignment))
                shown.add(chosen)
                if drawn is not None:
                    links.append(alignment.links)
                    words.append((len(found.source.split()), len(found.text.split())))
    shown.save(f"Alignments by {run.name or run}")
    tell(notes, sources, targets)
    if drawn is not None:
        say(str(judged(links, drawn, words, str(gold))))


def seen_at(
    found: Scored, site: str | None = None, head: int | None = None, shifted: bool | None = None
) -> Scored:
    """A pair that is aligned at these sites, by this head, at this step; raises where the model has none."""
    if not all(passage.attention for passage in found.passages):
        problem = "the model does not look at its source, so it aligns nothing"
        raise ArgumentError(message("regard align", problem, hint="bahdanau, luong and transformer do"))
    return replace(found, aligned_at=found.aligned_at.instead(site, head, shifted))


def judged(
    links: list[tuple[tuple[int, int], ...]], drawn: list[Links], words: list[tuple[int, int]], place: str
) -> AlignmentScore:
    """How well links agree with those that people drew; words: how many each side has between spaces."""
    if len(drawn) != len(links):
        problem = f"{len(drawn):,} lines of links for {len(links):,} pairs"
        raise DataError(message(place, problem, expected="one for each, empty where there is no link"))
    for number, (gold, lengths) in enumerate(zip(drawn, words, strict=True), 1):
        for link in sorted(gold.possible):
            if link[0] >= lengths[0] or link[1] >= lengths[1]:
                problem = f"a link {link[0]}-{link[1]}, with {lengths[0]} and {lengths[1]} words, from 0 on"
                hint = "--base 1 where words are counted from 1; or are the sides swapped?"
                raise DataError(message(f"{place}, line {number}", problem, hint=hint))
    return score_links(links, drawn)
