"""Compiled training: equal results, a limited number of shapes, and an error beyond the limit."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.errors import RegardError
from regard.tasks.translation import Machine, train_translation
from regard.training.task import Speed
from tests.training.fake_graphs import install
from tests.training.toys import Numbers, Toy, last, records, trainer

TINY: dict[str, Any] = {
    "data": {"built_in": "korean", "pairs": 60, "held_out": 2, "max_length": 15},
    "model": {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 1, "dropout": 0.0},
    "training": {"steps": 5, "batch_tokens": 128, "log_every": 1, "compile": True},
    "evaluation": {"sentences": 1, "samples": 0},
}


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch: pytest.MonkeyPatch):
    config = torch._dynamo.config
    before = config.recompile_limit, config.fail_on_recompile_limit_hit
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    config.recompile_limit, config.fail_on_recompile_limit_hit = before


class Uneven(Toy):
    """A toy task whose batches have 1, 2, ..., `counts` points, each once per epoch."""

    def __init__(self, counts: int, shapes: int):
        super().__init__()
        self.counts, self.speed = counts, Speed(shapes=shapes)

    def batches(self, epoch: int, start: int = 0) -> Any:
        for count in range(1 + start, self.counts + 1):
            yield Numbers(self.x[:count], self.y[:count])

    def len_epoch(self, epoch: int) -> int:
        return self.counts


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the backend "eager" of torch.compile: graphs are traced and counted, but not compiled."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def test_compiled_run_has_the_same_weights(tmp_path: Path, quick: None):
    for name, compiled in (("plain", False), ("compiled", True)):
        trainer(tmp_path / name, Uneven(4, shapes=4), steps=8, compile=compiled).run()
    plain, compiled = (last(tmp_path / name).tensors("weights") for name in ("plain", "compiled"))
    for name in plain:
        torch.testing.assert_close(compiled[name], plain[name])


def test_recompile_limit_of_torch_is_raised_to_the_shapes_of_the_task(tmp_path: Path, quick: None):
    assert trainer(tmp_path, Uneven(12, shapes=12), steps=24, compile=True).run().step == 24


def test_more_shapes_than_the_task_announced_raise(tmp_path: Path, quick: None):
    with pytest.raises(RegardError, match=r" 8 .*\n.*training\.compile=false"):
        trainer(tmp_path, Uneven(12, shapes=8), steps=24, compile=True).run()


def test_compiled_steps_are_captured(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch):
    """With graphs, the model is compiled for batches of any size; more shapes than the limit are no error."""
    graphs = install(monkeypatch)
    for name, compiled in (("compiled", True), ("plain", False)):
        trainer(tmp_path / name, Uneven(12, shapes=3), steps=12, compile=compiled).run()
    assert graphs.captured == 24 and graphs.replayed == 24
    weights = [last(tmp_path / name).tensors("weights") for name in ("compiled", "plain")]
    for name, plain in weights[1].items():
        torch.testing.assert_close(weights[0][name], plain)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler"
)
def test_compiled_transformer_has_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    losses = []
    for name in ("compiled", "plain"):
        if name == "plain":  # compile = true stays set, so the batches are the same
            monkeypatch.setattr(torch, "compile", lambda module, **options: module)
        train_translation(TINY, tmp_path / name, machine=Machine("cpu"), console=Console(quiet=True))
        losses.append([(each["loss"], each["norm"]) for each in records(tmp_path / name, "training")])
    for compiled, plain in zip(*losses, strict=True):
        assert compiled == pytest.approx(plain, rel=1e-4)
