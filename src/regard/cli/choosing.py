"""Choosing where a run is aligned: all sites, heads and steps are tried, and the best is kept in the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from regard.data.line_io import Lines, Notes, read_pairs, say, tell
from regard.decoding.alignment_units import text_units
from regard.errors import DataError, message, shown
from regard.evaluation import Links
from regard.evaluation.gold_alignment import check_drawn

__all__ = ["choose_and_keep"]

BEST = 8
"""How many ways to align are printed."""

AT_ONCE = 4096


def choose_and_keep(
    translator: Any, other: Any, drawn: list[Links] | None, place: str, sources: Lines, targets: Lines
) -> None:
    """Print the best ways to align some pairs, and keep the best in the run; without links, in both runs.

    drawn: what people drew, read from this place; None chooses what both directions agree on most.
    """
    pairs = [pair for some in read_pairs(sources, targets, AT_ONCE) for pair in some]
    tell(Notes(), sources, targets)
    if not pairs:
        raise DataError(message("--choose", "there are no pairs to choose by"))
    before, after = map(list, zip(*pairs, strict=True))
    if drawn is None:
        _by_agreement(translator, other, before, after)
    else:
        _by_links(translator, drawn, place, before, after)


def _by_links(translator: Any, drawn: list[Links], place: str, before: list[str], after: list[str]) -> None:
    from regard.tasks.translation.alignment_choice import choose_by_links

    unit = "word" if translator.unit == "auto" else translator.unit
    sizes = [[len(text_units(text, unit)) for text in side] for side in (before, after)]
    check_drawn(drawn, list(zip(*sizes, strict=True)), place)
    ranked = choose_by_links(translator, before, after, drawn)
    for choice, score in ranked[:BEST]:
        typer.echo(f"{score}  {choice}")
    choice, score = ranked[0]
    _keep(translator.folder, choice, f"by the links of {shown(place)}, {len(before):,} pairs: {score}")


def _by_agreement(translator: Any, other: Any, before: list[str], after: list[str]) -> None:
    from regard.tasks.translation.alignment_choice import choose_by_agreement

    ranked = choose_by_agreement(translator, other, before, after)
    for ours, theirs, f1 in ranked[:BEST]:
        typer.echo(f"F1 {100 * f1:.2f}  {ours}  |  {theirs}")
    ours, theirs, f1 = ranked[0]
    for run, partner, choice in ((translator, other, ours), (other, translator, theirs)):
        why = f"by agreement with {partner.folder.name}, {len(before):,} pairs: F1 {100 * f1:.2f}"
        _keep(run.folder, choice, why)


def _keep(folder: Path, choice: Any, why: str) -> None:
    from regard.tasks.translation.alignment_choice import write_choice

    write_choice(folder, choice, why)
    say(f"{shown(folder)} is aligned at {choice} from now on: alignment.json says so, and may be removed")
