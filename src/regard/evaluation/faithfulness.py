"""Faithfulness of attention: do translations depend on the source words that the model attends to?

This is measured by erasure: some source words are removed, and the probability of each target word is
computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batch import BOS, UNK, Batch
from regard.errors import ArgumentError, message
from regard.evaluation.agreement import kendall, spearman
from regard.evaluation.attribution import (
    METHODS,
    Attribution,
    InputVectors,
    attribute,
    embedding_output,
    gradients_in_eval_mode,
)
from regard.evaluation.bleu import checked_texts
from regard.evaluation.erasure import (
    Effect,
    ErasureMeans,
    HideKeys,
    Output,
    Plan,
    Sampling,
    Trial,
    counted,
    run_trials,
)
from regard.interventions import intervene
from regard.models.base import Model
from regard.roles import CROSS
from regard.sites import scope
from regard.torch_modules.eval_mode import in_eval_mode
from regard.viewing.word_groups import spelled_or_space

CELLS, LOGITS = 2**16, 2**22
"""Maximum number of attention scores (target tokens times source tokens), and of logits, in a batch."""

FRACTIONS = (0.1, 0.2, 0.5)
"""Fractions of the source words, for two scores. For each fraction, the source words with the largest
attention weights are selected, at least one. Comprehensiveness hides the selected words; sufficiency hides
the others."""


@dataclass(frozen=True)
class WordTruth(Effect):
    """How much the prediction of one target word depends on the source words that it attends to.

    It has the fields of Effect, and more. Its item is a sentence pair, and its place a target word.

    comprehensiveness: the decrease of the probability of the target word if the most attended source words
        are hidden. It is the mean over several numbers of hidden words, set by FRACTIONS (DeYoung et al.
        2020).
    sufficiency: the decrease of the probability of the target word if all source words except the most
        attended words are hidden. It is the mean over the numbers of most attended words set by FRACTIONS.
    kendall, spearman: rank correlation (Kendall's tau, Spearman's rho) between the attention weights and
        |gradient x input|, over the source words; NaN if undefined.
    """

    comprehensiveness: float = math.nan
    sufficiency: float = math.nan
    kendall: float = math.nan
    spearman: float = math.nan


def mean_of(name: str) -> Any:
    """Return a property of Faithfulness: the mean of a field of WordTruth over all target words."""
    return property(lambda self: self.mean(name))


@dataclass(frozen=True)
class Faithfulness(ErasureMeans):
    """Faithfulness of attention over some sentences; the result of faithfulness().

    measured: the measurements of each target word.
    uniform: the mean decrease of the log-probability, in nats, if the attention weights are made uniform.
    k: the number of source words that were hidden or replaced for each target word.
    sentences: the number of sentences.
    at, head: the attention layers (sites) and the head whose attended words were measured.
    skipped: the number of target words that were skipped because the source has at most k words.
    units: what counts as a word in the source and in the target: "word", "morpheme" or "character".

    The properties hidden, hidden_random, unknown, unknown_random, comprehensiveness, sufficiency, kendall and
    spearman are the means of the fields of WordTruth over all target words.

    >>> word = WordTruth(0, 0, "cat", (1,), 0.7, 3.0, 0.5, 4.0, 1.0)
    >>> print(Faithfulness((word,), uniform=2.0, k=1, sentences=1))
    hiding the most attended source word lowers the log-probability by 3.0 nats on average; a random word by
    0.50 (1 target word)
    """

    measured: tuple[WordTruth, ...] = field(repr=False)
    uniform: float
    k: int
    sentences: int
    at: str = CROSS
    head: int | None = None
    skipped: int = 0
    units: tuple[str, str] = ("word", "word")

    place = "source "
    hidden = mean_of("hidden")
    hidden_random = mean_of("hidden_random")
    unknown = mean_of("unknown")
    unknown_random = mean_of("unknown_random")
    comprehensiveness = mean_of("comprehensiveness")
    sufficiency = mean_of("sufficiency")
    kendall = mean_of("kendall")
    spearman = mean_of("spearman")

    @property
    def words(self) -> tuple[WordTruth, ...]:
        """The measurements of each target word."""
        return self.measured

    @property
    def nouns(self) -> tuple[str, str]:  # type: ignore[override]
        return self.units[0], f"{self.units[0]}s"

    @property
    def nothing(self) -> str:  # type: ignore[override]
        return f"the source has too few {self.units[0]}s to measure the faithfulness of the attention"

    @property
    def counts(self) -> str:
        return counted(len(self.words), f"target {self.units[1]}")

    def written(self) -> dict[str, Any]:
        """Return the settings, such as "k", and the means over target words, such as "hidden", for JSON.

        A mean that is undefined is None.
        """
        names = [each.name for each in fields(WordTruth) if each.type == "float" and each.name != "weight"]
        settings = {"at": self.at, "head": self.head, "k": self.k, "sentences": self.sentences}
        settings |= {"words": len(self.words), "skipped": self.skipped}
        uniform = None if math.isnan(self.uniform) else self.uniform
        return settings | self.numbers(*names) | {"uniform": uniform}


def faithfulness(
    translator: Any,
    sources: Any,
    targets: str | Iterable[str] | None = None,
    *,
    k: int = 1,
    samples: int = 3,
    seed: int = 0,
    at: str = CROSS,
    head: int | None = None,
) -> Faithfulness:
    """Measure how much each target word depends on the source words that it attends to.

    The log-probability of each target word is computed without the k source words that have the largest
    attention weights. For comparison, it is computed without k other source words, sampled at random.

    translator: a Translator, as load() returns it for a run of translation.
    sources: a sentence or a list of sentences; or one result of this translator, a Translation or a Scored.
    targets: the target of each source. Default: the translations by this translator.
    k: the number of source words to remove.
    samples: how many times k other words are sampled.
    seed: random seed.
    at: the cross-attention layers (sites) whose weights rank the source words: names with * as wildcard;
        several layers are averaged. For the field `uniform`, the weights of these layers are made uniform.
        Source words are always hidden in all cross-attention layers.
    head: the index of the head of these layers. Default: the mean over heads.

    >>> from regard.data import train_tokenizers
    >>> from regard.decoding import Translator
    >>> from regard.models import build_model
    >>> pairs = [("나는 고양이 로소이다", "I am a cat")]
    >>> source, target = train_tokenizers(pairs, "word")
    >>> model = build_model("bahdanau", source.size, target.size, width=8)
    >>> result = faithfulness(Translator(model, source, target), *pairs[0])
    >>> len(result.words), result.words[3].text
    (4, 'cat')
    """
    sampling = Sampling(k, samples, seed).check("faithfulness()")
    _check_translator(translator)
    if hasattr(sources, "source") and hasattr(sources, "text"):
        targets = sources.text if targets is None else targets
        sources = sources.source
    left = checked_texts("faithfulness()", "sources", [sources] if isinstance(sources, str) else sources)
    if targets is None:
        targets = [each.text for each in translator.translate(left, look=None)]
    right = checked_texts("faithfulness()", "targets", [targets] if isinstance(targets, str) else targets)
    if len(left) != len(right):
        problem = f"there are {len(left)} sources and {len(right)} targets"
        raise ArgumentError(message("faithfulness()", problem, expected="one target for each source"))
    model, pairs, plans, skipped, units = translator.model, list[Pair](), list[Plan](), 0, ("word", "word")
    for item, scored in enumerate(translator.score(left, right, look=CROSS)):
        (passage,) = scored.passages
        units = scored.units
        pairs.append(Pair(passage.source_token_ids, passage.token_ids))
        own = list(_plans(item, model, scored, sampling, at, head))
        plans += own
        skipped += len(_places(passage.words)) - len(own)
    scores = run_trials(plans, lambda trials: word_scores(model, pairs, trials))
    plain = [each.output.trial for each in plans]
    gradients = saliencies(model, pairs, plain)
    with intervene(uniform=True, at=at, head=head) if plain else nullcontext():
        even = word_scores(model, pairs, plain)
    uniform = float(numpy.mean([scores[trial] for trial in plain] - even)) if plain else math.nan
    words = tuple(_truth(*each, scores) for each in zip(plans, gradients, strict=True))
    return Faithfulness(words, uniform, k, len(pairs), at, head, skipped, units)


def attribute_words(
    translator: Any, scored: Any, at: str = CROSS, head: int | None = None, methods: Iterable[str] = METHODS
) -> Attribution:
    """Compute how much each target word depends on each source word: attention, erasure and gradients.

    It works for every translation model; one without attention has no values of "attention".

    translator: a Translator, as load() returns it for a run of translation.
    scored: a result of this translator, a Translation or a Scored.
    at: the cross-attention layers (sites) whose weights are returned; several layers are averaged.
    head: the index of the head of these layers. Default: the mean over heads.
    methods: names of attribution.METHODS.

    >>> from regard.data import train_tokenizers
    >>> from regard.decoding import Translator
    >>> from regard.models import build_model
    >>> source, target = train_tokenizers([("나는 고양이 로소이다", "I am a cat")], "word")
    >>> model = build_model("seq2seq", source.size, target.size, width=8)
    >>> translator = Translator(model, source, target)
    >>> result = attribute_words(translator, translator.score("나는 고양이 로소이다", "I am a cat"))
    >>> result.outputs, list(result.values), result.values["erasure"].shape
    (('I', 'am', 'a', 'cat'), ['erasure', 'gradient', 'integrated'], (4, 3))
    """
    _check_translator(translator)
    if len(scored.passages) != 1:
        problem = "the sentence is too long: the model reads it in several parts"
        raise ArgumentError(message("attribute_words()", problem, hint="use a shorter sentence"))
    (passage,), model = scored.passages, translator.model
    outputs, inputs = _places(passage.words), _places(passage.source_words)
    if not outputs or not inputs:
        problem = "the source or the target has no words"
        raise ArgumentError(message("attribute_words()", problem, expected="at least one word each"))

    def scores(source_BS: Tensor) -> Tensor:
        rows, length = source_BS.shape
        target_BT = torch.tensor([[BOS, *passage.token_ids]], device=source_BS.device).expand(rows, -1)
        lengths = [torch.full((rows,), n, device=source_BS.device) for n in (length, len(passage.token_ids))]
        index_B = torch.arange(rows, device=source_BS.device)
        batch = Batch(source_BS, lengths[0], target_BT, lengths[1], index_B)
        logits_BTV = model.forward(batch).float()
        return logits_BTV.gather(-1, batch.labels[..., None])[..., 0] - logits_BTV.logsumexp(-1)

    tokens, size = passage.source_token_ids, model.target_size
    read = InputVectors.of_tokens(model, model.source, tokens, scores, logits=size)
    values = dict[str, NDArray[numpy.float64]]()
    if (alignment := scored.align(at, head) if passage.attention else None) is not None:
        weights_VW = alignment.matrix.double().numpy()
        values["attention"] = weights_VW[list(outputs)][:, list(inputs)]
    values |= attribute(read, list(outputs.values()), list(inputs.values()), methods)
    target = _names(passage.pieces, outputs, scored.target_units)
    source = _names(passage.source_pieces, inputs, scored.source_units)
    return Attribution(target, source, values, title=scored.text)


def _names(pieces: Sequence[str], words: dict[int, tuple[int, ...]], units: Sequence[str]) -> tuple[str, ...]:
    """Return the text of each word: as in the line, if this is known, so that unknown words are not <unk>."""
    if len(units) == len(words):
        return tuple(units)
    return tuple(spelled_or_space([pieces[place] for place in places]) for places in words.values())


def _plans(
    item: int, model: Model, scored: Any, sampling: Sampling, at: str, head: int | None
) -> Iterator[Plan]:
    """Plan the trials of the target words of one sentence pair, a result of Translator.score().

    The trials "most" and "others" are those of comprehensiveness and sufficiency.
    """
    (passage,) = scored.passages
    if not passage.attention:
        problem = f"{type(model).__name__} has no attention to the source"
        hint = "use a model with attention: bahdanau, luong, lstmn or transformer"
        raise ArgumentError(message("faithfulness()", problem, hint=hint))
    weights_VW = scored.align(at, head).matrix.double().numpy()
    columns = _places(passage.source_words)
    if len(columns) <= sampling.k or max(columns) >= weights_VW.shape[1]:
        return
    tokens, everything = list(columns.values()), set(range(len(passage.source_token_ids)))
    for word, rows in _places(passage.words).items():
        text = spelled_or_space([passage.pieces[place] for place in rows])
        plan = Plan(Output(Trial(item, rows), word, text, weights_VW[word, list(columns)], tokens), sampling)
        plan.trials["most"] = [
            plan.output.without(plan.order[: max(1, math.ceil(part * len(tokens)))], "hidden")
            for part in FRACTIONS
        ]
        plan.trials["others"] = [
            each._replace(hidden=tuple(sorted(everything.difference(each.hidden))))
            for each in plan.trials["most"]
        ]
        yield plan


def _truth(plan: Plan, gradient: NDArray[numpy.float64], scores: dict[Trial, float]) -> WordTruth:
    """Return the measurements of a target word.

    gradient: |gradient x input| of each source token.
    scores: the log-probability of the target word in each trial.
    """
    weights, before = plan.output.weights, math.exp(scores[plan.output.trial])
    most, others = (
        before - float(numpy.mean([math.exp(scores[trial]) for trial in plan.trials[name]]))
        for name in ("most", "others")
    )
    by_word = [gradient[list(tokens)].sum() for tokens in plan.output.tokens]
    correlations = {"kendall": kendall(weights, by_word), "spearman": spearman(weights, by_word)}
    own: dict[str, Any] = {"comprehensiveness": most, "sufficiency": others, **correlations}
    return WordTruth(**vars(plan.effect(scores)), **own)


def _check_translator(translator: object) -> None:
    """Raise ArgumentError if the first argument of faithfulness() is for example a folder or a model."""
    if all(hasattr(translator, name) for name in ("translate", "score", "model")):
        return
    problem, hint = f"translator is a {type(translator).__name__}", "load a run: regard.load(folder)"
    if isinstance(translator, str | PathLike):
        folder = str(translator)
        problem, hint = f"translator is {folder!r}", f"load the run: regard.load({folder!r})"
    elif hasattr(translator, "config"):
        hint = "for a model of transformers: regard.huggingface.erase_tokens(load_model(folder), texts)"
    expected = "a translator, as regard.load() returns it for a run of translation"
    raise ArgumentError(message("faithfulness()", problem, expected=expected, hint=hint))


def _places(words: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return a dict from the index of each word to the indices of its tokens.

    words: for each token, the index of its word; -1 for a token that belongs to no word, such as EOS.
    """
    positions: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word >= 0:
            positions.setdefault(word, []).append(place)
    return {word: tuple(places) for word, places in positions.items()}


class Pair(NamedTuple):
    """The token ids of a source and of a target sentence, each ending in EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


def word_scores(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> NDArray[numpy.float64]:
    """Return the log-probability of the target word of each trial, an array of shape (trials,).

    Hidden source words are masked in all cross-attention layers.

    model: a translation model.
    pairs: the sentence pairs, the items of the trials.
    trials: the trials. The rows of a trial are the tokens of the target word.
    """
    log_probabilities = numpy.zeros(len(trials))
    with in_eval_mode(model), torch.no_grad():
        for indices in _batches(model, pairs, trials):
            batch, rows_BT, hidden_BTS = _collated(model, pairs, [trials[index] for index in indices])
            with scope(edit=HideKeys(hidden_BTS), at=CROSS):
                scores_B = _word_scores(model, batch, rows_BT)
            log_probabilities[indices] = scores_B.double().cpu().numpy()
    return log_probabilities


def saliencies(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> list[NDArray[numpy.float64]]:
    """Return |gradient x input| of each source token, as an array (S,) for the target word of each trial.

    The gradient of the log-probability of the target word is computed with respect to the embedding of the
    source token. It is multiplied by the embedding and summed over the width. The result is the absolute
    value of this sum: to first order, the change of the log-probability if the embedding were 0.
    """
    table = getattr(model, "source", None)
    if not isinstance(table, nn.Embedding):
        problem = f"{type(model).__name__} has no source embedding"
        raise ArgumentError(message("saliencies()", problem, expected="an nn.Embedding as model.source"))
    by_trial: dict[int, NDArray[numpy.float64]] = {}
    for indices in _batches(model, pairs, trials):
        batch, rows_BT, _ = _collated(model, pairs, [trials[index] for index in indices])
        embedded: list[Tensor] = []

        def leaf(output: Tensor, embedded: list[Tensor] = embedded) -> Tensor:
            embedded.append(output.detach().requires_grad_())
            return embedded[0]

        with in_eval_mode(model), gradients_in_eval_mode(), embedding_output(table, leaf):
            total = _word_scores(model, batch, rows_BT).sum()
            (gradient_BSM,) = torch.autograd.grad(total, embedded[0])
        product_BS = (gradient_BSM * embedded[0].detach()).sum(-1).abs().double().cpu().numpy()
        for row, index in enumerate(indices):
            by_trial[index] = product_BS[row, : len(pairs[trials[index].item].source)]
    return [by_trial[index] for index in range(len(trials))]


def _word_scores(model: Model, batch: Batch, rows_BT: Tensor) -> Tensor:
    """Return the log-probability of the target word of each trial of a batch, (B,); see _collated()."""
    logits_BTV = model.forward(batch).float()
    scores_BT = logits_BTV.gather(-1, batch.labels[..., None])[..., 0] - logits_BTV.logsumexp(-1)
    return torch.where(rows_BT, scores_BT, 0.0).sum(-1)


def _collated(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> tuple[Batch, Tensor, Tensor]:
    """Return a batch with a row for each trial, and where its target word and its hidden keys are.

    These are bool tensors, (B, T) and (B, T, S). The target sentence of a row ends with the last token of the
    target word, because the model does not use later tokens to predict the word.
    """
    sources, targets = [], []
    for trial in trials:
        source, target = pairs[trial.item]
        unknown = set(trial.unknown)
        sources.append([UNK if place in unknown else token for place, token in enumerate(source)])
        targets.append([BOS, *target[: max(trial.rows) + 1]])
    device = next(model.parameters()).device
    batch = Batch(
        _padded(sources),
        torch.tensor([len(each) for each in sources]),
        _padded(targets),
        torch.tensor([len(each) - 1 for each in targets]),
        torch.arange(len(trials)),
    ).to(device)
    rows_BT = torch.zeros(batch.labels.shape, dtype=torch.bool)
    hidden_BTS = torch.zeros(*batch.labels.shape, batch.source.shape[1], dtype=torch.bool)
    for row, trial in enumerate(trials):
        rows_BT[row, list(trial.rows)] = True
        hidden_BTS[row, torch.tensor(trial.rows)[:, None], torch.tensor(trial.hidden, dtype=torch.long)] = (
            True
        )
    return batch, rows_BT.to(device), hidden_BTS.to(device)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True)  # PAD is 0


def _batches(model: Model, pairs: Sequence[Pair], trials: Sequence[Trial]) -> Iterator[list[int]]:
    """Yield one list for each batch: the indices of its trials. Trials of similar length share a batch.

    A batch has as many trials as fit into the limits CELLS and LOGITS.
    """

    def size(index: int) -> tuple[int, int]:
        return max(trials[index].rows) + 1, len(pairs[trials[index].item].source)

    indices: list[int] = []
    widest = 0
    for index in sorted(range(len(trials)), key=size, reverse=True):
        widest = max(widest, size(index)[1])
        rows = size(indices[0] if indices else index)[0] * (len(indices) + 1)
        if indices and (rows * widest > CELLS or rows * model.target_size > LOGITS):
            yield indices
            indices, widest = [], size(index)[1]
        indices.append(index)
    if indices:
        yield indices
