"""Twins: classes of modules that are replaced inside a `with` block only."""

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.data.batch import Batch
from regard.fast import twins
from regard.fast.twins import Twin, Twins
from regard.models import build_model
from regard.select import Soft
from regard.training.gradients import Gradients
from regard.training.task import Loss


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Faster(Plain, Twin):
    @classmethod
    def reasons(cls, module: nn.Module) -> list[str]:
        return ["it has hooks"] if module._forward_hooks else []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add(1.0)


class Changed(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 2


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Sequential:
    monkeypatch.setattr(twins, "TWINS", {Plain: Faster})
    hooked = Plain()
    hooked.register_forward_hook(lambda *_: None)
    return nn.Sequential(Plain(), Changed(), hooked)


def classes(model: nn.Module) -> list[type[nn.Module]]:
    return [type(module) for module in model.children()]


def test_twins_replace_exact_classes_inside_the_block(model: nn.Sequential):
    with Twins(model) as chosen:
        assert classes(model) == [Faster, Changed, Plain]
        assert model(torch.zeros(1)) == 4
    assert classes(model) == [Plain, Changed, Plain]
    assert chosen.reasons == {"2": ["it has hooks"]}


def test_twins_are_undone_after_an_error(model: nn.Sequential):
    with pytest.raises(KeyError), Twins(model):
        raise KeyError
    assert classes(model) == [Plain, Changed, Plain]


def test_regard_fast_0_switches_twins_off(model: nn.Sequential, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_FAST", "0")
    with Twins(model) as chosen:
        assert classes(model) == [Plain, Changed, Plain]
    assert set(chosen.reasons) == {"0", "2"}


def test_blocks_of_threads_end_in_any_order(model: nn.Sequential):
    first, second = Twins(model), Twins(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert classes(model) == [Faster, Changed, Plain]
    assert Twins(model).chosen == second.chosen
    second.__exit__(None, None, None)
    assert classes(model) == [Plain, Changed, Plain]


def test_copies_inside_the_block_have_plain_classes(model: nn.Sequential):
    with Twins(model):
        copied = copy.deepcopy(model)
    assert classes(copied) == [Plain, Changed, Plain]


def small_batch() -> Batch:
    draw = torch.Generator().manual_seed(0)
    return Batch.collate(*(torch.randint(4, 9, (6, 5), generator=draw).tolist() for _ in range(2)))


@pytest.mark.parametrize("name", ["bahdanau", "seq2seq", "lstmn"])
def test_a_model_is_trained_and_read_by_several_threads(name: str):
    """Threads that use the plain model see no change while another thread enters and leaves its twins."""
    torch.manual_seed(0)
    model, batch, errors = build_model(name, 9, 9, width=8), small_batch(), list[BaseException]()
    expected, done = model(batch).detach(), threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                torch.testing.assert_close(model(batch).detach(), expected)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            with Twins(model):
                pass
    finally:
        done.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert not errors and type(model).__module__.startswith("regard.models")


def test_options_that_change_after_the_twins_were_chosen():
    torch.manual_seed(0)
    model, batch = build_model("bahdanau", 9, 9, width=8), small_batch()
    twins_of_model = Twins(model)
    model.select = Soft(temperature=0.2)
    expected = model(batch)
    with twins_of_model:
        torch.testing.assert_close(model(batch), expected)


def test_activation_checkpointing_runs_the_same_code_again():
    """It runs the forward pass again during the backward pass, which must use the twins too."""
    batch = small_batch()

    class Task:
        model, shapes = build_model("bahdanau", 9, 9, width=8), 1

        def loss(self, ready: Batch) -> Loss:
            total = checkpoint(lambda: self.model(ready).logsumexp(-1).sum(), use_reentrant=False)
            return Loss(total, {"loss": total.detach()})

    task: Any = Task()
    Gradients(task, device=torch.device("cpu")).of_one(batch, 1)
    assert task.model.cell.gate.weight.grad is not None
