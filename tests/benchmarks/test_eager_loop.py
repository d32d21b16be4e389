"""The eager loop of the recurrent benchmark computes the same loss and gradients as Regard."""

from __future__ import annotations

import torch

from benchmarks.eager_loop import eager_loss, our_loss
from regard.data.batch import Batch
from regard.models.bahdanau import Bahdanau


def test_eager_loop_has_the_loss_and_gradients_of_regard():
    torch.manual_seed(0)
    model = Bahdanau(source_size=20, target_size=15, width=8, embedding=6)
    batch = Batch.collate([[4, 5, 9], [6], [7, 8]], [[4], [5, 6, 7], [8, 9]])
    found = []
    for loss in (eager_loss(model), our_loss(model)):
        total, _ = loss(batch)
        found.append([total, *torch.autograd.grad(total, list(model.parameters()))])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
