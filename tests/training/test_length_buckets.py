"""Length buckets: batches have few shapes, and padding changes neither loss nor gradients."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.data import Batches, EncodedPairs
from regard.data.batch import Batch
from regard.models import build_model
from regard.training.length_buckets import Shapes
from regard.training.losses import cross_entropy


def pairs(count: int, longest: int) -> EncodedPairs:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (count, 2), generator=generator).tolist()
    return EncodedPairs.in_memory(
        [[4] * source for source, _ in lengths], [[5] * target for _, target in lengths]
    )


@pytest.mark.parametrize("longest", [1, 8, 9, 33, 100, 257, 1000])
def test_lengths_are_multiples_of_8_up_to_the_longest(longest: int):
    lengths = Shapes(1024, longest).lengths
    assert list(lengths) == sorted(set(lengths))
    assert lengths[-1] >= longest and (len(lengths) == 1 or lengths[-2] < longest)
    assert all(length % 8 == 0 for length in lengths)


@pytest.mark.parametrize("longest", [1, 7, 8, 9, 33, 100, 257, 1000])
def test_fine_lengths_grow_by_a_quarter_at_most_and_end_at_the_longest(longest: int):
    lengths = Shapes(1024, longest, fine=True).lengths
    assert list(lengths) == sorted(set(lengths)) and lengths[0] == min(8, longest)
    assert lengths[-1] == max(longest, lengths[0])  # a Transformer may have no more positions
    assert all(after <= 1.25 * before for before, after in itertools.pairwise(lengths))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_epoch_has_about_one_shape_per_length(world: int):
    shapes = Shapes(tokens=500, longest=61)
    for rank in range(world):
        batches = Batches(pairs(3000, 60), 500, rounded=shapes.lengths, rank=rank, world=world)
        shapes_of_epoch = set()
        for batch in batches.epoch(0):
            filled = shapes.filled(batch)
            shapes_of_epoch.add((filled.source.shape, filled.target.shape))
            assert world > 1 or filled.source.numel() < 500 + filled.source.shape[1]
        assert len(shapes_of_epoch) <= len(shapes.lengths) + (world > 1)
        assert len(shapes_of_epoch) <= shapes.most


def test_batches_lengthened_after_planning_have_few_shapes():
    shapes = Shapes(tokens=500, longest=61)
    source_shapes = set()
    for batch in Batches(pairs(3000, 40), 500, rounded=shapes.lengths).epoch(0):
        longer = Batch.collate(
            [[4] * int(length * 1.4) for length in batch.source_lengths],
            [[5] * int(length * 1.4) for length in batch.target_lengths],
        )
        source_shapes.add(shapes.filled(longer).source.shape)
    assert len(source_shapes) <= shapes.most


def test_token_budget_counts_padded_lengths():
    data = EncodedPairs.in_memory([[4] * 8] * 100, [[5] * 8] * 100)  # 9 with EOS, padded to 16
    assert max(len(batch) for batch in Batches(data, 160).epoch(0)) == 17
    assert max(len(batch) for batch in Batches(data, 160, rounded=(8, 16)).epoch(0)) == 10


@pytest.mark.parametrize("fine", [False, True])
def test_padding_changes_neither_loss_nor_gradients(fine: bool):
    torch.manual_seed(0)
    model = build_model("transformer", 9, 9, size="tiny", dropout=0.0)
    batch = Batch.collate([[4, 5, 6], [7]], [[8, 4], [5, 6, 7, 8]])
    filled = Shapes(tokens=64, longest=20, fine=fine).filled(batch)
    assert filled.source.shape == (8, 8) and filled.target.shape == (8, 9)
    assert int(filled.target_lengths.sum()) == int(batch.target_lengths.sum())
    losses = [cross_entropy(model(each), each.labels, 0.1) for each in (batch, filled)]
    torch.testing.assert_close(losses[0], losses[1])
    gradients = [torch.autograd.grad(loss, model.target.weight)[0] for loss, _ in losses]
    torch.testing.assert_close(*gradients)


def test_batches_of_a_number_of_sentences_have_one_shape_for_each_length():
    shapes = Shapes(None, longest=61, sentences=32)
    batches = Batches(pairs(1000, 60), None, sentences=32, rounded=shapes.lengths)
    filled = [shapes.filled(batch) for batch in batches.epoch(0)]
    assert {len(batch) for batch in filled} == {32}
    assert {batch.source.shape[1] for batch in filled} <= set(shapes.lengths)
    assert sum(int((batch.target_lengths > 0).sum()) for batch in filled) == 1000
