"""A fake for CUDA graphs, to test captured training steps on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from regard.fast.captured import graphs


class FakeGraphs:
    """A fake for CUDA graphs: a replay runs the step again and copies its results to the captured tensors."""

    def __init__(self) -> None:
        self.captured, self.replayed, self.refuses = 0, 0, False

    def recorded(
        self, step: Callable[[], Any], device: object, pool: object, warm_ups: int = 1
    ) -> tuple[Callable[[], None], Any]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.captured += 1
        step()  # a warm-up
        results = step()

        def replay() -> None:
            self.replayed += 1
            for captured, replayed in zip(_results(results), _results(step()), strict=True):
                captured.copy_(replayed)

        return replay, results


def _results(results: Any) -> list[Tensor]:
    """Return the tensors in nested tuples and dicts."""
    if isinstance(results, dict):
        results = tuple(results.values())
    if isinstance(results, tuple):
        return [tensor for each in results for tensor in _results(each)]
    return [results] if isinstance(results, Tensor) else []


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    """Let trainers capture their steps with a fake, and return the fake."""
    fake = FakeGraphs()
    monkeypatch.setattr(graphs, "recorded", fake.recorded)
    monkeypatch.setattr(graphs, "new_pool", lambda: None)
    monkeypatch.setattr(graphs, "release_generator", lambda device: None)
    choose(monkeypatch, True)
    return fake


def choose(monkeypatch: pytest.MonkeyPatch, captured: bool) -> None:
    """Let trainers capture their steps, or not."""
    monkeypatch.setattr("regard.training.loop.capture_chosen", lambda *_: (captured, ""))
