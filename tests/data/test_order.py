"""The batches of an epoch are always the same for a seed: resumed runs rely on it."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data import (
    Batches,
    DocumentBatches,
    EncodedPairs,
    EncodedText,
    EncodedTexts,
    LabelledBatches,
    WindowBatches,
    train_tokenizer,
)

DRAW = random.Random(0)


def rows(count: int, most: int) -> list[list[int]]:
    return [[DRAW.randrange(4, 99) for _ in range(DRAW.randrange(1, most))] for _ in range(count)]


PAIRS = EncodedPairs.in_memory(rows(3000, 30), rows(3000, 40))
TEXTS = EncodedTexts.in_memory(rows(2000, 30), [DRAW.randrange(3) for _ in range(2000)])
LINES = [" ".join(f"w{word}" for word in row) for row in rows(900, 20)]
TOKENIZER = train_tokenizer("word", LINES)
DOCUMENTS, CONTINUOUS = (
    EncodedText.from_lines(LINES, TOKENIZER, layout=layout) for layout in ("documents", "continuous")
)

EPOCHS: dict[str, tuple[Any, str]] = {
    "pairs": (Batches(PAIRS, 900, seed=5, rounded=[8, 16, 32]), "e3e1f64169f64a47"),
    "sentences": (Batches(PAIRS, None, sentences=7, seed=5, rank=1, world=3, longest=25), "abbde0c499ef1fd3"),
    "labelled": (LabelledBatches(TEXTS, 500, seed=2), "4de593625dfc96ba"),
    "documents": (DocumentBatches(DOCUMENTS, 200, seed=9), "163b28afa8368a49"),
    "windows": (WindowBatches(CONTINUOUS, 17, 200, seed=4), "9a1e4a95fc16efa2"),
}
"""Name -> batches, and the checksum of epochs 0 and 7 as ed655947 computes it."""


@pytest.mark.parametrize("name", EPOCHS)
def test_order_of_the_batches_has_not_changed(name: str):
    batches, expected = EPOCHS[name]
    digest = hashlib.sha256()
    for batch in (*batches.epoch(0), *batches.epoch(7, 3)):
        for field, value in sorted(vars(batch).items()):
            if isinstance(value, Tensor | bool | int | float):
                digest.update(repr((field, torch.as_tensor(value).tolist())).encode())
    assert digest.hexdigest()[:16] == expected
