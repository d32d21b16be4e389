"""CapturedSlots on a CPU: which graph a step replays, and what a failed capture of the encoder changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from regard.decoding import Sample
from regard.fast.search.captured import CapturedSlots
from regard.fast.search.slots import SampleSlots


def captured(load: Any) -> Any:
    slots = SimpleNamespace(decoder=None, step=lambda upto: done.append(("plain", upto)))
    encoding = SimpleNamespace(failed=False, load=load)
    done: list[tuple[str, int]] = []
    return CapturedSlots(slots, encoding, capture=lambda step: step), done  # type: ignore[arg-type]


def test_a_failed_capture_of_the_encoder_is_not_tried_again():
    loaded: list[int] = []

    def load(model: object, decoder: object, source: torch.Tensor, lengths: object, capture: object) -> None:
        loaded.append(len(source))
        if len(source) == 3:
            raise RuntimeError("the encoder waits for the device")

    each, _ = captured(load)
    assert [each.encode(None, torch.zeros(rows, 2), None) for rows in (2, 1)] == [True, True]
    assert [each.encode(None, torch.zeros(rows, 2), None) for rows in (3, 2)] == [False, False]
    assert loaded == [2, 1, 3] and each.encoding.failed


def test_a_step_replays_the_graph_of_the_fewest_positions_that_suffice():
    each, done = captured(None)
    each.step(5)
    each.replays = {upto: lambda upto=upto: done.append(("graph", upto)) for upto in (8, 16, 24)}
    for upto in (1, 8, 9, 24):
        each.step(upto)
    assert done == [("plain", 5), ("graph", 8), ("graph", 8), ("graph", 16), ("graph", 24)]


def test_sampling_keeps_its_random_numbers_on_the_device_of_the_search():
    decoder: Any = SimpleNamespace(slots=2, beams=1, length=4)
    slots = SampleSlots(decoder, Sample(), 0, torch.device("meta"))
    held = {name: each.device.type for name, each in vars(slots).items() if isinstance(each, torch.Tensor)}
    assert slots.random.shape == (2, 4) and set(held.values()) == {"meta"}
