"""Erasure for classifiers: does the prediction depend on the words that the pooling attends to?

The pooling is the attention that combines the encoder states of all words into one vector. As in erasure.py,
there are two ways to remove a word:

hidden   the keys of the word are masked in the pooling; information about the word remains in the encoder
         states of other words
unknown  the tokens of the word are replaced by UNK before the encoder; no information about the word remains
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from regard.call import Call
from regard.data.batch import UNK, LabelledBatch
from regard.errors import ArgumentError, message
from regard.evaluation.classification import SIDES, Classification, ReadText
from regard.evaluation.erasure import (
    Erasure,
    ErasureMeans,
    HideKeys,
    Planned,
    Sampling,
    Trials,
    check_counts,
    counted,
    trial_scores,
)
from regard.evaluation.text_classifier import Line, TextClassifier, batches_by_length, log_probabilities
from regard.sites import Edit

__all__ = ["ClassifierErasure", "ClassifierTrial", "PredictedLabels", "TextErasure", "erase_words"]


@dataclass(frozen=True)
class TextErasure:
    """How much the predicted label of one text depends on the words that the pooling attends to.

    line: the index, from 0, of the line (a text or a pair of texts) that the text is from.
    side: "first", or "second" for the second text of a pair.
    label: the predicted class.
    looked: the indices of the k words with the largest weights in the pooling.
    words: the text of these k words.
    weight: the sum of the weights of these k words.
    hidden: the decrease of the log-probability of the label, in nats, if these k words are masked in the
        pooling.
    unknown: the decrease if these k words are replaced by UNK instead.
    hidden_random: the mean decrease if k other words of the text, sampled at random, are masked.
    unknown_random: the mean decrease if k other words of the text, sampled at random, are replaced by UNK.
    """

    line: int
    side: str
    label: str
    looked: tuple[int, ...]
    words: tuple[str, ...]
    weight: float
    hidden: float
    hidden_random: float
    unknown: float
    unknown_random: float


@dataclass(frozen=True)
class ClassifierErasure(ErasureMeans):
    """The result of erase_words(): how much predicted labels depend on the words that the pooling attends to.

    texts: the measurements of each text; a pair has two texts.
    k: number of words that were removed from each text.
    skipped: number of texts that were not measured, because they have at most k words.

    >>> text = TextErasure(0, "first", "pos", (1,), ("good",), 0.9, 3.0, 0.5, 4.0, 1.0)
    >>> print(ClassifierErasure((text,), k=1))
    hiding the most attended word lowers the log-probability of the predicted label by 3.0 nats on average;
    a random word by 0.50 (1 text)
    """

    texts: tuple[TextErasure, ...] = field(repr=False)
    k: int = 1
    skipped: int = 0

    @property
    def measured(self) -> tuple[TextErasure, ...]:
        return self.texts

    @property
    def pairs(self) -> int:
        """The number of pairs that were measured, or 0 if single texts were classified.

        A pair is counted if at least one of its texts was measured. The result is also 0 if no second text
        was measured.
        """
        has_seconds = any(each.side == SIDES[1] for each in self.texts)
        return len({each.line for each in self.texts}) if has_seconds else 0

    def summary(self) -> str:
        """Return one sentence about the mean effect of masking words; see ErasureMeans.sentence()."""
        if not self.texts:
            return "the texts have too few words to measure the effect of hiding words"
        return self.sentence("word", "words", of=" of the predicted label")

    def __str__(self) -> str:
        if not self.texts:
            return self.summary()
        pairs = f" of {counted(self.pairs, 'pair')}" if self.pairs else ""
        return f"{self.summary()} ({counted(len(self.texts), 'text')}{pairs})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: k, the number of measured and skipped texts, and means over the texts.

        A mean that is undefined, because there are no texts, is None.
        """
        means = self.numbers("weight", "hidden", "hidden_random", "unknown", "unknown_random")
        return {"k": self.k, "texts": len(self.texts), "skipped": self.skipped, **means}


def erase_words(
    classifier: TextClassifier, lines: Line | Iterable[Line], *, k: int = 1, samples: int = 3, seed: int = 0
) -> ClassifierErasure:
    """Measure how much the predicted label of each text depends on the words that the pooling attends to.

    The log-probability of the predicted label is computed without the k words with the largest attention
    weights. For comparison, it is computed without k other words, sampled at random. For a pair, words are
    removed from one of its texts at a time.

    classifier: a classifier whose pooling is attention.
    lines: one line, or an iterable of lines. A line is a text (str) or a pair of texts (first, second).
    k: number of words to remove.
    samples: how many times k other words are sampled.
    seed: random seed.

    >>> from regard.data.labelled_text import Labels
    >>> from regard.data.tokenizers import train_tokenizer
    >>> from regard.named_models.classifiers import build_classifier
    >>> tokenizer, labels = train_tokenizer("word", ["a good film", "a bad film"]), Labels(("neg", "pos"))
    >>> model = build_classifier("lstm", tokenizer.size, len(labels), width=8)
    >>> len(erase_words(TextClassifier(model, tokenizer, labels), "a good film").texts)
    1
    """
    call = "erase_words()"
    check_counts(call, k, samples)
    site = classifier.model.pool_site
    if site is None:
        problem = "the pooling of this classifier does not use attention"
        raise ArgumentError(message(call, problem, hint='use a classifier with pooling="attention"'))
    results = classifier.classify(lines, look=site)
    results = [results] if isinstance(results, Classification) else results
    trials, planned, skipped = Trials[ClassifierTrial](), list[tuple[int, int, Planned]](), 0
    for line, result in enumerate(results):
        for side, read in enumerate(result.texts):
            if result.label is None or read.weights is None or len(read.places) <= k:
                skipped += 1
                continue

            def without(
                words: Sequence[int], line: int = line, side: int = side, read: ReadText = read
            ) -> dict[str, ClassifierTrial]:
                places = tuple(sorted(place for word in words for place in read.places[word]))
                hidden = ClassifierTrial(line, side, hidden=places)
                return {"hidden": hidden, "unknown": ClassifierTrial(line, side, unknown=places)}

            sampling, plain = Sampling(k, samples, seed), ClassifierTrial(line)
            planned.append((line, side, trials.plan(read.weights, plain, without, sampling, line, side)))
    scores = trial_scores(PredictedLabels(classifier, site, results), trials.all)
    texts = tuple(
        _measured(results[line], line, side, each, each.costs(scores)) for line, side, each in planned
    )
    return ClassifierErasure(texts, k, skipped)


def _measured(
    result: Classification, line: int, side: int, planned: Planned, costs: dict[str, float]
) -> TextErasure:
    """Return the measurement of one text from the mean decreases of the log-probability of its label."""
    read, looked = result.texts[side], tuple(planned.looked)
    words = tuple(read.words[word] for word in looked)
    weight = sum((read.weights or ())[word] for word in looked)
    return TextErasure(line, SIDES[side], str(result.label), looked, words, weight, **costs)


@dataclass(frozen=True)
class ClassifierTrial:
    """One forward pass of a classifier for a text, or a pair of texts, without some tokens of one text.

    line: the index of the text or pair.
    side: the text from which tokens are removed: 0, or 1 for the second text of a pair.
    hidden: the indices of the tokens that are masked in the pooling.
    unknown: the indices of the tokens that are replaced by UNK.
    """

    line: int
    side: int = 0
    hidden: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()


class PredictedLabels(Erasure[ClassifierTrial]):
    """Computes the log-probability of the predicted label of a text, or a pair of texts, without some words.

    at: the name of the attention layer (site) of the pooling, in which words are masked; None if the pooling
        is not attention, so that no words can be masked.
    results: the classification of each line. A line is a text or a pair of texts.
    """

    def __init__(self, classifier: TextClassifier, at: str | None, results: Sequence[Classification]):
        self.classifier, self.at, self.results = classifier, at, results

    def batches(self, trials: Sequence[ClassifierTrial]) -> Iterator[list[int]]:
        lengths = {
            index: max(len(read.tokens) for read in self.results[trial.line].texts)
            for index, trial in enumerate(trials)
        }
        return batches_by_length(lengths, self.classifier.tokens_per_batch)

    def scores(self, trials: Sequence[ClassifierTrial]) -> tuple[Edit, Callable[[], NDArray[numpy.float64]]]:
        model, sides = self.classifier.model, []
        for side in range(len(self.results[0].texts)):
            tokens = [list(self.results[trial.line].texts[side].tokens[:-1]) for trial in trials]
            for own, trial in zip(tokens, trials, strict=True):
                for place in trial.unknown if trial.side == side else ():
                    own[place] = UNK
            sides.append(tokens)
        batch = LabelledBatch.collate(sides[0], sides[1] if len(sides) > 1 else None)
        labels = [self.classifier.labels.index(str(self.results[trial.line].label)) for trial in trials]

        def run() -> NDArray[numpy.float64]:
            return log_probabilities(model, batch)[numpy.arange(len(labels)), labels]

        return _HideWords(trials, sides, next(model.parameters()).device), run


class _HideWords:
    """Masks tokens in the attention call of the pooling: the tokens in `hidden` of each ClassifierTrial.

    An object of this class is passed as the `edit` argument of scope(), which calls it before each call of
    the pooling. The model calls the pooling once for each text of a pair: first for side 0, then for side 1.
    """

    def __init__(
        self,
        trials: Sequence[ClassifierTrial],
        sides: Sequence[Sequence[Sequence[int]]],
        device: torch.device,
    ):
        self.edits, self.calls = [], 0
        for side, tokens in enumerate(sides):
            hidden_B1S = torch.zeros(len(trials), 1, max(map(len, tokens)) + 1, dtype=torch.bool)
            for row, trial in enumerate(trials):
                if trial.side == side:
                    hidden_B1S[row, 0, list(trial.hidden)] = True
            self.edits.append(HideKeys(hidden_B1S.to(device)))

    def __call__(self, call: Call) -> Call:
        edit = self.edits[self.calls]
        self.calls += 1
        return edit(call)
