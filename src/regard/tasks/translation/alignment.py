"""Choose which attention weights word alignments are computed from, and save the choice in the run folder.

A Choice has three parts: the attention layer (site), the head, and the decoding step. The step is the step
that generates a token, or the next step, which reads the token. join_directions() combines the alignments of
two translation directions.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.attended import Attended
from regard.data.batch import UNK, Batch
from regard.data.line_io import Notes, say, tell
from regard.decoding import Alignment, Choice, Scored, Translator, averaged, choices
from regard.decoding.forced_decoding import observe, sites_of
from regard.decoding.word_alignment import count_units, units_of
from regard.errors import ArgumentError, DataError, Setting, UnknownName, message, shown
from regard.files.atomic_io import failed, replace
from regard.files.untrusted import parse_json, read_limited
from regard.models import Model
from regard.roles import CROSS
from regard.runs.run_folder import ALIGNMENT

if TYPE_CHECKING:
    from regard.data import Tokenizer
    from regard.data.pairs import Pair, PairStream
    from regard.evaluation import AlignmentScore, Links
    from regard.tasks.translation.data import Corpus
    from regard.tasks.translation.settings import TranslationSettings

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
    from regard.evaluation import rank_by_links

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
    from regard.evaluation import rank_by_agreement

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
    from regard.evaluation import symmetrise

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
    from regard.evaluation.alignment_error_rate import check_links

    both = list(pairs)
    tell(Notes(), pairs)
    if not both:
        raise DataError(message(pairs.name, "the file has no pairs"))
    before, after = [source for source, _ in both], [target for _, target in both]
    chosen: list[tuple[Path, Choice, str]] = []
    if gold is None:
        agreeing = choose_by_agreement(translator, other, before, after)
        for ours, theirs, f1 in agreeing[:PRINTED]:
            yield f"F1 {100 * f1:.2f}  {ours}  |  {theirs}"
        ours, theirs, f1 = agreeing[0]
        for run, partner, choice in ((translator, other, ours), (other, translator, theirs)):
            why = f"by agreement with {partner.folder.name}, {len(before):,} pairs: F1 {100 * f1:.2f}"
            chosen.append((run.folder, choice, why))
    else:
        unit = "word" if translator.unit == "auto" else translator.unit
        sides = ((translator.source_tokenizer, before), (translator.target_tokenizer, after))
        sizes = [[count_units(tokenizer, text, unit) for text in texts] for tokenizer, texts in sides]
        check_links(gold, list(zip(*sizes, strict=True)), path)
        ranked = choose_by_links(translator, before, after, gold)
        for choice, score in ranked[:PRINTED]:
            yield f"{score}  {choice}"
        choice, score = ranked[0]
        why = f"by the gold alignments in {shown(path)}, {len(before):,} pairs: {score}"
        chosen.append((translator.folder, choice, why))
    for folder, choice, why in chosen:
        write_choice(folder, choice, why)
        say(
            f"{shown(folder)}: word alignments are now computed from {choice} (saved in alignment.json; "
            "delete this file to undo)"
        )


def guided_site(model: Model) -> str:
    """Return the name of the cross-attention layer (site) that the guided-alignment loss supervises.

    This site is in the penultimate decoder layer, as in Garg et al. (2019), or in the only decoder layer.
    After training, word alignments are computed from this site.

    >>> from regard.models import build_model
    >>> guided_site(build_model("transformer", 9, 9, size="tiny"))
    'decoder.2.cross'
    >>> guided_site(build_model("bahdanau", 9, 9, width=4))
    'decoder.cross'
    """
    sites = sites_of(model)
    if not sites:
        hint = "use the model bahdanau, luong, lstmn or transformer"
        raise ArgumentError(
            message("training.guided_alignment", "the model has no attention to its source", hint=hint)
        )
    return sites[-2] if len(sites) > 1 else sites[0]


def build_guide(corpus: Corpus, settings: TranslationSettings, sampled: bool) -> Guide | None:
    """Return the Guide of a training run; None if the settings have no guided-alignment loss.

    Raise ArgumentError if there are no alignments of the training pairs, or if the attention weights have no
    gradient.

    sampled: whether the run trains hard attention with an estimator.
    """
    if not settings.training.guided_alignment:
        return None
    links = corpus.split.links if corpus.links is None else corpus.links
    if links is None:
        no_links = "use --gold-alignments FILE, or ", Setting("training", "guided_alignment", 0)
        raise ArgumentError(
            message("training.guided_alignment", "the data have no alignments", hint=no_links)
        )
    if sampled:
        problem = "the weights of hard attention have no gradient"
        sampling = (
            *("use ", Setting("training", "guided_alignment", 0)),
            *(" or ", Setting("model", "select", "straight-through")),
        )
        raise ArgumentError(message("training.guided_alignment", problem, hint=sampling))
    if settings.training.compile:
        problem = "attention cannot be recorded in a compiled model"
        hint = "use ", Setting("training", "compile", False)
        raise ArgumentError(message("training.guided_alignment", problem, hint=hint))
    unit, kinds = settings.data.alignment_unit, (corpus.source.unit, corpus.target.unit)
    if not (unit == "word" or set(kinds) == {unit} or (unit == "morpheme" and unit in kinds)):
        problem = f"it is {unit!r}, but the tokenizers have {kinds[0]}s (source), {kinds[1]}s (target)"
        units = "use ", Setting("data", "alignment_unit", "word"), " or ", Setting("data", "tokenizer", unit)
        raise ArgumentError(message("data.alignment_unit", problem, hint=units))
    return Guide(links, corpus.source, corpus.target, unit)


def learned_links(pairs: Iterable[Pair], path: Path) -> list[Links]:
    """Return the alignment of each training pair, for guided alignment without gold alignments.

    A statistical aligner learns it from the pairs (see regard.aligner). It is stored in a file of the run, so
    that a resumed run has the same alignments; if the file exists, it is read.

    path: the file, in Pharaoh format.
    """
    from regard.aligner import Aligner
    from regard.evaluation import read_links
    from regard.files.atomic_io import write_whole

    if not path.exists():
        aligned = Aligner().align((pair.source, pair.target) for pair in pairs)
        write_whole(path, "".join(f"{pair}\n" for pair in aligned).encode())
    return read_links(path)


def joined_weights(calls: list[Attended]) -> Tensor:
    """Concatenate the weights that all calls of one attention layer (site) recorded, with gradients.

    The result is the mean over heads, (B, T, S). T is the number of target positions of all calls together.
    """
    weights = torch.cat([call.weights for call in calls if call.weights is not None], -2)
    return weights.mean(1) if weights.dim() == 4 else weights


class Guide:
    """Computes the desired attention weights of a batch, for the guided-alignment loss.

    links: the alignment of each training pair. A target word is supervised with its sure links, or with its
        possible links if it has no sure links. A target word without links is not supervised.
    source: the tokenizer of the source.
    target: the tokenizer of the target.
    unit: what the links count: "word", "morpheme" or "character". With "morpheme", a side whose tokenizer
        has no morphemes counts words.

    In this example, the source is "a b c", and the target is "c b". The rows of the result are the target
    tokens (c, b, EOS), and the columns are the source tokens (a, b, c, EOS). A link is (source word, target
    word). The sure link is from a to b, and the possible link is from c to c:

    >>> from regard.data.tokenizers import train_tokenizer
    >>> from regard.evaluation import Links
    >>> words = train_tokenizer("word", ["a b c"])
    >>> guide = Guide([Links({(0, 1)}, {(0, 1), (2, 0)})], words, words)
    >>> guide.wanted(Batch.collate([words.encode("a b c")], [words.encode("c b")]))
    tensor([[[0., 0., 1., 0.],
             [1., 0., 0., 0.],
             [0., 0., 0., 0.]]])
    """

    def __init__(self, links: Sequence[Links], source: Tokenizer, target: Tokenizer, unit: str = "word"):
        self.links = links
        self.source, self.target = units_of(source, unit), units_of(target, unit)

    def wanted(self, batch: Batch) -> Tensor:
        """Return the desired attention weights (B, T, S).

        An entry is 1 if target token t is aligned with source token s, else 0.
        """
        wanted_BTS = torch.zeros(*batch.labels.shape, batch.source.shape[1])
        source, target = batch.source.tolist(), batch.labels.tolist()
        lengths = zip(batch.source_lengths.tolist(), batch.target_lengths.tolist(), strict=True)
        for row, (number, (before, after)) in enumerate(zip(batch.index.tolist(), lengths, strict=True)):
            links, by_target = self.links[number], dict[int, set[int]]()
            sure = {each for _, each in links.sure}
            for at, each in (*links.sure, *(link for link in links.possible if link[1] not in sure)):
                by_target.setdefault(each, set()).add(at)
            source_words = self.source.numbers(source[row][:before])
            for place, word in enumerate(self.target.numbers(target[row][:after])):
                linked = by_target.get(word)
                if linked:
                    wanted_BTS[row, place, [at for at, each in enumerate(source_words) if each in linked]] = 1
        return wanted_BTS
