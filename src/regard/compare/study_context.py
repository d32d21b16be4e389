"""StudyContext: what a study needs to measure: options, finished runs, test sentences and the cache."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from regard.compare.comparison_options import Options
from regard.compare.length_bins import LengthBin, SentenceSet, choose_bins, read_sentences
from regard.compare.run_cache import Measured, RunCache, TrainedRun, digest
from regard.compare.study import PlannedRun
from regard.data.batch import Batch
from regard.decoding import Greedy
from regard.models import Model
from regard.select import Select, build_select
from regard.tasks.task_table import load
from regard.training.step_speed import fastest_threads

__all__ = ["StudyContext", "cpu_threads", "random_batch", "seeds_text"]

VOCABULARY, FIRST = 500, 4
"""Vocabulary size of random sentences, and the first token id that is not a special token."""

ROWS, LENGTH = 4, 24
"""Number and length of random sentences."""


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
