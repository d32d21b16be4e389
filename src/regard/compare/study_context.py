"""StudyContext: what a study needs to measure: options, finished runs, test sentences and the cache."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from regard.compare.comparison_options import Options
from regard.compare.length_bins import SentenceSet, choose_bins, read_sentences
from regard.compare.run_cache import RunCache, TrainedRun, digest
from regard.compare.study import PlannedRun
from regard.decoding import Greedy
from regard.models import Model
from regard.select import Select, build_select
from regard.tasks.task_table import load
from regard.training.step_speed import fastest_threads

__all__ = ["StudyContext", "cpu_threads", "set_selection"]


def set_selection(model: Model, select: Any) -> None:
    """Change the selection of all attention layers of a model, such as to "best"; None changes nothing."""
    if select is None:
        return
    for module in model.modules():
        if isinstance(getattr(module, "select", None), Select):
            module.select = build_select(select)  # type: ignore[assignment]


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
        """The test sentences in classes of source length; read when they are first used."""
        return read_sentences(self.options)

    @cached_property
    def bins(self) -> list[str]:
        """The names of the classes of source length, such as "6-10"."""
        return [bin.name for bin in choose_bins(self.sentences, self.options)]

    def finished(self, runs: Iterable[PlannedRun]) -> Iterator[TrainedRun]:
        """Yield the runs whose training has finished."""
        for run in runs:
            trained = self.cache.finished(run)
            if trained is not None:
                yield trained

    def unfinished_notes(self, runs: Iterable[PlannedRun]) -> tuple[str, ...]:
        """Return a sentence for each run that has failed, and one for all that are not finished."""
        notes, open_runs = [], []
        for run in runs:
            if self.cache.finished(run) is not None:
                continue
            error = self.cache.failure(run)
            if error:
                notes.append(f"The training of {run.label}, seed {run.seed}, failed: {error}")
            else:
                open_runs.append(f"{run.label} (seed {run.seed})")
        if open_runs:
            notes.append(f"Not trained yet: {', '.join(open_runs)}.")
        return tuple(notes)

    def translations(self, run: TrainedRun, sources: Sequence[str], select: Any = None) -> list[str]:
        """Translate sentences with the last checkpoint of a run, by greedy search.

        select: the selection to use instead of that of the training, such as "best".

        The last checkpoint is used, not the best one, because the validation pairs select the best one and
        may be the test sentences here.
        """
        translator = load(
            run.folder, checkpoint="latest", device=self.cache.device, search=Greedy(), precision="float32"
        )
        set_selection(translator.model, select)
        return [each.text for each in translator.translate(list(sources), look=None)]

    def quality(self, run: TrainedRun, select: Any = None) -> list[dict[str, Any]]:
        """Return BLEU and exact match of a run in each class of source length, as rows of a table.

        select: as in translations().
        """
        bins = choose_bins(self.sentences, self.options)
        pairs = digest([[bin.sources, bin.targets] for bin in bins])
        about = {"bins": [bin.name for bin in bins], "pairs": pairs}
        about |= {} if select is None else {"select": select}
        about |= {} if self.sentences.unit == "words" else {"unit": self.sentences.unit}
        return self.cache.measured(run, "quality", about, lambda: self._scored(run, bins, select))

    def _scored(self, run: TrainedRun, bins: Sequence[Any], select: Any) -> list[dict[str, Any]]:
        from regard.evaluation import bleu, exact_match

        self.say(f"translating the test sentences with {run.label}, seed {run.seed} ...")
        sources = [source for bin in bins for source in bin.sources]
        translations, rows, start = self.translations(run, sources, select), [], 0
        for bin in bins:
            own = translations[start : start + len(bin)]
            start += len(bin)
            rows.append(
                {
                    "length": bin.name,
                    self.sentences.unit: statistics.fmean(map(self.sentences.length, bin.sources)),
                    "bleu": bleu(own, bin.targets).value,
                    "exact": exact_match(own, bin.targets).value,
                    "sentences": len(bin),
                }
            )
        return rows
