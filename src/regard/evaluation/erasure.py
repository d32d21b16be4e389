"""Erasure: score an output of a model again after some of the words that it read are removed.

There are two ways to remove a word:

hidden   the keys of the word are masked in the attention; information about the word remains in the encoder
         states of other words
unknown  the tokens of the word are replaced by UNK before the encoder; no information about the word remains

A trial is one forward pass without some words. A Plan has the trials of one output: without the words that it
attends to most and, for comparison, without words chosen at random. Each task has a function that computes
the scores of many trials in batches; run_trials() calls it once for all outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.call import Call
from regard.errors import ArgumentError, message
from regard.masks.mask import Mask
from regard.sites import scope


class Trial(NamedTuple):
    """One forward pass in which some tokens (or cells of an image) are removed.

    item: the index of the input: a sentence pair, a text or pair of texts, or an image with its caption.
    rows: the indices of the target tokens whose log-probability is computed.
    hidden: the indices of the input tokens that are masked.
    unknown: the indices of the input tokens that are replaced by UNK.
    side: the text of a pair of texts from which tokens are removed: 0, or 1 for the second text.
    """

    item: int
    rows: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    side: int = 0


class Sampling(NamedTuple):
    """How many words are removed, how many times other words are sampled, and the random seed."""

    k: int = 1
    samples: int = 3
    seed: int = 0

    def check(self, call: str) -> Sampling:
        """Raise ArgumentError unless k and samples are at least 1. `call` is the function that was called."""
        if self.k < 1 or self.samples < 1:
            problem = f"k is {self.k} and samples is {self.samples}"
            raise ArgumentError(message(call, problem, expected="k and samples of at least 1"))
        return self


class Output(NamedTuple):
    """An output of a model, such as a target word or a predicted label, and the words that it attends to.

    trial: the forward pass with all words.
    place: the index of the output in its item.
    text: the output.
    weights: the attention weight of each word.
    tokens: for each word, the indices of its tokens.
    """

    trial: Trial
    place: int
    text: str
    weights: Sequence[float] | NDArray[numpy.float64]
    tokens: Sequence[Sequence[int]]

    def without(self, words: Iterable[int], way: str) -> Trial:
        """Return the trial in which these words are removed in one way: "hidden" or "unknown"."""
        places = tuple(sorted(place for word in words for place in self.tokens[word]))
        return self.trial._replace(hidden=places) if way == "hidden" else self.trial._replace(unknown=places)


@dataclass(frozen=True)
class Effect:
    """How much one output depends on the words that it attends to.

    item: the index of the input: a sentence pair, a text or pair of texts, or an image with its caption.
    place: the index of the output in its item: of the target word or the word of the caption; 0 for a
        predicted label, or 1 if words of the second text of a pair are removed.
    text: the output.
    looked: the indices of the k words (or cells of the image) with the largest attention weights.
    weight: the sum of their weights.
    hidden: the decrease of the log-probability of the output, in nats, if these k words are masked in the
        attention.
    hidden_random: the mean decrease if k other words, sampled at random, are masked.
    unknown: the decrease if the k words are replaced by UNK instead; NaN if this was not measured.
    unknown_random: the mean decrease if k other words, sampled at random, are replaced by UNK.
    """

    item: int
    place: int
    text: str
    looked: tuple[int, ...]
    weight: float
    hidden: float
    hidden_random: float
    unknown: float = math.nan
    unknown_random: float = math.nan

    @property
    def difference(self) -> float:
        """`hidden` minus `hidden_random`."""
        return self.hidden - self.hidden_random


class Plan:
    """The trials of one output: without the k most attended words, and without k random words.

    output: the output.
    sampling: k, and how the random words are sampled. They depend only on the seed and on the output.
    ways: how words are removed.

    order: the indices of all words, the most attended word first.
    trials: the name of a measurement, such as "hidden" or "hidden_random" -> its trials.
    """

    def __init__(self, output: Output, sampling: Sampling, ways: Sequence[str] = ("hidden", "unknown")):
        self.output, self.ways = output, ways
        k, samples, seed = sampling
        self.order, draws = ranked_and_random(
            output.weights, k, samples, (seed, output.trial.item, output.place)
        )
        self.looked = tuple(self.order[:k])
        self.trials = {way: [output.without(self.looked, way)] for way in ways}
        self.trials |= {f"{way}_random": [output.without(words, way) for words in draws] for way in ways}

    def effect(self, scores: Mapping[Trial, float]) -> Effect:
        """Return the effects of removing words, from the log-probability of the output in each trial."""
        output, before = self.output, scores[self.output.trial]
        costs = {
            name: float(numpy.mean([before - scores[trial] for trial in self.trials[name]]))
            for way in self.ways
            for name in (way, f"{way}_random")
        }
        weight = float(sum(output.weights[word] for word in self.looked))
        return Effect(output.trial.item, output.place, output.text, self.looked, weight, **costs)


def run_trials(
    plans: Sequence[Plan], scores: Callable[[Sequence[Trial]], NDArray[numpy.float64]]
) -> dict[Trial, float]:
    """Return the log-probability of the output of each trial. Equal trials are computed only once.

    scores: returns the log-probability of the output of each trial of a list.
    """
    trials = dict.fromkeys(
        trial
        for plan in plans
        for trial in (plan.output.trial, *(each for chosen in plan.trials.values() for each in chosen))
    )
    return dict(zip(trials, scores(list(trials)).tolist(), strict=True)) if trials else {}


class ErasureMeans:
    """Means over measurements, which have the fields `hidden` and `hidden_random`, in nats.

    measured: the measurements, such as Effect.
    k: number of words that were removed for each output.

    The texts of summary(), which each kind of report has:

    nouns: what is hidden, one and several.
    place: where it is, such as "source ".
    of: what the log-probability belongs to, such as " of the predicted label".
    nothing: the summary if nothing was measured.
    counts: how much was measured.
    """

    measured: Sequence[Any]
    k: int
    nouns: tuple[str, str] = ("word", "words")
    place = of = ""
    nothing = "the texts have too few words to measure the effect of hiding words"

    @property
    def counts(self) -> str:
        return counted(len(self.measured), "text")

    def summary(self) -> str:
        """Return one sentence about the mean effects, to print below a picture.

        For example: "hiding the most attended word lowers the log-probability by 3.0 nats on average; a
        random word by 0.50".
        """
        if not self.measured:
            return self.nothing
        (one, several), k = self.nouns, self.k
        attended, random = in_nats(self.mean("hidden"), self.mean("hidden_random"))
        hidden = f"most attended {self.place}{one}" if k == 1 else f"{k} most attended {self.place}{several}"
        others = f"a random {one}" if k == 1 else f"{k} random {several}"
        return f"hiding the {hidden} {effects(attended, {others: random}, self.of)}"

    def __str__(self) -> str:
        return f"{self.summary()} ({self.counts})" if self.measured else self.summary()

    def mean(self, name: str) -> float:
        """Return the mean of a field of the measurements, such as "hidden"; NaN values are ignored.

        The result is NaN if there are no values.
        """
        known = [value for value in (float(getattr(each, name)) for each in self.measured) if value == value]
        return float(numpy.mean(known)) if known else math.nan

    @property
    def better(self) -> float:
        """The fraction of outputs for which the most attended words matter more than random words.

        For these measurements, `hidden` is larger than `hidden_random`. NaN if there are none.
        """
        wins = [each.difference > 0 for each in self.measured]
        return sum(wins) / len(wins) if wins else math.nan

    def numbers(self, *names: str) -> dict[str, float | None]:
        """Return the means of these fields, and `better`, for JSON. A mean that is undefined is None."""
        means = {name: self.mean(name) for name in names} | {"better": self.better}
        return {name: None if math.isnan(mean) else mean for name, mean in means.items()}


class RowErasure(ErasureMeans):
    """Faithfulness of an attention layer in which each output of a model reads one row of weights.

    For each output, the input with the largest weight is hidden in its row, and for comparison other inputs,
    sampled at random. All outputs of a sentence are measured in one forward pass.

    at: the attention layer (site) in which inputs are hidden.
    """

    def __init__(self, at: str, sampling: Sampling | None = None):
        self.at, self.sampling = at, sampling or Sampling()
        self.k = self.sampling.k
        self.measured: list[Effect] = []

    def measure(self, scores: Callable[[], Any], weights_TS: Any) -> None:
        """Measure all outputs of a sentence.

        scores: a function that runs the model on the sentence alone, and returns the log-probability of each
            of its T outputs, such as the predicted labels, (T,).
        weights_TS: the weights of the layer, without erasure.
        """
        weights_TS, place = numpy.asarray(weights_TS), len(self.measured)
        k, samples, seed = self.sampling
        if weights_TS.shape[1] <= k:
            return
        rows = [
            ranked_and_random(row, k, samples, (seed, place, number)) for number, row in enumerate(weights_TS)
        ]
        trials: list[list[list[int]]] = [[[] for _ in rows], [order[:k] for order, _ in rows]]
        trials += [[draws[sample] for _, draws in rows] for sample in range(samples)]
        before, looked, *others = (self._without(hidden, weights_TS.shape, scores) for hidden in trials)
        costs = zip((before - looked).tolist(), (before - numpy.mean(others, 0)).tolist(), strict=True)
        for number, ((order, _), own) in enumerate(zip(rows, costs, strict=True)):
            weight = float(weights_TS[number, order[:k]].sum())
            self.measured.append(Effect(place, number, "", tuple(order[:k]), weight, *own))

    def _without(
        self, hidden: Sequence[Sequence[int]], shape: tuple[int, ...], scores: Callable[[], Any]
    ) -> NDArray[numpy.float64]:
        hidden_BTS = torch.zeros(1, *shape, dtype=torch.bool)
        for row, places in enumerate(hidden):
            hidden_BTS[0, row, list(places)] = True
        with scope(edit=HideKeys(hidden_BTS), at=self.at):
            return numpy.asarray(scores(), numpy.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the mean effects as a dict for JSON."""
        return {"k": self.k, "outputs": len(self.measured), **self.numbers("hidden", "hidden_random")}

    @property
    def counts(self) -> str:
        return counted(len(self.measured), "output")


def counted(number: int, name: str) -> str:
    """Return a number of things as text: "1 word", "1,000 words"."""
    return f"{number:,} {name}{'s' * (number != 1)}"


def ranked_and_random(
    weights: Sequence[float] | NDArray[numpy.float64], k: int, samples: int, seed: Sequence[int]
) -> tuple[list[int], list[list[int]]]:
    """Return the indices of all words, sorted by weight, largest first, and random samples of words.

    A sample has k words that are not among the k words with the largest weights. If there are fewer than k
    such words, the sample has all of them.

    weights: the weight of each word.
    k: number of words of a sample.
    samples: number of samples.
    seed: random seed.

    >>> ranked_and_random([0.1, 0.7, 0.2], k=1, samples=2, seed=[0])
    ([1, 2, 0], [[0], [0]])
    """
    order = [int(word) for word in numpy.argsort(-numpy.asarray(weights), kind="stable")]
    others, generator = order[k:], numpy.random.default_rng(list(seed))
    count = min(k, len(others))
    return order, [generator.choice(others, count, replace=False).tolist() for _ in range(samples)]


def in_nats(*means: float) -> tuple[str, ...]:
    """Format numbers with one decimal; small numbers get two decimals, so that 0.02 does not become 0.0.

    A number is small if its absolute value is below 0.95. If all small numbers are below 0.005 in absolute
    value, they get one decimal too. No result is "-0.0".

    >>> in_nats(3.41, 0.0), in_nats(3.41, 0.25), in_nats(-0.001, 0.25)
    (('3.4', '0.0'), ('3.4', '0.25'), ('0.00', '0.25'))
    """
    fine = any(0.005 <= abs(mean) < 0.95 for mean in means)
    digits = [2 if fine and abs(mean) < 0.95 else 1 for mean in means]
    return tuple(f"{round(mean, own) + 0.0:.{own}f}" for mean, own in zip(means, digits, strict=True))


def effects(attended: str, others: Mapping[str, str], of: str = "") -> str:
    """Return a clause about mean decreases: "lowers the log-probability by 3.0 nats on average; ...".

    A negative decrease is an increase: "raises it by 0.04".

    attended: the mean decrease without the attended words, formatted by in_nats().
    others: the mean decreases to compare with, by the name of what was hidden, such as "a random word".
    of: what the log-probability belongs to, such as " of the answer".

    >>> effects("3.0", {"a random word": "-0.04"})
    'lowers the log-probability by 3.0 nats on average; a random word raises it by 0.04'
    """

    def verb(mean: str) -> str:
        return "raises" if mean.startswith("-") else "lowers"

    clauses = [f"{verb(attended)} the log-probability{of} by {attended.removeprefix('-')} nats on average"]
    for name, mean in others.items():
        changes = "" if verb(mean) == verb(attended) else f" {verb(mean)} it"
        clauses.append(f"{name}{changes} by {mean.removeprefix('-')}")
    return "; ".join(clauses)


class HideKeys:
    """Masks keys in attention calls. Pass it to scope() as the argument `edit`.

    hidden_BTS: True where a key is masked, for each text of the batch, query and key.
    """

    def __init__(self, hidden_BTS: Tensor):
        self.visible_BTS = ~hidden_BTS
        self.any = bool(hidden_BTS.any())

    def __call__(self, call: Call) -> Call:
        if not self.any:
            return call
        rows_BTS = self.visible_BTS.index_select(1, call.positions)
        return replace(call, mask=call.mask & Mask(table=rows_BTS[:, None]))
