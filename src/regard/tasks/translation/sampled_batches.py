"""SampledBatches: batches of sentence pairs whose subwords are sampled before the batches are formed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.data import Batches
from regard.data.batch import Batch
from regard.data.sampled_epochs import SampledEpochs

__all__ = ["SampledBatches"]


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
