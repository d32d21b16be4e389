"""Test sentences in classes of source length."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.data import korean_english
from regard.errors import ArgumentError, DataError, message
from regard.tasks.translation.data import read_split
from regard.tasks.translation.settings import Data
from regard.training.settings import build

if TYPE_CHECKING:
    from regard.compare.study_context import StudyContext

BOUNDS = (5, 9, 14, 19, 24, 34, 44, 60, 80, 120, 200)
"""Upper bounds of the classes of source length that choose_bins() tries, in words."""

SMALLEST = 20
"""Smallest number of sentences of a class. BLEU of fewer sentences says little."""

LONGEST_TRAINED = 24
"""Largest source length of the built-in training data, in words. Of 20,000 pairs, 2 are longer (25 words)."""

GENERATED = {"test": 40, "long": 10}
"""Split of the built-in corpus -> sentences that are generated for each sentence that a class keeps."""


@dataclass(frozen=True)
class SentenceSet:
    """Sentence pairs that no model was trained on.

    pairs: the pairs of source and target.
    name: where they come from, for the titles of tables.
    longest_trained: the largest source length of the training data, if it is known.
    unit: what the length of a source counts: "words" or "characters".
    fewest: the smallest number of classes of source length.
    """

    pairs: Sequence[tuple[str, str]]
    name: str
    longest_trained: int | None = None
    unit: str = "words"
    fewest: int = 2

    def length(self, source: str) -> int:
        """Return the length of a source in `unit`."""
        return len(source.split() if self.unit == "words" else source)


def read_sentences(context: StudyContext) -> SentenceSet:
    """Return the test sentences of a comparison.

    For the built-in corpus, they are sentences of its test split and of its split of long sentences. For
    files, they are the validation pairs: those of the validation files, or pairs held out from training.
    """
    if context.built_in:
        pairs = [
            (each.source, each.target)
            for split, times in GENERATED.items()
            for each in korean_english(split, times * context.sentences_per_class)
        ]
        return SentenceSet(pairs, "test sentences of the built-in corpus", LONGEST_TRAINED)
    split = read_split(build(Data, context.settings["data"], "the settings [data]"))
    longest = max((len(pair.source.split()) for pair in split.train), default=0)
    pairs = [(pair.source, pair.target) for pair in split.valid]
    return SentenceSet(pairs, "validation pairs, which are not used for training", longest)


def choose_bins(sentences: SentenceSet, context: StudyContext) -> dict[str, list[tuple[str, str]]]:
    """Divide the test sentences into classes of source length, in words or in characters, such as "6-10".

    Classes with fewer than SMALLEST sentences are joined with their neighbour. At most
    context.sentences_per_class pairs are kept in each class. Raise an error if there are fewer classes than
    sentences.fewest.
    """
    chosen = tuple(sorted(context.bounds)) or BOUNDS
    if chosen[0] < 1:
        expected = f"numbers of {sentences.unit}, 1 or more"
        raise ArgumentError(message("--length-bins", f"got {chosen}", expected=expected))
    groups: list[list[tuple[str, str]]] = [[] for _ in (*chosen, None)]
    for pair in sentences.pairs:
        groups[bisect.bisect_left(chosen, sentences.length(pair[0]))].append(pair)
    smallest = min(SMALLEST, context.sentences_per_class)
    joined: list[list[tuple[str, str]]] = []
    for group in filter(None, groups):
        if joined and min(len(joined[-1]), len(group)) < smallest:
            joined[-1] = joined[-1] + group
        else:
            joined.append(group)
    if context.bounds and len(joined) <= len(chosen):
        counts = ", ".join(str(len(group)) for group in groups)
        problem = f"the classes have {counts} sentences; the last one is for longer sentences"
        hint = f"choose bounds so that each class has at least {smallest} sentences"
        raise DataError(message("--length-bins", problem, hint=hint))
    if len(joined) < sentences.fewest:
        longest = max((sentences.length(source) for source, _ in sentences.pairs), default=0)
        problem = (
            f"the data are too short for classes of source length: {len(sentences.pairs):,} test sentences, "
            f"the longest has {longest} {sentences.unit}"
        )
        hint = (
            f"two classes of at least {smallest} sentences are needed; give more validation pairs, or set "
            "the classes, such as --length-bins 3,6"
        )
        raise DataError(message("regard compare", problem, hint=hint))
    bins = {}
    for group in joined:
        lengths = [sentences.length(source) for source, _ in group]
        bins[f"{min(lengths)}-{max(lengths)}"] = group[: context.sentences_per_class]
    return bins
