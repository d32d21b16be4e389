"""CaptionBatches and ImageBatch: order, augmentation, worker threads, padding, and exact continuation."""

from __future__ import annotations

import numpy
import pytest
import torch

from regard.data.batch import BOS, PAD, ImageBatch
from regard.data.batching import CaptionBatches, EncodedCaptions, Side
from regard.data.images import Augmentation
from regard.data.images.image_file import Pixels
from regard.errors import ArgumentError


def batches(in_memory: bool = True, **options) -> CaptionBatches:
    draw = numpy.random.default_rng(0)
    captions = [draw.integers(4, 20, draw.integers(1, 9)).tolist() for _ in range(23)]
    data = EncodedCaptions(Side.of(captions), numpy.arange(23) // 3)
    pixels = torch.from_numpy(draw.integers(0, 256, (8, 3, 6, 6), numpy.uint8))
    images = Pixels(6, pixels) if in_memory else Pixels(6, read=lambda row: pixels[row], count=8)
    return CaptionBatches(data, images, size=4, sentences=4, seed=1, **options)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_continue_exactly_with_any_number_of_workers(workers: int):
    augmentation = Augmentation(size=4, seed=1)
    plain = list(batches(augmentation=augmentation).epoch(2))
    assert len(plain) == batches().len_epoch(2) and sum(map(len, plain)) == 23
    for start in (0, 3, len(plain)):
        again = list(batches(False, augmentation=augmentation, workers=workers).epoch(2, start))
        assert len(again) == len(plain) - start
        for one, other in zip(plain[start:], again, strict=True):
            assert torch.equal(one.image, other.image) and torch.equal(one.target, other.target)


def test_images_belong_to_their_captions_and_are_cropped_at_the_centre():
    made = batches()
    for batch in made.epoch(0):
        rows = torch.from_numpy(made.image_rows[batch.index.numpy()])
        assert torch.equal(batch.image, made.pixels[rows][..., 1:5, 1:5])
    without = next(batches(images=False).epoch(0))
    assert without.source.shape == (len(without),)


def test_padding_adds_rows_without_targets():
    batch = ImageBatch.of(torch.ones(2, 3, 2, 2), [[5, 6], [7]])
    padded = batch.padded_to(3, 0, 5)
    assert padded.image.shape == (3, 3, 2, 2) and padded.target_lengths.tolist() == [3, 2, 0]
    assert padded.target[2].tolist() == [BOS, PAD, PAD, PAD, PAD, PAD]
    for arguments in ((1, 0, 5), (3, 0, 2)):
        with pytest.raises(ArgumentError):
            batch.padded_to(*arguments)
    with pytest.raises(ArgumentError):
        ImageBatch.of(torch.ones(2, 3, 2, 2), [[5]])
