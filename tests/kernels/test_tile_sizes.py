"""Launch parameters of additive attention."""

from __future__ import annotations

import pytest
import torch

from regard.kernels import launch
from regard.kernels.additive.tile_sizes import Shape


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((1, 8192, 64), (32, 64)),  # 256 tiles
        ((1, 1024, 64), (4, 64)),  # 256 tiles; 128 tiles would be fewer than there are multiprocessors
        ((64, 50, 1000), (4, 512)),
        ((512, 5, 3), (64, 32)),
    ],
)
def test_tiles_of_one_query_have_more_keys_if_there_are_few_channels(
    sizes: tuple[int, int, int], tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launch, "processors", lambda device: 132)
    batch, keys, width = sizes
    shape = Shape(batch, 1, 1, 1, keys, width, width)
    assert shape.decode_tile(torch.device("cuda")) == tile
