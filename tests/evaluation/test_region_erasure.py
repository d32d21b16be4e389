"""Erasure of image regions: the drops in nats of a function whose dependence on the image is known."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from regard.errors import ArgumentError
from regard.evaluation.erasure import Effect
from regard.evaluation.region_erasure import RegionErasure, erase_regions, hide_cells
from regard.viewing.image_attention import ImageAttention


def attention(words: int = 3, side: int = 4, seed: int = 0) -> ImageAttention:
    generator = numpy.random.default_rng(seed)
    image = generator.integers(0, 256, (4 * side, 4 * side, 3), dtype=numpy.uint8)
    weights = generator.random((words, side, side))
    return ImageAttention(
        image, [f"w{word}" for word in range(words)], weights / weights.sum((1, 2), keepdims=True)
    )


def depends_on(cells: list[int], seen: ImageAttention):
    """Return a function whose word t loses 2 nats if cell cells[t] of the image changes."""

    def log_probabilities(images, caption):
        changed = [
            [(image != seen.image)[seen.grid.mask([cell])].any() for cell in cells] for image in images
        ]
        return -0.5 - 2.0 * numpy.array(changed, float)

    return log_probabilities


def test_a_model_that_uses_the_attended_cell_has_a_drop_only_there():
    seen = attention()
    strongest = [seen.strongest(word) for word in range(3)]
    result = erase_regions(depends_on(strongest, seen), seen)
    assert [each.hidden for each in result.words] == [2.0] * 3
    assert [each.hidden_random for each in result.words] == [0.0] * 3
    assert [each.looked for each in result.words] == [(cell,) for cell in strongest]
    assert [each.weight for each in result.words] == pytest.approx(seen.weights.max((1, 2)).tolist())
    assert result.better == 1.0 and result.interval("difference") == (2.0, 2.0)
    assert "2.0 nats" in result.summary() and "0.0" in result.summary()


def test_a_model_that_ignores_the_attended_cell_has_no_drop_there():
    seen = attention()
    weakest = [int(seen.weights[word].argmin()) for word in range(3)]
    result = erase_regions(depends_on(weakest, seen), seen, samples=50)
    assert result.mean("hidden") == 0.0 and 0 < result.mean("hidden_random") < 1 and result.better == 0.0


def test_hidden_cells_have_the_mean_colour_and_other_pixels_stay():
    seen = attention()
    hidden = hide_cells(seen, [5, 6])
    mask_HW = seen.grid.mask([5, 6])
    assert (hidden[mask_HW] == seen.image.mean((0, 1)).round().astype(numpy.uint8)).all()
    assert (hidden[~mask_HW] == seen.image[~mask_HW]).all() and mask_HW.sum() == 2 * 16


def test_calls_are_bounded_batches_of_distinct_images_and_deterministic():
    seen, sizes = attention(words=6), []

    def log_probabilities(images, caption):
        sizes.append(len(images))
        assert images.dtype == numpy.uint8 and images.shape[1:] == seen.image.shape and caption == 0
        return torch.from_numpy(-images.mean((1, 2, 3))[:, None].repeat(6, 1))

    first = erase_regions(log_probabilities, seen, k=2, batch_size=5)
    assert max(sizes) <= 5 and sum(sizes) <= 1 + 6 * 4
    assert first.words == erase_regions(log_probabilities, seen, k=2, batch_size=64).words
    assert first.words != erase_regions(log_probabilities, seen, k=2, seed=1).words
    assert all(len(each.looked) == 2 for each in first.words)


def test_words_without_enough_cells_or_weights_are_skipped():
    image = numpy.zeros((4, 4, 3), numpy.uint8)
    one = ImageAttention(image, ["a", "b"], numpy.ones((2, 1, 1)))
    result = erase_regions(lambda images, caption: numpy.zeros((len(images), 2)), one)
    assert result.words == () and result.skipped == 2 and math.isnan(result.mean("hidden"))
    assert result.to_dict()["hidden"] is None and result.to_dict()["hidden_interval"] is None
    blank = ImageAttention(image, ["a", "b"], [[[0, 0]], [[0.5, 0.5]]])
    result = erase_regions(lambda images, caption: numpy.zeros((len(images), 2)), blank)
    assert [each.text for each in result.words] == ["b"] and result.skipped == 1


def test_intervals_resample_captions():
    # Words of one caption are equal, so only the two captions carry information.
    words = [Effect(at // 50, at % 50, "w", (0,), 1.0, float(at // 50), 0.0) for at in range(100)]
    assert RegionErasure(tuple(words), captions=2).interval("hidden") == (0.0, 1.0)
    assert RegionErasure(tuple(words), captions=2).to_dict()["difference"] == 0.5
    assert "2 captions" in str(RegionErasure(tuple(words), captions=2))


def test_several_captions():
    several = [attention(seed=seed) for seed in (1, 2)]
    seen_by_index = []

    def log_probabilities(images, caption):
        seen_by_index.append((caption, bool((images[0] == several[caption].image).all())))
        return numpy.zeros((len(images), 3))

    result = erase_regions(log_probabilities, several)
    assert seen_by_index == [(0, True), (1, True)] and result.captions == 2
    assert [each.item for each in result.words] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("options", [{"k": 0}, {"samples": 0}, {"batch_size": 0}])
def test_bad_numbers_raise(options):
    with pytest.raises(ArgumentError):
        erase_regions(lambda images, caption: numpy.zeros((len(images), 3)), attention(), **options)


@pytest.mark.parametrize("scores", [numpy.zeros(3), numpy.zeros((1, 3)), numpy.full((13, 3), numpy.nan)])
def test_bad_log_probabilities_raise(scores):
    with pytest.raises(ArgumentError):
        erase_regions(lambda images, caption: scores, attention())


def test_the_reason_is_given_if_nothing_was_measured():
    assert "no caption has words" in str(erase_regions(depends_on([], attention()), []))
    one_cell = attention(side=1)
    assert "too few cells" in str(erase_regions(depends_on([0, 0, 0], one_cell), one_cell))
