"""Twins: classes of modules that are replaced inside a `with` block only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.fast import twins
from regard.fast.twins import Twin, Twins


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
