"""Guided alignment: train the attention weights of one attention layer (site) to follow word alignments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.attended import Attended
from regard.data import Tokenizer
from regard.data.batch import Batch
from regard.decoding.alignment_units import units_of
from regard.decoding.forced_decoding import sites_of
from regard.errors import ArgumentError, Setting, message
from regard.evaluation import Links
from regard.models import Model
from regard.tasks.translation.translation_data import Corpus
from regard.tasks.translation.translation_settings import TranslationSettings

__all__ = ["Guide", "build_guide", "guided_site", "joined_weights"]


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

    Raise ArgumentError if the data have no alignments, or if the attention weights have no gradient.

    sampled: whether the run trains hard attention with an estimator.
    """
    if not settings.training.guided_alignment:
        return None
    if corpus.split.links is None:
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
    unit = settings.data.alignment_unit
    _check_unit(unit, (corpus.source.unit, corpus.target.unit))
    return Guide(corpus.split.links, corpus.source, corpus.target, unit)


def _check_unit(unit: str, of_tokenizers: tuple[str, str]) -> None:
    """Raise ArgumentError if the tokenizers cannot count the units that the alignments link.

    unit: the setting data.alignment_unit.
    of_tokenizers: the attribute `unit` of the source tokenizer and of the target tokenizer.
    """
    one_side, both_sides = unit in of_tokenizers, set(of_tokenizers) == {unit}
    if unit == "word" or both_sides or (unit == "morpheme" and one_side):
        return
    problem = (
        f"it is {unit!r}, but the tokenizers have {of_tokenizers[0]}s (source), {of_tokenizers[1]}s (target)"
    )
    hint = "use ", Setting("data", "alignment_unit", "word"), " or ", Setting("data", "tokenizer", unit)
    raise ArgumentError(message("data.alignment_unit", problem, hint=hint))


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
            by_target = _by_target(self.links[number])
            source_words = self.source.numbers(source[row][:before])
            for place, word in enumerate(self.target.numbers(target[row][:after])):
                linked = by_target.get(word)
                if linked:
                    wanted_BTS[row, place, [at for at, each in enumerate(source_words) if each in linked]] = 1
        return wanted_BTS


def _by_target(links: Links) -> dict[int, set[int]]:
    """Return a dict from the index of each target word to the indices of its source words."""
    by_target: dict[int, set[int]] = {}
    for source, target in links.sure:
        by_target.setdefault(target, set()).add(source)
    sure = set(by_target)
    for source, target in links.possible:
        if target not in sure:
            by_target.setdefault(target, set()).add(source)
    return by_target
