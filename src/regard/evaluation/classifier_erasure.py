"""Erasure for classifiers: does the prediction depend on the words that the pooling attends to?

The pooling is the attention that combines the encoder states of all words into one vector. A word is masked
in the pooling, or replaced by UNK before the encoder (see erasure.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.call import Call
from regard.data.batch import UNK, LabelledBatch
from regard.errors import ArgumentError, message
from regard.evaluation.attribution import METHODS, Attribution, InputVectors, attribute
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
from regard.evaluation.text_classifier import (
    Classification,
    Line,
    TextClassifier,
    batches_by_length,
    log_probabilities,
)
from regard.sites import scope


@dataclass(frozen=True)
class ClassifierErasure(ErasureMeans):
    """The result of erase_words(): how much predicted labels depend on the words that the pooling attends to.

    measured: the measurement of each text; a pair has two texts.
    k: number of words that were removed from each text.
    skipped: number of texts that were not measured, because they have at most k words.

    >>> text = Effect(0, 0, "pos", (1,), 0.9, 3.0, 0.5, 4.0, 1.0)
    >>> print(ClassifierErasure((text,), k=1))
    hiding the most attended word lowers the log-probability of the predicted label by 3.0 nats on average;
    a random word by 0.50 (1 text)
    """

    measured: tuple[Effect, ...] = field(repr=False)
    k: int = 1
    skipped: int = 0

    of = " of the predicted label"

    @property
    def texts(self) -> tuple[Effect, ...]:
        """The measurement of each text. Its item is the line; its place is 1 for a second text."""
        return self.measured

    @property
    def pairs(self) -> int:
        """The number of pairs that were measured, or 0 if single texts were classified.

        A pair is counted if at least one of its texts was measured. The result is also 0 if no second text
        was measured.
        """
        has_seconds = any(each.place for each in self.measured)
        return len({each.item for each in self.measured}) if has_seconds else 0

    @property
    def counts(self) -> str:
        pairs = f" of {counted(self.pairs, 'pair')}" if self.pairs else ""
        return f"{counted(len(self.measured), 'text')}{pairs}"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: k, the number of measured and skipped texts, and means over the texts.

        A mean that is undefined, because there are no texts, is None.
        """
        means = self.numbers("weight", "hidden", "hidden_random", "unknown", "unknown_random")
        return {"k": self.k, "texts": len(self.measured), "skipped": self.skipped, **means}


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
    sampling = Sampling(k, samples, seed).check(call)
    site = classifier.model.pool_site
    if site is None:
        problem = "the pooling of this classifier does not use attention"
        raise ArgumentError(message(call, problem, hint='use a classifier with pooling="attention"'))
    results = classifier.classify(lines, look=site)
    results = [results] if isinstance(results, Classification) else results
    plans, skipped = list[Plan](), 0
    for line, result in enumerate(results):
        for side, read in enumerate(result.texts):
            if result.label is None or read.weights is None or len(read.places) <= k:
                skipped += 1
                continue
            output = Output(Trial(line, side=side), side, result.label, read.weights, read.places)
            plans.append(Plan(output, sampling))
    scores = run_trials(plans, lambda trials: label_scores(classifier, results, trials))
    return ClassifierErasure(tuple(plan.effect(scores) for plan in plans), k, skipped)


def attribute_label(
    classifier: TextClassifier, result: Classification, side: int = 0, methods: Iterable[str] = METHODS
) -> Attribution:
    """Compute how much the predicted label depends on each word of a text, by erasure and gradients.

    classifier: the classifier; its pooling needs no attention.
    result: a result of this classifier.
    side: the text of a pair: 0, or 1 for the second text.
    methods: names of attribution.METHODS.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> from regard.named_models.classifiers import build_classifier
    >>> tokenizer = train_tokenizer("word", ["a good film", "a bad film"])
    >>> model = build_classifier("gru", tokenizer.size, 2, width=8)
    >>> classifier = TextClassifier(model, tokenizer, ["neg", "pos"])
    >>> attribute_label(classifier, classifier.classify("a good film")).inputs
    ('a', 'good', 'film')
    """
    model, label = classifier.model, classifier.labels.index(str(result.label))
    texts = [[*each.tokens[:-1]] for each in result.texts]

    def scores(tokens_BS: Tensor) -> Tensor:
        sides = [[each] * len(tokens_BS) for each in texts]
        batch = LabelledBatch.collate(sides[0], sides[1] if len(sides) > 1 else None)
        return model(batch.to(tokens_BS.device)).float().log_softmax(-1)[:, label, None]

    read, table = result.texts[side], model.embedding
    vectors = InputVectors.of_tokens(model, table, read.tokens, scores, call=side)
    values = {} if read.weights is None else {"attention": numpy.asarray([read.weights], numpy.float64)}
    values |= attribute(vectors, [[0]], read.places, methods)
    return Attribution((str(result.label),), read.words, values, title=f"{result.label}: {read.text}")


def label_scores(
    classifier: TextClassifier, results: Sequence[Classification], trials: Sequence[Trial]
) -> NDArray[numpy.float64]:
    """Return the log-probability of the predicted label of the line of each trial, (trials,).

    Hidden words are masked in the pooling.

    results: the classification of each line, the items of the trials. A line is a text or a pair of texts.
    """
    model, site = classifier.model, classifier.model.pool_site
    lengths = {
        row: max(len(read.tokens) for read in results[trial.item].texts) for row, trial in enumerate(trials)
    }
    log_probabilities_N = numpy.zeros(len(trials))
    for rows in batches_by_length(lengths, classifier.tokens_per_batch):
        chosen = [trials[row] for row in rows]
        sides, edits = [], list[HideKeys]()
        for side in range(len(results[0].texts)):
            tokens = [list(results[trial.item].texts[side].tokens[:-1]) for trial in chosen]
            hidden_B1S = torch.zeros(len(chosen), 1, max(map(len, tokens)) + 1, dtype=torch.bool)
            for row, trial in enumerate(chosen):
                if trial.side == side:
                    hidden_B1S[row, 0, list(trial.hidden)] = True
                    for place in trial.unknown:
                        tokens[row][place] = UNK
            sides.append(tokens)
            edits.append(HideKeys(hidden_B1S.to(next(model.parameters()).device)))
        calls = iter(edits)  # the pooling is called once for each text of a pair
        labels = [classifier.labels.index(str(results[trial.item].label)) for trial in chosen]

        def edit(call: Call, calls: Iterator[HideKeys] = calls) -> Call:
            return next(calls)(call)

        with nullcontext() if site is None else scope(edit=edit, at=site):
            batch = LabelledBatch.collate(sides[0], sides[1] if len(sides) > 1 else None)
            log_probabilities_N[rows] = log_probabilities(model, batch)[numpy.arange(len(labels)), labels]
    return log_probabilities_N
