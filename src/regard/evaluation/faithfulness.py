"""Faithfulness of attention: do translations depend on the source words that the model attends to?

This is measured by erasure: some source words are removed, and the probability of each target word is
computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.evaluation.erasure import (
    ErasureMeans,
    Pair,
    Planned,
    Sampling,
    Trial,
    Trials,
    check_counts,
    counted,
    saliencies,
    word_scores,
)
from regard.evaluation.rank_correlation import kendall, spearman
from regard.interventions import intervene
from regard.models.base import Model
from regard.roles import CROSS
from regard.viewing.word_groups import spelled_or_space

__all__ = ["Faithfulness", "Translates", "WordTruth", "faithfulness"]

FRACTIONS = (0.1, 0.2, 0.5)
"""Fractions of the source words, for two scores. For each fraction, the source words with the largest
attention weights are selected, at least one. Comprehensiveness hides the selected words; sufficiency hides
the others."""


@runtime_checkable
class Result(Protocol):
    """An object with a source and a target text, such as the results of translate() and score()."""

    @property
    def source(self) -> str:
        """The text that was translated."""

    @property
    def text(self) -> str:
        """The translation, or the target text whose log-probability was computed."""


class Translates(Protocol):
    """The methods of a translator that faithfulness() and agreement() call. Translator has these methods."""

    model: Model

    def translate(self, lines: Any, *, look: str | None) -> Any:
        """Translate lines, and record the attention layers (sites) named by `look`."""

    def score(self, sources: Any, targets: Any, *, look: str | None) -> Any:
        """Compute the log-probability of each target sentence, given its source.

        The attention layers (sites) named by `look` are recorded.
        """


@dataclass(frozen=True)
class WordTruth:
    """How much the prediction of one target word depends on the source words that it attends to.

    sentence: the index of the sentence pair, from 0.
    word: the index of the target word in its sentence, from 0.
    text: the target word.
    looked: the indices of the k source words with the largest attention weights.
    hidden: the decrease of the log-probability of the target word, in nats, if these k source words are
        masked in the cross-attention.
    unknown: the decrease if these k source words are replaced by UNK instead.
    hidden_random: the mean decrease if k other source words, sampled at random, are hidden.
    unknown_random: the mean decrease if k other source words, sampled at random, are replaced by UNK.
    comprehensiveness: the decrease of the probability of the target word if the most attended source words
        are hidden. It is the mean over several numbers of hidden words, set by FRACTIONS (DeYoung et al.
        2020).
    sufficiency: the decrease of the probability of the target word if all source words except the most
        attended words are hidden. It is the mean over the numbers of most attended words set by FRACTIONS.
    kendall, spearman: rank correlation (Kendall's tau, Spearman's rho) between the attention weights and
        |gradient x input|, over the source words; NaN if undefined.
    """

    sentence: int
    word: int
    text: str
    looked: tuple[int, ...]
    hidden: float
    hidden_random: float
    unknown: float
    unknown_random: float
    comprehensiveness: float
    sufficiency: float
    kendall: float
    spearman: float


def mean_of(name: str) -> Any:
    """Return a property of Faithfulness: the mean of a field of WordTruth over all target words."""
    return property(lambda self: self.mean(name))


@dataclass(frozen=True)
class Faithfulness(ErasureMeans):
    """Faithfulness of attention over some sentences; the result of faithfulness().

    words: the measurements of each target word.
    uniform: the mean decrease of the log-probability, in nats, if the attention weights are made uniform.
    k: the number of source words that were hidden or replaced for each target word.
    sentences: the number of sentences.
    at, head: the attention layers (sites) and the head whose attended words were measured.
    skipped: the number of target words that were skipped because the source has at most k words.
    units: what counts as a word in the source and in the target: "word", "morpheme" or "character".

    The properties hidden, hidden_random, unknown, unknown_random, comprehensiveness, sufficiency, kendall and
    spearman are the means of the fields of WordTruth over all target words.

    >>> word = WordTruth(0, 0, "cat", (1,), 3.0, 0.5, 4.0, 1.0, 0.9, 0.1, 0.8, 0.9)
    >>> print(Faithfulness((word,), uniform=2.0, k=1, sentences=1))
    hiding the most attended source word lowers the log-probability by 3.0 nats on average; a random word by
    0.50 (1 target word)
    """

    words: tuple[WordTruth, ...] = field(repr=False)
    uniform: float
    k: int
    sentences: int
    at: str = CROSS
    head: int | None = None
    skipped: int = 0
    units: tuple[str, str] = ("word", "word")

    hidden = mean_of("hidden")
    hidden_random = mean_of("hidden_random")
    unknown = mean_of("unknown")
    unknown_random = mean_of("unknown_random")
    comprehensiveness = mean_of("comprehensiveness")
    sufficiency = mean_of("sufficiency")
    kendall = mean_of("kendall")
    spearman = mean_of("spearman")

    @property
    def measured(self) -> tuple[WordTruth, ...]:
        return self.words

    def summary(self) -> str:
        """Return one sentence about the mean effect of hiding source words, to print below a picture.

        For example: "hiding the most attended source word lowers the log-probability by 3.0 nats on average;
        a random word by 0.50".
        """
        if not self.words:
            return f"the source has too few {self.units[0]}s to measure the faithfulness of the attention"
        return self.sentence(self.units[0], f"{self.units[0]}s", "source ")

    def __str__(self) -> str:
        count = counted(len(self.words), f"target {self.units[1]}")
        return f"{self.summary()} ({count})" if self.words else self.summary()

    def written(self) -> dict[str, Any]:
        """Return the settings, such as "k", and the means over target words, such as "hidden", for JSON.

        A mean that is undefined is None.
        """
        names = [each.name for each in fields(WordTruth) if each.type == "float"]
        settings = {"at": self.at, "head": self.head, "k": self.k, "sentences": self.sentences}
        settings |= {"words": len(self.words), "skipped": self.skipped}
        uniform = None if math.isnan(self.uniform) else self.uniform
        return settings | self.numbers(*names) | {"uniform": uniform}


def faithfulness(
    translator: Translates,
    sources: str | Result | Iterable[str],
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
    _check_translator(translator)
    check_counts("faithfulness()", k, samples)
    if isinstance(sources, Result):
        targets = sources.text if targets is None else targets
        sources = sources.source
    _check_texts(sources, "sources")
    left = [sources] if isinstance(sources, str) else list(sources)
    if targets is None:
        targets = [each.text for each in translator.translate(left, look=None)]
    _check_texts(targets, "targets")
    right = [targets] if isinstance(targets, str) else list(targets)
    if len(left) != len(right):
        problem = f"there are {len(left)} sources and {len(right)} targets"
        raise ArgumentError(message("faithfulness()", problem, expected="one target for each source"))
    plan = _Plan(Sampling(k, samples, seed))
    for number, scored in enumerate(translator.score(left, right, look=CROSS)):
        plan.add(number, translator.model, scored, at, head)
    return plan.run(translator.model, at, head)


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


def _check_texts(texts: object, name: str) -> None:
    """Raise ArgumentError unless the argument `name` of faithfulness() is a text or a collection of texts."""
    expected = "a sentence, or a list of sentences"
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        problem = f"{name} is of type {type(texts).__name__}"
        raise ArgumentError(message("faithfulness()", problem, expected=expected))
    for number, each in enumerate(texts if isinstance(texts, list | tuple) else (), 1):
        if not isinstance(each, str):
            problem = f"item {number} of {name} is of type {type(each).__name__}"
            raise ArgumentError(message("faithfulness()", problem, expected=expected))


@dataclass(frozen=True)
class _Word:
    """A target word, its attention weights on the source words, and the indices of its trials.

    A trial is one forward pass without some source words.

    sentence: the index of the sentence pair.
    word: the index of the target word in its sentence.
    text: the target word.
    weights: the attention weight of each source word.
    tokens: for each source word, the indices of its tokens.
    planned: the indices of the trials of this word.
    """

    sentence: int
    word: int
    text: str
    weights: NDArray[numpy.float64]
    tokens: tuple[tuple[int, ...], ...]
    planned: Planned


class _Plan:
    """Collects the trials of all target words. A trial is one forward pass without some source words.

    The trials are collected first, so that they can be computed in large batches.
    """

    def __init__(self, sampling: Sampling):
        self.sampling, self.k = sampling, sampling.k
        self.pairs: list[Pair] = []
        self.trials = Trials[Trial]()
        self.words: list[_Word] = []
        self.skipped = 0
        self.units = ("word", "word")

    def add(self, number: int, model: Model, scored: Any, at: str, head: int | None) -> None:
        """Add the trials (forward passes without some source words) of one sentence pair.

        number: the index of the pair.
        scored: the pair, a result of Translator.score().
        at: the cross-attention layers (sites) that rank the source words.
        head: the index of a head; None for the mean over heads.
        """
        (passage,) = scored.passages
        self.units = scored.units
        if not passage.attention:
            problem = f"{type(model).__name__} has no attention to the source"
            hint = "use a model with attention: bahdanau, luong, lstmn or transformer"
            raise ArgumentError(message("faithfulness()", problem, hint=hint))
        weights_VW = scored.align(at, head).matrix.double().numpy()
        self.pairs.append(Pair(passage.source_token_ids, passage.token_ids))
        columns, rows = _places(passage.source_words), _places(passage.words)
        for word, places in rows.items():
            if len(columns) <= self.k or any(source >= weights_VW.shape[1] for source in columns):
                self.skipped += 1
                continue
            text = spelled_or_space([passage.pieces[place] for place in places])
            weights_W = weights_VW[word, list(columns)]
            self.words.append(self._planned(number, word, text, weights_W, tuple(columns.values()), places))

    def _planned(
        self,
        sentence: int,
        word: int,
        text: str,
        weights: NDArray[numpy.float64],
        tokens: tuple[tuple[int, ...], ...],
        rows: tuple[int, ...],
    ) -> _Word:
        """Add the trials (forward passes without some source words) of one target word.

        Which random source words are removed depends only on the seed, `sentence` and `word`.

        sentence: the index of the sentence pair.
        word: the index of the target word in its sentence.
        text: the target word.
        weights: the attention weight of each source word.
        tokens: for each source word, the indices of its tokens.
        rows: the indices of the tokens of the target word.
        """
        pair = len(self.pairs) - 1

        def without(words: Iterable[int]) -> dict[str, Trial]:
            places = tuple(sorted(place for word in words for place in tokens[word]))
            return {"hidden": Trial(pair, rows, places), "unknown": Trial(pair, rows, (), places)}

        sampling, plain = self.sampling, Trial(pair, rows)
        planned = self.trials.plan(weights, plain, without, sampling, sentence, word)
        for part in FRACTIONS:
            most = without(planned.order[: max(1, math.ceil(part * len(planned.order)))])["hidden"]
            others = set(range(len(self.pairs[-1].source))) - set(most.hidden)
            alone = Trial(pair, rows, tuple(sorted(others)))
            for name, trial in (("without", most), ("alone", alone)):
                planned.trials.setdefault(name, []).append(self.trials.add(trial))
        return _Word(sentence, word, text, weights, tokens, planned)

    def run(self, model: Model, at: str, head: int | None) -> Faithfulness:
        """Run the forward passes of all trials, and compute from them the measurements of each target word.

        at, head: the attention layers (sites) and the head whose weights are made uniform for the field
            `uniform` of the result.
        """
        scores = word_scores(model, self.pairs, self.trials.all)
        plain = [each.planned.plain for each in self.words]
        trials = [self.trials.all[index] for index in plain]
        gradients = saliencies(model, self.pairs, trials)
        with intervene(uniform=True, at=at, head=head) if plain else nullcontext():
            even = word_scores(model, self.pairs, trials)
        words = [_measure(*each, scores) for each in zip(self.words, gradients, strict=True)]
        uniform = float((scores[plain] - even).mean()) if len(even) else math.nan
        count = len(self.pairs)
        return Faithfulness(tuple(words), uniform, self.k, count, at, head, self.skipped, self.units)


def _measure(word: _Word, gradient: NDArray[numpy.float64], scores: NDArray[numpy.float64]) -> WordTruth:
    """Compute how much one target word depends on the source words that it attends to.

    gradient: |gradient x input| of each source token.
    scores: the log-probability of the target word in each trial.
    """
    costs, before = word.planned.costs(scores), math.exp(scores[word.planned.plain])
    drops = {
        name: float((before - numpy.exp(scores[word.planned.trials[name]])).mean())
        for name in ("without", "alone")
    }
    by_word = [gradient[list(tokens)].sum() for tokens in word.tokens]
    return WordTruth(
        word.sentence,
        word.word,
        word.text,
        tuple(word.planned.looked),
        **{name: costs[name] for name in ("hidden", "hidden_random", "unknown", "unknown_random")},
        comprehensiveness=drops["without"],
        sufficiency=drops["alone"],
        kendall=kendall(word.weights, by_word),
        spearman=spearman(word.weights, by_word),
    )


def _places(words: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return a dict from the index of each word to the indices of its tokens.

    words: for each token, the index of its word; -1 for a token that belongs to no word, such as EOS.
    """
    positions: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word >= 0:
            positions.setdefault(word, []).append(place)
    return {word: tuple(places) for word, places in positions.items()}
