"""Pixels: images in memory or decoded when needed; damaged files; and the files that a user names."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from regard.data.images.caption_files import coco_image_id, list_images
from regard.data.images.image_file import decode_files
from regard.errors import DataError, RegardWarning
from tests.facts import facts


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    draw = numpy.random.default_rng(0)
    for number in range(4):
        image = draw.integers(0, 256, (5 + number, 7, 3), numpy.uint8)
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    return sorted(tmp_path.iterdir())


def test_images_are_equal_in_memory_and_on_request(paths: list[Path]):
    whole, kept, errors = decode_files(paths, 6)
    later, _, _ = decode_files(paths, 6, limit=100)
    assert whole.in_memory and not later.in_memory and kept == [0, 1, 2, 3] and not errors
    assert torch.equal(whole[[2, 0]], later[torch.tensor([2, 0])])
    assert torch.equal(whole.select([3, 1])[[1]], later.select([3, 1])[[1]])
    assert whole.fingerprint and not later.fingerprint and later[[]].shape == (0, 3, 6, 6)


@pytest.mark.parametrize("limit", [None, 0])
def test_damaged_files_are_errors_or_left_out(paths: list[Path], limit: int | None):
    paths[1].write_bytes(b"no image")
    pixels, kept, errors = decode_files(paths, 6, damaged="skip", limit=limit)
    assert kept == [0, 2, 3] and len(pixels) == 3 and "1.png" in str(errors[0])
    assert torch.equal(pixels[[1]], decode_files(paths[2:], 6)[0][[0]])
    if limit is None:
        with pytest.raises(DataError, match=r"1\.png"):
            decode_files(paths, 6)


def test_named_images(paths: list[Path], tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    assert list_images([tmp_path]) == paths
    assert list_images([paths[2], f"{tmp_path}/*.png", paths[2]]) == [paths[2], *paths[:2], paths[3]]
    for place in ("nowhere.jpg", "*.nothing", tmp_path / "none"):
        with pytest.raises(DataError, match=str(Path(place).name).replace("*", r"\*")):
            list_images([place])
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none"):
        list_images([tmp_path / "none"])


def test_symbolic_link_to_itself_is_skipped(paths: list[Path], tmp_path: Path):
    loop = tmp_path / "loop.png"
    loop.symlink_to(loop.name)
    with pytest.warns(RegardWarning, match=facts(loop)):
        assert list_images([tmp_path]) == paths


def test_coco_ids():
    assert coco_image_id("a/COCO_val2014_000000000042.jpg") == 42 and coco_image_id("b/x.jpg") == "x.jpg"
