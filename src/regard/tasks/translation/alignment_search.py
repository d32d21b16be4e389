"""Find out which attention weights give the best word alignments, and save the choice in the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.line_io import Notes, say, tell
from regard.data.pairs import PairStream
from regard.decoding import Choice
from regard.decoding.alignment_units import count_units
from regard.errors import DataError, message, shown
from regard.evaluation import Links
from regard.evaluation.alignment_error_rate import check_links
from regard.tasks.translation.alignment_choice import choose_by_agreement, choose_by_links, write_choice

__all__ = ["search_alignments"]

PRINTED = 8
"""Number of choices that are printed, best first. A choice is an attention layer (site), a head and a
decoding step."""


def search_alignments(
    translator: Any, other: Any, gold: list[Links] | None, path: str, pairs: PairStream
) -> Iterator[str]:
    """Find out which attention weights give the best word alignments, and save this choice in the run folder.

    A choice is an attention layer (site), a head, and a decoding step: the step that generates a token, or
    the next step. Yields lines of text to print: the best choices, best first.

    translator: the run whose attention is ranked.
    other: the run of the opposite translation direction; only used with gold=None.
    gold: gold alignments. The choice with the lowest alignment error rate is best. With gold=None, each
        choice of one run is compared with each choice of the other run. The best choices are the two whose
        alignments agree most. Each of the two is saved in its run folder.
    path: the file that `gold` was read from, for error messages.
    pairs: the sentence pairs to align.
    """
    both = list(pairs)
    tell(Notes(), pairs)
    if not both:
        raise DataError(message(pairs.name, "the file has no pairs"))
    before, after = [source for source, _ in both], [target for _, target in both]
    if gold is None:
        yield from _by_agreement(translator, other, before, after)
    else:
        yield from _by_links(translator, gold, path, before, after)


def _by_links(
    translator: Any, gold: list[Links], path: str, before: list[str], after: list[str]
) -> Iterator[str]:
    unit = "word" if translator.unit == "auto" else translator.unit
    both = ((translator.source_tokenizer, before), (translator.target_tokenizer, after))
    sizes = [[count_units(tokenizer, text, unit) for text in texts] for tokenizer, texts in both]
    check_links(gold, list(zip(*sizes, strict=True)), path)
    ranked = choose_by_links(translator, before, after, gold)
    for choice, score in ranked[:PRINTED]:
        yield f"{score}  {choice}"
    choice, score = ranked[0]
    why = f"by the gold alignments in {shown(path)}, {len(before):,} pairs: {score}"
    _save(translator.folder, choice, why)


def _by_agreement(translator: Any, other: Any, before: list[str], after: list[str]) -> Iterator[str]:
    ranked = choose_by_agreement(translator, other, before, after)
    for ours, theirs, f1 in ranked[:PRINTED]:
        yield f"F1 {100 * f1:.2f}  {ours}  |  {theirs}"
    ours, theirs, f1 = ranked[0]
    for run, partner, choice in ((translator, other, ours), (other, translator, theirs)):
        why = f"by agreement with {partner.folder.name}, {len(before):,} pairs: F1 {100 * f1:.2f}"
        _save(run.folder, choice, why)


def _save(folder: Path, choice: Choice, why: str) -> None:
    write_choice(folder, choice, why)
    say(
        f"{shown(folder)}: word alignments are now computed from {choice} (saved in alignment.json; delete "
        "this file to undo)"
    )
