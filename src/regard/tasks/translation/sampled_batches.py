"""SampledBatches: batches of sentence pairs whose subwords are sampled before the batches are formed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from regard.data import Batches
from regard.data.batch import Batch
from regard.data.sampled_epochs import SampledEpochs, Sampler
from regard.data.tokenizers.subwords import available_cores
from regard.tasks.translation.translation_data import Corpus

__all__ = ["SampledBatches", "can_sample_epochs", "sampled_epochs", "worker_count"]

MOST_PAIRS = 2**18
"""Maximum number of pairs of an epoch that are sampled before its first batch."""

MOST_WORKERS = 6
"""Maximum number of processes that sample subwords."""

_SHARED: WeakKeyDictionary[Corpus, dict[Any, SampledEpochs]] = WeakKeyDictionary()


def can_sample_epochs(corpus: Corpus) -> bool:
    """Return whether the corpus is small enough to sample the subwords of a whole epoch ahead."""
    return len(corpus.train) <= MOST_PAIRS


def worker_count() -> int:
    """Return the number of processes that sample subwords on this machine."""
    return min(max(available_cores() - 2, 1), MOST_WORKERS)


def sampled_epochs(corpus: Corpus, sampler: Sampler) -> SampledEpochs:
    """Return the sampled epochs of a corpus. All tasks with the same corpus and options share them."""
    shared = _SHARED.setdefault(corpus, {})
    key = sampler.sample, sampler.seed, sampler.longest
    if key not in shared:
        texts = [(pair.source, pair.target) for pair in corpus.split.train]
        if len(corpus.train):  # raise an error here if a tokenizer does not support sampling
            number = int(corpus.train.numbers[0])
            sampler.pair(0, number, texts[number])
        shared[key] = SampledEpochs(sampler, texts, corpus.train.numbers, worker_count())
        shared[key].begin(0)  # while the model is moved to the device
    return shared[key]


class SampledBatches:
    """Batches of pairs with sampled subwords. Pairs of similar sampled lengths are in the same batch.

    If the batches were formed before the subwords are sampled, they would have about twice as much padding,
    because a sampled sentence can be much longer.

    epochs: the sampled pairs of each epoch.
    options: arguments of Batches().
    """

    def __init__(self, epochs: SampledEpochs, **options: Any):
        self._epochs, self._options = epochs, options
        self._lengths: dict[int, int] = {}

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch from batch `start` on."""
        return self._of(epoch).epoch(epoch, start)

    def len_epoch(self, epoch: int) -> int:
        """Return the number of batches of an epoch. It can differ between epochs."""
        if epoch not in self._lengths:
            self._lengths[epoch] = self._of(epoch).len_epoch(epoch)
        return self._lengths[epoch]

    def largest(self, epoch: int) -> int:
        """Return the index of the batch of an epoch that has the most tokens, including padding."""
        return self._of(epoch).largest(epoch)

    def _of(self, epoch: int) -> Batches:
        batches = Batches(self._epochs.encoded(epoch), **self._options)
        self._lengths[epoch] = batches.len_epoch(epoch)
        return batches
