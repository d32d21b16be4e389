"""Packed tensors: parts of one buffer, moved by one copy."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import Batch, buffer_of, copy_all, pack, parts_of, tensors_in
from regard.fast.captured.graphs import copied

TENSORS = [
    torch.arange(6).view(2, 3),
    torch.tensor([True, False, True]),
    torch.zeros(0, 4),
    torch.randn(5, generator=torch.Generator().manual_seed(0)).bfloat16(),
    torch.arange(4.0).view(2, 2).t(),
    torch.tensor(7),
]


def test_packed_tensors_are_equal_and_parts_of_one_buffer():
    packed = pack(TENSORS)
    buffer = buffer_of(packed)
    assert buffer is not None
    for part, tensor, again in zip(packed, TENSORS, parts_of(buffer, TENSORS), strict=True):
        assert part.dtype == tensor.dtype and torch.equal(part, tensor) and torch.equal(again, tensor)
        assert part.data_ptr() % 16 == buffer.data_ptr() % 16


@pytest.mark.parametrize("change", ["other", "order", "fewer", "view"])
def test_other_tensors_have_no_buffer(change: str):
    packed = pack(TENSORS)
    others = {
        "other": [*packed[:-1], torch.tensor(7)],
        "order": [packed[3], *packed[1:3], packed[0], *packed[4:]],
        "fewer": packed[:-1],
        "view": [packed[0].t(), *packed[1:]],
    }
    assert buffer_of(others[change]) is None
    assert buffer_of(TENSORS) is None and buffer_of(packed[:1]) is None


@pytest.mark.parametrize("source", ["packed", "separate"])
@pytest.mark.parametrize("target", ["packed", "separate"])
def test_all_tensors_are_copied(target: str, source: str):
    targets = [torch.zeros_like(tensor) for tensor in TENSORS]
    targets = pack(targets) if target == "packed" else targets
    copy_all(targets, pack(TENSORS) if source == "packed" else TENSORS)
    assert all(torch.equal(*pair) for pair in zip(targets, TENSORS, strict=True))


def test_a_packed_batch_is_moved_together():
    """The device `meta` stands for a GPU: its tensors have no values, but views of one storage."""
    batch = copied(Batch.collate([[7, 8], [9]], [[5], [6, 4]]))
    assert buffer_of(list(tensors_in(batch))) is not None
    moved = list(tensors_in(batch.to("meta")))
    assert [each.shape for each in moved] == [each.shape for each in tensors_in(batch)]
    assert len({each.untyped_storage()._cdata for each in moved}) == 1
