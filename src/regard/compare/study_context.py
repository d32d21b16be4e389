"""What a study needs to measure: options, finished runs, the cache, and test sentences by source length."""

from __future__ import annotations

import bisect
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from regard.compare.comparison_options import Options
from regard.compare.run_cache import Measured, RunCache, TrainedRun, digest
from regard.compare.study import PlannedRun
from regard.data import korean_english
from regard.data.batch import Batch
from regard.decoding import Greedy
from regard.errors import ArgumentError, DataError, message
from regard.models import Model
from regard.select import Select, build_select
from regard.tasks.task_table import load
from regard.tasks.translation.data import read_split
from regard.tasks.translation.settings import Data
from regard.training.settings import build
from regard.training.step_speed import fastest_threads

__all__ = [
    "LengthBin",
    "SentenceSet",
    "StudyContext",
    "choose_bins",
    "cpu_threads",
    "random_batch",
    "read_sentences",
    "seeds_text",
]

VOCABULARY, FIRST = 500, 4
"""Vocabulary size of random sentences, and the first token id that is not a special token."""

ROWS, LENGTH = 4, 24
"""Number and length of random sentences."""

BOUNDS = (5, 9, 14, 19, 24, 34, 44, 60, 80, 120, 200)
"""Upper bounds of the classes of source length that choose_bins() tries, in words."""

SMALLEST = 20
"""Smallest number of sentences of a class. BLEU of fewer sentences says little."""

LONGEST_TRAINED = 24
"""Largest source length of the built-in training data, in words. Of 20,000 pairs, 2 are longer (25 words)."""

GENERATED = {"test": 40, "long": 10}
"""Split of the built-in corpus -> sentences that are generated for each sentence that a class keeps."""


def seeds_text(count: int) -> str:
    """Return a number of seeds as text: "3 seeds"."""
    return f"{count} seed{'s' * (count != 1)}"


def random_batch(seed: int, rows: int = ROWS, length: int = LENGTH, vocabulary: int = VOCABULARY) -> Batch:
    """Return pairs of random sentences of one length, EOS included, for models that are not trained.

    >>> random_batch(0).source.shape
    torch.Size([4, 24])
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FIRST, vocabulary, (2, rows, length - 1), generator=generator).tolist()
    return Batch.collate(*ids)


@contextmanager
def cpu_threads(device: str, threads: int | None) -> Iterator[None]:
    """Set the number of CPU threads of this process to `threads`; if it is None, on a CPU, to the fastest.

    `regard train` chooses the number of threads in the same way.
    """
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        elif device == "cpu" and before > 1 and "OMP_NUM_THREADS" not in os.environ:
            fastest_threads(before)
        yield
    finally:
        torch.set_num_threads(before)


class StudyContext:
    """What the studies of one comparison share while they measure.

    options: the options of the comparison.
    cache: the cache of training runs and measurements.
    say: prints a line of progress.
    """

    def __init__(self, options: Options, cache: RunCache, say: Callable[[str], None]):
        self.options, self.cache, self.say = options, cache, say

    @cached_property
    def sentences(self) -> SentenceSet:
        """The test sentences; read when they are first used."""
        return read_sentences(self.options)

    @cached_property
    def bins(self) -> list[LengthBin]:
        """The test sentences in classes of source length."""
        return choose_bins(self.sentences, self.options)

    def beyond(self, length: str) -> bool:
        """Return whether all sources of a class, such as "25-34", are longer than those of the training."""
        longest = self.sentences.longest_trained
        return bool(longest) and int(length.split("-")[0]) > (longest or 0)

    def finished(self, runs: Sequence[PlannedRun]) -> list[TrainedRun]:
        """Return the runs whose training has finished."""
        return [run for run in map(self.cache.finished, runs) if run is not None]

    def unfinished_notes(self, runs: Sequence[PlannedRun]) -> tuple[str, ...]:
        """Return a sentence for each run that has failed, and one for all that are not finished."""
        missing = [(run, self.cache.failure(run)) for run in runs if self.cache.finished(run) is None]
        notes = [f"The training of {run.label}, seed {run.seed}, failed: {e}" for run, e in missing if e]
        waiting = ", ".join(f"{run.label} (seed {run.seed})" for run, error in missing if not error)
        return (*notes, f"Not trained yet: {waiting}.") if waiting else tuple(notes)

    def measured(self, name: str, about: Any, measure: Callable[[], Measured]) -> Measured:
        """Return a measurement that needs no training, from the cache if it has been made before."""
        return self.cache.measured(None, name, about, measure)

    def searching(self, run: TrainedRun, select: Any = None) -> Any:
        """Load the last checkpoint of a run as a translator with greedy search.

        select: the selection to use instead of that of the training, such as "best".

        The last checkpoint is used, not the best one, because the validation pairs select the best one and
        may be the test sentences here.
        """
        device = self.cache.device
        translator = load(
            run.folder, checkpoint="latest", device=device, search=Greedy(), precision="float32"
        )
        for module in () if select is None else translator.model.modules():
            if isinstance(getattr(module, "select", None), Select):
                module.select = build_select(select)
        return translator

    def reading(
        self, run: TrainedRun, rows: int, pairs: Sequence[tuple[str, str]] = ()
    ) -> tuple[Model, Batch]:
        """Load the last checkpoint of a run on the CPU, and encode test sentences of one length.

        pairs: the sentences to choose from. Default: all test sentences.
        """
        translator = load(run.folder, checkpoint="latest", device="cpu")
        sides = (translator.source_tokenizer, translator.target_tokenizer)
        return translator.model.eval(), equal_lengths(pairs or self.sentences.pairs, *sides, rows=rows)

    def quality(self, run: TrainedRun, select: Any = None) -> list[dict[str, Any]]:
        """Return BLEU and exact match of a run in each class of source length, as rows of a table.

        select: as in searching().
        """
        pairs = digest([[bin.sources, bin.targets] for bin in self.bins])
        about = {"bins": [bin.name for bin in self.bins], "pairs": pairs}
        about |= {} if select is None else {"select": select}
        about |= {} if self.sentences.unit == "words" else {"unit": self.sentences.unit}
        return self.cache.measured(run, "quality", about, lambda: self._scored(run, select))

    def _scored(self, run: TrainedRun, select: Any) -> list[dict[str, Any]]:
        from regard.evaluation import bleu, exact_match

        self.say(f"translating the test sentences with {run.label}, seed {run.seed} ...")
        sources = [source for bin in self.bins for source in bin.sources]
        texts = iter(each.text for each in self.searching(run, select).translate(sources, look=None))
        rows = []
        for bin in self.bins:
            own = [next(texts) for _ in bin.sources]
            rows.append(
                {
                    "length": bin.name,
                    self.sentences.unit: statistics.fmean(map(self.sentences.length, bin.sources)),
                    "bleu": bleu(own, bin.targets).value,
                    "exact": exact_match(own, bin.targets).value,
                    "sentences": len(own),
                }
            )
        return rows


def equal_lengths(pairs: Sequence[tuple[str, str]], source: Any, target: Any, rows: int) -> Batch:
    """Return a batch of pairs whose sources have the same number of tokens, and whose targets too.

    The lengths are the most frequent ones among the longer half of the pairs.
    """
    encoded = [(source.encode(left), target.encode(right)) for left, right in pairs[:2000]]
    middle = statistics.median(len(left) for left, _ in encoded)
    longer = [(left, right) for left, right in encoded if len(left) > middle] or encoded
    lengths = Counter((len(left), len(right)) for left, right in longer).most_common(1)[0][0]
    kept = [pair for pair in longer if (len(pair[0]), len(pair[1])) == lengths][:rows]
    return Batch.collate([left for left, _ in kept], [right for _, right in kept])


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


class LengthBin(NamedTuple):
    """The test sentences of one class of source length.

    name: the class, such as "6-10".
    sources, targets: the sentences.
    """

    name: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]


def read_sentences(options: Options) -> SentenceSet:
    """Return the test sentences of a comparison.

    For the built-in corpus, they are sentences of its test split and of its split of long sentences. For
    files, they are the validation pairs: those of the validation files, or pairs held out from training.
    """
    if options.built_in:
        pairs = [
            (each.source, each.target)
            for split, times in GENERATED.items()
            for each in korean_english(split, times * options.sentences)
        ]
        return SentenceSet(pairs, "test sentences of the built-in corpus", LONGEST_TRAINED)
    split = read_split(build(Data, options.data, "the settings [data]"))
    longest = max((len(pair.source.split()) for pair in split.train), default=0)
    pairs = [(pair.source, pair.target) for pair in split.valid]
    return SentenceSet(pairs, "validation pairs, which are not used for training", longest)


def choose_bins(sentences: SentenceSet, options: Options) -> list[LengthBin]:
    """Divide the test sentences into classes of source length, in words or in characters.

    Classes with fewer than SMALLEST sentences are joined with their neighbour. At most options.sentences
    pairs are kept in each class. Raise an error if there are fewer classes than sentences.fewest.
    """
    chosen = tuple(sorted(options.bins)) or BOUNDS
    if any(bound < 1 for bound in chosen):
        raise ArgumentError(
            message("--length-bins", f"got {chosen}", expected=f"numbers of {sentences.unit}, 1 or more")
        )
    groups: list[list[tuple[str, str]]] = [[] for _ in (*chosen, None)]
    for pair in sentences.pairs:
        groups[bisect.bisect_left(chosen, sentences.length(pair[0]))].append(pair)
    smallest = min(SMALLEST, options.sentences)
    joined: list[list[tuple[str, str]]] = []
    for group in groups:
        if joined and (len(joined[-1]) < smallest or (group and len(group) < smallest)):
            joined[-1] = joined[-1] + group
        elif group:
            joined.append(group)
    if len(joined) > 1 and len(joined[0]) < smallest:
        joined[:2] = [joined[0] + joined[1]]
    if options.bins and len(joined) <= len(chosen):
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
    return [
        _bin(group[: options.sentences], [sentences.length(source) for source, _ in group])
        for group in joined
    ]


def _bin(kept: Sequence[tuple[str, str]], lengths: Sequence[int]) -> LengthBin:
    sources, targets = zip(*kept, strict=True)
    return LengthBin(f"{min(lengths)}-{max(lengths)}", sources, targets)
