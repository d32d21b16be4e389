"""Limits of memory: attention weights that stay on a GPU, and slots that are kept for later searches."""

from __future__ import annotations

import sys
from unittest import mock

import pytest
import torch

from regard.data.batch import Batch
from regard.decoding import Beam
from regard.fast.search import RecordedAttention, captured, search_loop
from tests.fast.search.test_search import transformer

MODULE = sys.modules[RecordedAttention.__module__]  # a function has the same name as the module


def test_oldest_weights_are_copied_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "MOST_DEVICE_BYTES", 100)
    memory, moved = MODULE._DeviceMemory(), []
    searches = [RecordedAttention({}, []) for _ in range(4)]

    def to_host(self: RecordedAttention) -> None:
        moved.append(searches.index(self))
        memory.remove(id(self))

    with mock.patch.object(RecordedAttention, "to_host", to_host):
        memory.add(searches[0], 60)
        assert not moved and memory.total == 60
        memory.add(searches[1], 50)
        assert moved == [0] and memory.total == 50
        searches[1] = RecordedAttention({}, [])  # the other one is deleted
        assert memory.total == 0
        memory.add(searches[2], 500)  # too large, but it is the newest
        assert moved == [0] and memory.total == 500
        memory.add(searches[3], 1)
    assert moved == [0, 2] and memory.total == 1


@torch.no_grad()
def test_slots_are_deleted_if_they_need_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "_cuda_graph", lambda step: step)
    model = transformer().eval()
    for memory, expected in ((float("inf"), 3), (1.0, 1)):
        monkeypatch.setattr(captured, "_memory", lambda _, memory=memory: memory)
        for size in (2, 3, 4):
            how = Beam(size)
            sentences = search_loop.sentences_of(model, Batch.collate([[4, 5], [6]]), how)
            search_loop.captured_search(model, how, sentences)
        kept = captured._kept[model]
        assert len(kept) == expected
    keys = next(iter(kept.values())).slots.decoder.keys  # type: ignore[attr-defined]
    assert next(iter(kept.values())).nbytes > 2 * sum(each.nbytes for each in keys)
