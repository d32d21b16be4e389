"""Choose which attention weights word alignments are computed from, and save the choice in the run folder.

A Choice has three parts: the attention layer (site), the head, and the decoding step. The step is the step
that generates a token, or the next step, which reads the token. join_directions() combines the alignments of
two translation directions.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace as with_fields
from pathlib import Path

from torch import Tensor

from regard.data.batch import UNK, Batch
from regard.decoding import Alignment, Choice, Scored, Translator, averaged, choices
from regard.decoding.forced_decoding import observe
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.evaluation import AlignmentScore, Links, rank_by_agreement, rank_by_links, symmetrise
from regard.files.atomic_io import failed, replace
from regard.files.untrusted import parse_json, read_limited
from regard.models import Model
from regard.roles import CROSS
from regard.runs.run_folder import ALIGNMENT

__all__ = [
    "ATTENTIVE",
    "CHOSEN",
    "aligned_at",
    "check_choice",
    "choose_by_agreement",
    "choose_by_links",
    "join_directions",
    "read_choice",
    "write_choice",
]

ATTENTIVE = "use a run of a model with attention: regard train --model bahdanau, luong, lstmn or transformer"
"""The hint of errors about a model that has no attention to its source."""

CHOSEN = ALIGNMENT
"""The file in a run folder with the fields of a Choice: the attention weights from which word alignments are
computed."""

AT_ONCE = 128
"""Number of pairs that are scored at once. It is small because the attention of all layers and heads is in
memory."""

FoundLinks = list[tuple[tuple[int, int], ...]]


def choose_by_links(
    translator: Translator, sources: Sequence[str], targets: Sequence[str], gold: Sequence[Links]
) -> list[tuple[Choice, AlignmentScore]]:
    """Rank all choices of attention weights by the alignment error rate of their alignments, lowest first.

    A choice is an attention layer (site), a head, and a decoding step: the step that generates a token, or
    the next step. See Choice.

    translator: the model whose attention layers are ranked.
    sources: the source sentences of the pairs. 100 pairs are enough. Do not evaluate the best choice on the
        same pairs.
    targets: the target sentences of the pairs.
    gold: the gold alignment of each pair. Its links are between words if translator.unit is "auto",
        otherwise between units of this kind.
    """
    unit = "word" if translator.unit == "auto" else translator.unit
    return rank_by_links(_all_alignments(translator, sources, targets, unit), gold)


def choose_by_agreement(
    forward: Translator, backward: Translator, sources: Sequence[str], targets: Sequence[str]
) -> list[tuple[Choice, Choice, float]]:
    """Rank pairs of choices (one for each model) by the agreement of their alignments, highest F1 first.

    A choice is an attention layer (site), a head, and a decoding step: the step that generates a token, or
    the next step. See Choice. No gold alignments are needed.

    forward: translates sources to targets.
    backward: translates targets to sources.
    sources: the source sentences of the pairs.
    targets: the target sentences of the pairs.
    """
    ours = _all_alignments(forward, sources, targets)
    theirs = _all_alignments(backward, targets, sources)
    reversed_links = {
        choice: [[(source, target) for target, source in links] for links in pairs]
        for choice, pairs in theirs.items()
    }
    return rank_by_agreement(ours, reversed_links)


def _all_alignments(
    translator: Translator, sources: Sequence[str], targets: Sequence[str], unit: str | None = None
) -> dict[Choice, FoundLinks]:
    """Return a dict from each possible Choice to the alignment links of each sentence pair.

    The links of a sentence pair are (index of source word, index of target word), for example
    ((0, 0), (2, 1)).
    """
    alignments: dict[Choice, FoundLinks] = {}
    for first in range(0, len(sources), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        for each in translator.score(sources[some], targets[some], look=CROSS, unit=unit):
            candidates = choices(each.passages[0].attention)
            if not candidates:
                problem = "the model has no attention to its source, so there is nothing to choose"
                raise ArgumentError(message(type(translator.model).__name__, problem, hint=ATTENTIVE))
            for choice in candidates:
                links = each.align(choice.site, choice.head, choice.shifted).links
                alignments.setdefault(choice, []).append(links)
    return alignments


def aligned_at(
    pair: Scored, site: str | None = None, head: int | None = None, shifted: bool | None = None
) -> Scored:
    """Compute the alignment of a scored pair from other attention weights; return a copy of the pair.

    site: a role, or the name of an attention layer (site) with * as wildcard. None: the site does not change.
    head: the index of a head. None: the head does not change. But if `site` is set, None means the mean of
        all heads.
    shifted: whether to use the weights of the next decoding step, see Choice. None: the value does not
        change. But if `site` is set, None means False.

    Raises ArgumentError if the model has no attention to its source.
    """
    if not all(passage.attention for passage in pair.passages):
        problem = "the model has no attention to its source, so it cannot align"
        raise ArgumentError(message("regard align", problem, hint=ATTENTIVE))
    return with_fields(pair, aligned_at=pair.aligned_at.instead(site, head, shifted))


def join_directions(
    forward: Alignment, backward: Alignment, how: str = "grow-diag-final-and", threshold: float | None = None
) -> list[tuple[int, int, float]]:
    """Combine two alignments of a sentence pair, from models of opposite directions, into weighted links.

    A link is (index of source word, index of target word, weight). The weight is the mean of the attention
    weights of both directions.

    forward: the alignment of the source-to-target model.
    backward: the alignment of the target-to-source model.
    how: the method, for example "intersection" or "union"; see symmetrise().
    threshold: how the links of each direction are chosen, see Alignment.weighted().

    >>> import torch
    >>> from regard.decoding import align
    >>> ours = align(torch.tensor([[0.75, 0.25], [0.5, 0.25]]), [0, 1], [0, 1])
    >>> theirs = align(torch.tensor([[0.5, 0.25], [0.0, 1.0]]), [0, 1], [0, 1])
    >>> join_directions(ours, theirs, "union")
    [(0, 0, 0.625), (0, 1, 0.375), (1, 1, 0.625)]
    """
    ours = [(source, target) for source, target, _ in forward.weighted(threshold)]
    theirs = [(source, target) for target, source, _ in backward.weighted(threshold)]
    forward_TS, backward_ST = forward.matrix, backward.matrix
    return [
        (source, target, (_at(forward_TS, target, source) + _at(backward_ST, source, target)) / 2)
        for source, target in sorted(symmetrise(ours, theirs, how).sure, key=lambda link: link[::-1])
    ]


def _at(matrix: Tensor, row: int, column: int) -> float:
    """Return an entry of an attention matrix, or 0 if it is out of range.

    The models of the two directions can truncate a pair at different lengths. So one of the two matrices may
    have no entry for a link.
    """
    inside = row < matrix.shape[0] and column < matrix.shape[1]
    return float(matrix[row, column]) if inside else 0.0


def write_choice(folder: str | Path, choice: Choice, why: str = "") -> None:
    """Save in a run folder which attention weights word alignments are computed from.

    folder: the run folder.
    choice: the attention layer (site), the head, and whether the weights of the next decoding step are used.
    why: how the choice was made, for example "by agreement with en-ko, 100 pairs: F1 71.2".
    """
    path = Path(folder) / CHOSEN
    content = {"site": choice.site, "head": choice.head, "shifted": choice.shifted, "why": why}
    content["checksum"] = _checksum(choice)
    try:
        replace(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise failed(str(folder), f"{CHOSEN} could not be written", error) from None


def read_choice(folder: str | Path) -> Choice | None:
    """Return the Choice that write_choice() saved in a run folder, or None if no choice was saved.

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
        content = parse_json(read_limited(path, "json"))
        choice = Choice(content["site"], content["head"], content["shifted"])
        valid_head = choice.head is None or (type(choice.head) is int and choice.head >= 0)
        if not (isinstance(choice.site, str) and valid_head and isinstance(choice.shifted, bool)):
            raise TypeError
        if content.get("checksum", _checksum(choice)) != _checksum(choice):
            raise ValueError("the checksum does not match; if you have edited the file, delete the checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"the file is damaged ({str(error) or type(error).__name__})"
        hint = "delete the file to align by all layers and heads, or run regard align --choose again"
        raise DataError(message(str(path), problem, hint=hint)) from None
    return choice


def _checksum(choice: Choice) -> int:
    return zlib.crc32(json.dumps([choice.site, choice.head, choice.shifted]).encode())


def check_choice(model: Model, choice: Choice, folder: str | Path) -> None:
    """Raise DataError if the model does not have the attention layer (site) or the head of `choice`.

    The sites are found by running the model on one token.

    folder: the run folder that `choice` was read from, for the error message.
    """
    attention = observe(model, Batch.collate([[UNK]], [[UNK]]), "*").attention_of(0)
    try:
        averaged(attention, choice.site, choice.head)
    except (ArgumentError, UnknownName) as error:
        hint = "delete the file to align by all layers and heads, or run regard align --choose again"
        raise DataError(message(str(Path(folder) / CHOSEN), str(error), hint=hint)) from None
