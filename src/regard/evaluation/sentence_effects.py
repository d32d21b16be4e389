"""Measure how the probability of an answer changes if a sentence of the story is masked."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.errors import printable
from regard.evaluation.erasure import effects, in_nats
from regard.viewing.html_document import safe

__all__ = ["SentenceEffect", "SentenceEffects", "StoryErasure"]

ROWS = 12
"""Maximum number of sentences in the printed table. For a longer story, the sentences with the largest
effects are printed."""


@dataclass(frozen=True)
class SentenceEffect:
    """The probability of the answer to a question about a story, if one sentence of the story is masked.

    index: the index of the sentence in the story, from 0.
    sentence: the sentence.
    weight: the sum of the attention weights of the sentence over all hops; None if they were not recorded.
    probability: the probability of the answer if the sentence is masked in every hop.
    """

    index: int
    sentence: str
    weight: float | None
    probability: float


@dataclass(frozen=True)
class SentenceEffects:
    """How the probability of an answer changes if a sentence of the story is masked; print() shows a table.

    answer: the answer.
    probability: the probability of the answer with all sentences.
    sentences: for each sentence, the probability of the answer if this sentence is masked.

    >>> effect = SentenceEffect(1, "Mary went home.", 0.9, 0.25)
    >>> print(SentenceEffects("home", 0.75, (effect,)))
       sentence         sum of weights  p(home) if hidden
    2  Mary went home.           0.900     0.250 (-0.500)
    """

    answer: str
    probability: float
    sentences: tuple[SentenceEffect, ...]

    def summary(self) -> str:
        """Return a text for a picture: the sentence whose masking gives the lowest probability."""
        if not self.sentences:
            return ""
        lowest = min(self.sentences, key=lambda each: each.probability)
        change = f"from {self.probability:.3f} to {lowest.probability:.3f}"
        sentence = repr(printable(lowest.sentence))
        return (
            f"hiding sentence {lowest.index + 1}, {sentence}, changes the probability of "
            f"{printable(self.answer)} {change}, the lowest of all sentences"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer, its probability, and its probability without each sentence as a dict for JSON.

        Sentences are numbered from 1.
        """
        rows = [
            {"number": each.index + 1, "weight": each.weight, "probability": each.probability}
            for each in self.sentences
        ]
        return {"answer": self.answer, "probability": self.probability, "sentences": rows}

    def html(self) -> str:
        """Return an HTML table: the probability of the answer without each sentence. Texts are escaped."""
        rows = "".join(
            f'<tr><th scope="row" dir="auto" lang="">{safe(each.sentence)}</th>'
            f"<td>{self._change(each)}</td></tr>"
            for each in self._largest()
        )
        return f"<table><tbody>{rows}</tbody></table>"

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("", justify="right")
        table.add_column("sentence", overflow="fold")
        weighted = any(each.weight is not None for each in self.sentences)
        if weighted:
            table.add_column("sum of weights", justify="right")
        table.add_column(Text(f"p({printable(self.answer)}) if hidden"), justify="right")
        for each in self._largest():
            weight = [f"{each.weight:.3f}" if each.weight is not None else ""] if weighted else []
            table.add_row(str(each.index + 1), Text(printable(each.sentence)), *weight, self._change(each))
        return table

    def __str__(self) -> str:
        file = io.StringIO()
        Console(file=file, width=100).print(self)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def _largest(self) -> list[SentenceEffect]:
        """Return the sentences with the largest effects on the answer, ROWS or fewer, in story order."""
        order = sorted(self.sentences, key=lambda each: -abs(self.probability - each.probability))[:ROWS]
        return sorted(order, key=lambda each: each.index)

    def _change(self, each: SentenceEffect) -> str:
        return f"{each.probability:.3f} ({each.probability - self.probability:+.3f})"


@dataclass(frozen=True)
class StoryErasure:
    """How much the answers of a memory network depend on the sentences that its hops attend to.

    A hop is one attention of the network to the sentences of the story.

    looked: for each question, the decrease of the log-probability of the answer, in nats, if the sentence
        with the largest weight is masked in every hop.
    random: for each question, the decrease if another sentence, sampled at random, is masked.
    facts: for each question, the mean decrease if one of its supporting facts is masked; NaN for a question
        without known facts.
    skipped: number of questions that were not measured, because their story has one sentence only.

    >>> print(StoryErasure((2.0, 4.0), (0.5, 0.0), (3.0, math.nan), 1))
    hiding the most attended sentence lowers the log-probability of the answer by 3.0 nats on average;
    another sentence by 0.25; a supporting fact by 3.0 (2 questions)
    """

    looked: tuple[float, ...]
    random: tuple[float, ...]
    facts: tuple[float, ...] = ()
    skipped: int = 0

    def means(self) -> dict[str, float | None]:
        """Return the means over questions, in nats, as a dict with the keys "looked", "random" and "facts".

        A mean is None if there are no values to average.
        """
        return {name: _mean(getattr(self, name)) for name in ("looked", "random", "facts")}

    @property
    def better(self) -> float:
        """The fraction of questions for which the most attended sentence matters more than a random sentence.

        For these questions, `looked` is larger than `random`. NaN if there are no questions.
        """
        wins = [looked > other for looked, other in zip(self.looked, self.random, strict=True)]
        return sum(wins) / len(wins) if wins else math.nan

    def __str__(self) -> str:
        if not self.looked:
            return "the stories have too few sentences to measure the effect of hiding a sentence"
        known = {name: mean for name, mean in self.means().items() if mean is not None}
        texts = dict(zip(known, in_nats(*known.values()), strict=True))
        names = {"random": "another sentence", "facts": "a supporting fact"}
        others = {title: texts[name] for name, title in names.items() if name in texts}
        changed = effects(texts["looked"], others, " of the answer").replace("; another", ";\nanother")
        count = f"{len(self.looked):,} question{'s' * (len(self.looked) != 1)}"
        return f"hiding the most attended sentence {changed} ({count})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the number of questions, the means over them in nats, and `better`."""
        better = None if math.isnan(self.better) else self.better
        return {"questions": len(self.looked), "skipped": self.skipped, **self.means(), "better": better}


def _mean(values: Sequence[float]) -> float | None:
    known = [each for each in values if not math.isnan(each)]
    return float(numpy.mean(known)) if known else None
