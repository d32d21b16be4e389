"""Erasure for classifiers: does the prediction depend on the words that the pooling attends to?

The pooling is the attention that combines the encoder states of all words into one vector. A word is masked
in the pooling, or replaced by UNK before the encoder (see erasure.py). hide_each_word() does so for each
word of one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.call import Call
from regard.data.batch import UNK, LabelledBatch
from regard.errors import ArgumentError, message, printable
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
    SIDES,
    Classification,
    Line,
    TextClassifier,
    batches_by_length,
    log_probabilities,
)
from regard.sites import scope
from regard.viewing.terminal import Shown


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


MEASURED = 400
"""Maximum number of words of a text whose effect on the probability is measured. Later words are skipped."""

ROWS = 12
"""Maximum number of words in the printed table. The words that change the probability the most are shown."""

SMALLEST = 0.0005
"""If no word changes the probability by more than this, WordEffects.sentence() names no word."""


@dataclass(frozen=True)
class WordEffect:
    """The probability of the predicted class of a text without one word.

    side: "first", or "second" for the second text of a pair.
    index: the index of the word in its text.
    word: the word.
    weight: the weight of the word in the pooling; None if the pooling is not attention.
    hidden: the probability if the word is masked in the pooling; None if the pooling is not attention, or if
        the text has no other word.
    unknown: the probability if the word is replaced by UNK.
    known: False if the model reads UNK instead of the word already, because its vocabulary has no such word.
    """

    side: str
    index: int
    word: str
    weight: float | None
    hidden: float | None
    unknown: float
    known: bool = True


@dataclass(frozen=True)
class WordEffects(Shown):
    """How the probability of the predicted class changes without each word; print() shows it as a table.

    label: the predicted class.
    probability: the probability of the predicted class with all words.
    words: the probability without each word of the text, or of both texts of a pair.

    >>> effect = WordEffect("first", 1, "good", 0.9, 0.5, 0.25)
    >>> print(WordEffects("pos", 0.75, (effect,)))
    word  weight  p(pos) if hidden  if unknown
    good   0.900     0.500 (-0.250)  0.250 (-0.500)
    """

    label: str
    probability: float
    words: tuple[WordEffect, ...]

    def decreases(self, side: str, count: int) -> list[float]:
        """Return how much the probability decreases without each of the first `count` words of one text.

        side: "first", or "second" for the second text of a pair.

        The word is masked in the pooling, or replaced by UNK if the pooling is not attention. If the
        probability increases, the value is 0.
        """
        without = {each.index: each for each in self.words if each.side == side}
        probabilities = [self._without(without[index]) for index in range(count)]
        return [max(self.probability - each, 0.0) for each in probabilities]

    def sentence(self) -> str:
        """Return a sentence for a picture: which word lowers the probability of the label most if removed.

        Words that are not in the vocabulary are not named: the model does not read them as these words. If no
        word changes the probability by more than 0.0005 (SMALLEST), the sentence says so.
        """
        if not self.words:
            return ""
        if all(abs(self.probability - self._without(each)) <= SMALLEST for each in self.words):
            masked = any(each.hidden is not None for each in self.words)
            removed = "hiding" if masked else "replacing"
            end = "" if masked else " by <unk>"
            chance = f"the probability of {printable(self.label)} ({self.probability:.3f})"
            return f"{removed} any one word{end} changes {chance} by at most {SMALLEST}"
        known = [each for each in self.words if each.known]
        if not known:
            return "no word of the text is in the vocabulary of the model"
        strongest = min(known, key=self._without)
        word, after = repr(printable(strongest.word)), self._without(strongest)
        removed = f"hiding {word}" if strongest.hidden is not None else f"replacing {word} by <unk>"
        change = (
            f"changes the probability of {printable(self.label)} from {self.probability:.3f} to {after:.3f}"
        )
        which = "all words" if len(known) == len(self.words) else "the words in the vocabulary"
        return f"{removed} {change}, the lowest of {which}"

    def to_dict(self) -> dict[str, Any]:
        """Return the label, its probability, and its probability without each word as a dict for JSON."""
        return {
            "label": self.label,
            "probability": self.probability,
            "words": [dict(vars(each)) for each in self.words],
        }

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        pairs = len({each.side for each in self.words}) > 1
        for name in ("text", "word") if pairs else ("word",):
            table.add_column(name, overflow="fold")
        attends = any(each.weight is not None for each in self.words)
        chance = f"p({printable(self.label)})"
        for name in ("weight", f"{chance} if hidden", "if unknown") if attends else (f"{chance} if unknown",):
            table.add_column(Text(name), justify="right")
        largest = sorted(self.words, key=lambda each: -abs(self.probability - self._without(each)))[:ROWS]
        for each in (word for word in self.words if word in largest):
            weight = [] if not attends else ["" if each.weight is None else f"{each.weight:.3f}"]
            after = [each.hidden, each.unknown] if attends else [each.unknown]
            word = [each.side] * pairs + [printable(each.word)]
            changes = list(map(self._change, after))
            changes[-1] = changes[-1] if each.known else "unknown already"
            table.add_row(*map(Text, word), *weight, *changes)
        return table

    def _without(self, word: WordEffect) -> float:
        return word.unknown if word.hidden is None else word.hidden

    def _change(self, after: float | None) -> str:
        return "" if after is None else f"{after:.3f} ({after - self.probability:+.3f})"


def hide_each_word(classifier: TextClassifier, line: Line) -> WordEffects:
    """Measure the probability of the predicted class without each word, one word at a time.

    There are two measurements for each word. For "hidden", the word is masked in the pooling, if the pooling
    is attention. For "unknown", the word is replaced by UNK before the encoder.

    classifier: the classifier.
    line: a text, or a pair of texts. The first 400 words of each text are measured.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> from regard.named_models.classifiers import build_classifier
    >>> tokenizer = train_tokenizer("word", ["a good film", "a bad film"])
    >>> model = build_classifier("lstm", tokenizer.size, 2, width=8)
    >>> effects = hide_each_word(TextClassifier(model, tokenizer, ["neg", "pos"]), "a good film")
    >>> [each.word for each in effects.words]
    ['a', 'good', 'film']
    """
    result = classifier.classify(line)
    if not isinstance(result, Classification):
        raise ArgumentError(message("hide_each_word()", "`line` has several lines", expected="one line"))
    if result.label is None:
        problem = "the text is blank, or the tokenizer finds no tokens in it"
        raise ArgumentError(message("hide_each_word()", problem))
    site, trials, words = classifier.model.pool_site, list[Trial](), list[tuple[int, int, Trial, Trial]]()
    for side, read in enumerate(result.texts):
        for index, places in enumerate(read.places[:MEASURED]):
            hidden, unknown = (Trial(0, side=side, **{way: tuple(places)}) for way in ("hidden", "unknown"))
            words.append((side, index, hidden, unknown))
            trials.append(unknown)
            if site is not None and len(read.places) > 1:  # one word must remain
                trials.append(hidden)
    chances = dict(zip(trials, numpy.exp(label_scores(classifier, [result], trials)).tolist(), strict=True))
    effects = []
    for side, index, hidden, unknown in words:
        read = result.texts[side]
        weight = None if site is None or read.weights is None else read.weights[index]
        known = any(read.tokens[place] != UNK for place in read.places[index])
        place = SIDES[side], index, read.words[index], weight
        effects.append(WordEffect(*place, chances.get(hidden), chances[unknown], known))
    return WordEffects(result.label, float(result.probability or 0.0), tuple(effects))
