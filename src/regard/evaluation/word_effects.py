"""Measure how the probability of the predicted class of a text changes if one of its words is removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from rich.table import Table
from rich.text import Text

from regard.data.batch import UNK
from regard.errors import ArgumentError, message, printable
from regard.evaluation.classifier_erasure import label_scores
from regard.evaluation.erasure import Trial
from regard.evaluation.text_classifier import SIDES, Classification, Line, TextClassifier
from regard.viewing.terminal import Shown

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
