"""Aligning: where a run looks at what it says, chosen on some pairs and kept; and two directions as one."""

from __future__ import annotations

import copy
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace as with_fields
from pathlib import Path

from torch import Tensor

from regard.data.batch import UNK, Batch
from regard.decoding import Alignment, Choice, Scored, Translator, averaged, choices
from regard.decoding.forced_decoding import CROSS, observe
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.evaluation import AlignmentScore, Links, rank_by_agreement, rank_by_links, symmetrise
from regard.files.atomic_io import failed, replace
from regard.files.untrusted import parse_json, read_limited
from regard.models import Model

__all__ = [
    "aligned_at",
    "check_choice",
    "choose_by_agreement",
    "choose_by_links",
    "join_directions",
    "read_choice",
    "write_choice",
]

CHOSEN = "alignment.json"
"""The file of a run folder that says where alignments are read."""

AT_ONCE = 128
"""Pairs whose attention, of all layers and heads, is held at once."""

FoundLinks = list[tuple[tuple[int, int], ...]]


def choose_by_links(
    translator: Translator, sources: Sequence[str], targets: Sequence[str], drawn: Sequence[Links]
) -> list[tuple[Choice, AlignmentScore]]:
    """Sites, heads and steps at which a model aligns some pairs, the lowest error rate first.

    drawn: the links of each pair that people drew; a hundred pairs are enough, and they should not be those
    that the alignments are judged by afterwards. Links are between words, unless translator.unit is
    "character".
    """
    if translator.unit == "auto":
        translator = copy.copy(translator)
        translator.unit = "word"
    return rank_by_links(_read_everywhere(translator, sources, targets), drawn)


def choose_by_agreement(
    forward: Translator, backward: Translator, sources: Sequence[str], targets: Sequence[str]
) -> list[tuple[Choice, Choice, float]]:
    """Sites, heads and steps of two models at which they align pairs most alike, the highest F1 first.

    forward: says the targets. backward: says the sources. No links are needed that people drew.
    """
    ours = _read_everywhere(forward, sources, targets)
    theirs = _read_everywhere(backward, targets, sources)
    turned = {
        choice: [[(word, other) for other, word in links] for links in found]
        for choice, found in theirs.items()
    }
    return rank_by_agreement(ours, turned)


def _read_everywhere(
    translator: Translator, sources: Sequence[str], targets: Sequence[str]
) -> dict[Choice, FoundLinks]:
    """By all that can be chosen, the links of each pair."""
    if translator.look != CROSS:
        problem = f"the translator looks at {translator.look}"
        raise ArgumentError(message("choosing where to align", problem, expected=f'look="{CROSS}"'))
    found: dict[Choice, FoundLinks] = {}
    for first in range(0, len(sources), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        for each in translator.score(sources[some], targets[some]):
            ways = choices(each.passages[0].attention)
            if not ways:
                problem = "the model does not look at its source, so there is nothing to choose"
                hint = "bahdanau, luong and transformer do"
                raise ArgumentError(message(type(translator.model).__name__, problem, hint=hint))
            for way in ways:
                links = each.align(way.site, way.head, way.shifted).links
                found.setdefault(way, []).append(links)
    return found


def aligned_at(
    pair: Scored, site: str | None = None, head: int | None = None, shifted: bool | None = None
) -> Scored:
    """Return the pair with other attention to align by: this site, head and step.

    Raises ArgumentError if the model has no attention to its source.
    """
    if not all(passage.attention for passage in pair.passages):
        problem = "the model has no attention to its source, so it cannot align"
        hint = "bahdanau, luong and transformer have it"
        raise ArgumentError(message("regard align", problem, hint=hint))
    return with_fields(pair, aligned_at=pair.aligned_at.instead(site, head, shifted))


def join_directions(
    forward: Alignment, backward: Alignment, how: str = "grow-diag-final-and", threshold: float | None = None
) -> list[tuple[int, int, float]]:
    """The alignments of a pair by models of both directions as one: (source word, target word, weight).

    The weight is the mean of both. how, threshold: as in symmetrise() and in Alignment.weighted().

    >>> import torch
    >>> from regard.decoding import align
    >>> ours = align(torch.tensor([[0.75, 0.25], [0.5, 0.25]]), [0, 1], [0, 1])
    >>> theirs = align(torch.tensor([[0.5, 0.25], [0.0, 1.0]]), [0, 1], [0, 1])
    >>> join_directions(ours, theirs, "union")
    [(0, 0, 0.625), (0, 1, 0.375), (1, 1, 0.625)]
    """
    ours = [(source, target) for source, target, _ in forward.weighted(threshold)]
    theirs = [(source, target) for target, source, _ in backward.weighted(threshold)]
    there, back = forward.matrix, backward.matrix
    return [
        (source, target, (_at(there, target, source) + _at(back, source, target)) / 2)
        for source, target in sorted(symmetrise(ours, theirs, how).sure, key=lambda link: link[::-1])
    ]


def _at(matrix: Tensor, row: int, column: int) -> float:
    """A weight; 0 past the end, where one of the models read less of the pair than the other."""
    inside = row < matrix.shape[0] and column < matrix.shape[1]
    return float(matrix[row, column]) if inside else 0.0


def write_choice(folder: str | Path, choice: Choice, why: str = "") -> None:
    """Keep in a run folder where its alignments are read from now on, and how that was chosen, in words."""
    path = Path(folder) / CHOSEN
    kept = {"site": choice.site, "head": choice.head, "shifted": choice.shifted, "why": why}
    kept["checksum"] = _checksum(choice)
    try:
        replace(path, (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise failed(str(folder), f"{CHOSEN} could not be written", error) from None


def read_choice(folder: str | Path) -> Choice | None:
    """Where the alignments of a run are read, if that was chosen.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     before = read_choice(folder)
    ...     write_choice(folder, Choice("decoder.2.cross", shifted=True))
    ...     print(before, read_choice(folder), sep="; ")
    None; decoder.2.cross, all heads, one step later
    """
    path = Path(folder) / CHOSEN
    if not os.path.lexists(path):
        return None
    try:
        kept = parse_json(read_limited(path, "json"))
        choice = Choice(kept["site"], kept["head"], kept["shifted"])
        whole = choice.head is None or (type(choice.head) is int and choice.head >= 0)
        if not (isinstance(choice.site, str) and whole and isinstance(choice.shifted, bool)):
            raise TypeError
        if kept.get("checksum", _checksum(choice)) != _checksum(choice):
            raise ValueError("the checksum does not match: delete it if you have edited this file")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"this does not say where to align ({error or type(error).__name__})"
        hint = "remove it to align by all layers and heads, or choose anew"
        raise DataError(message(str(path), problem, hint=hint)) from None
    return choice


def _checksum(choice: Choice) -> int:
    return zlib.crc32(json.dumps([choice.site, choice.head, choice.shifted]).encode())


def check_choice(model: Model, choice: Choice, folder: str | Path) -> None:
    """Raise where a model has no such site or head; it reads one token for that."""
    attention = observe(model, Batch.collate([[UNK]], [[UNK]]), "*").attention_of(0)
    try:
        averaged(attention, choice.site, choice.head)
    except (ArgumentError, UnknownName) as error:
        hint = "remove it to align by all layers and heads, or choose again"
        raise DataError(message(str(Path(folder) / CHOSEN), str(error), hint=hint)) from None
