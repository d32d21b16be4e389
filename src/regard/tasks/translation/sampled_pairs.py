"""Subword sampling on a GPU: processes sample the pairs of the next epoch."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from regard.data.sampled_epochs import SampledEpochs, Sampler
from regard.data.tokenizers.subwords import available_cores
from regard.tasks.translation.translation_data import Corpus
from regard.tasks.translation.translation_settings import TranslationSettings

__all__ = ["build_sampler", "sampled_epochs", "worker_count"]

MOST_PAIRS = 2**18
"""Maximum number of pairs of an epoch that are sampled before its first batch."""

MOST_WORKERS = 10
"""Maximum number of processes that sample subwords."""

_SHARED: WeakKeyDictionary[Corpus, dict[Any, SampledEpochs]] = WeakKeyDictionary()


def worker_count() -> int:
    """Return the number of processes that sample subwords on this machine."""
    return min(max(available_cores() - 2, 1), MOST_WORKERS)


def build_sampler(corpus: Corpus, settings: TranslationSettings) -> Sampler | None:
    """Return the object that samples the subwords of pairs, or None if they are not sampled."""
    data = settings.data
    if not data.subword_sampling:
        return None
    return Sampler(
        corpus.source,
        corpus.target,
        sample=data.subword_sampling,
        seed=settings.seed,
        longest=data.max_length,
    )


def sampled_epochs(corpus: Corpus, sampler: Sampler) -> SampledEpochs | None:
    """Return the sampled epochs of a corpus, or None if the corpus is too large.

    All tasks with the same corpus and options share them. A second corpus or seed, as in a run with several
    seeds, has no processes of its own and is sampled in this process.
    """
    if len(corpus.train) > MOST_PAIRS:
        return None
    key = sampler.sample, sampler.seed, sampler.longest
    shared = _SHARED.setdefault(corpus, {})
    if key not in shared:
        workers = 0 if any(_SHARED.values()) else worker_count()
        texts = [(pair.source, pair.target) for pair in corpus.split.train]
        if len(corpus.train):  # raise an error here if a tokenizer does not support sampling
            number = int(corpus.train.numbers[0])
            sampler.pair(0, number, texts[number])
        shared[key] = SampledEpochs(sampler, texts, corpus.train.numbers, workers)
        if workers:
            shared[key].begin(0)  # while the model is moved to the device
    return shared[key]
