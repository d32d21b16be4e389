"""Plans of MultiHead: the results are the same as without a plan, also if the layer changes between calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.layers import multihead


def make_layer(**options: Any) -> regard.MultiHead:
    """A layer in eval mode whose weights are adjacent in memory."""
    torch.manual_seed(0)
    return regard.MultiHead(64, 4, **options).eval()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call that looks for a plan: whether it was computed by one."""
    calls: list[bool] = []
    original = multihead.planned_self_attention

    def counted(layer: Any, x: Tensor) -> Any:
        attended = original(layer, x)
        calls.append(attended is not None)
        return attended

    monkeypatch.setattr(multihead, "planned_self_attention", counted)
    return calls


def unplanned(layer: regard.MultiHead, x: Tensor) -> regard.Attended:
    """The result of the layer without its plans."""
    layer._plans.clear()
    result: regard.Attended = layer(x)
    return result


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_a_plan_gives_the_same_bits(bias: bool, planned: list[bool]):
    layer = make_layer(bias=bias)
    for shape in ((2, 10, 64), (1, 3, 64), (2, 10, 64)):
        x = torch.randn(*shape)
        expected = unplanned(layer, x)
        ours = layer(x)
        assert torch.equal(ours.output, expected.output) and torch.equal(ours.lse, expected.lse)
        assert ours.weights is None
    assert planned == [False, True] * 3


@torch.no_grad()
def test_nan_reaches_the_output_of_a_planned_call(planned: list[bool]):
    layer, x = make_layer(), torch.randn(2, 3, 64)
    layer(x)
    x[0, 1] = torch.nan
    output = layer(x).output
    assert planned[-1] and output[0].isnan().all() and output[1].isfinite().all()


def hook(layer: regard.MultiHead) -> None:
    layer.key.register_forward_hook(lambda *_: None)


def global_hook(layer: regard.MultiHead) -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    layer.register_forward_hook(lambda *_: handle.remove())


def other_weight(layer: regard.MultiHead) -> None:
    layer.value.weight = nn.Parameter(torch.randn(64, 64))


def other_data(layer: regard.MultiHead) -> None:
    layer.query.weight.data = layer.query.weight.data.t()


def other_layer(layer: regard.MultiHead) -> None:
    layer.output = nn.Sequential(nn.Linear(64, 64), nn.Tanh())


def other_score(layer: regard.MultiHead) -> None:
    layer.score = regard.Dot()


def learned_score(layer: regard.MultiHead) -> None:
    layer.score = regard.Additive(16, 16)  # a submodule, unlike ScaledDot


def other_heads(layer: regard.MultiHead) -> None:
    layer.heads = layer.key_heads = 8


def position(layer: regard.MultiHead) -> None:
    layer.position = regard.Rotary(16)


def batch_second(layer: regard.MultiHead) -> None:
    layer.batch_first = False


CHANGES: list[Callable[[regard.MultiHead], None]] = [
    hook, global_hook, other_weight, other_data, other_layer, other_score, learned_score,
    other_heads, position, batch_second,
]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_layer_is_not_computed_by_its_plan(
    change: Callable[[regard.MultiHead], None], planned: list[bool]
):
    layer, x = make_layer(), torch.randn(2, 5, 64)
    layer(x)
    change(layer)
    ours = layer(x).output
    assert planned == [False, False]
    expected = copy.deepcopy(layer)(x).output
    torch.testing.assert_close(ours, expected)


@torch.no_grad()
def test_weights_that_change_in_place_are_read_by_a_planned_call(planned: list[bool]):
    layer, x = make_layer(), torch.randn(2, 5, 64)
    layer(x)
    for parameter in layer.parameters():
        parameter.mul_(0.5)
    ours = layer(x).output
    assert planned == [False, True] and torch.equal(ours, unplanned(layer, x).output)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap
@torch.no_grad()
def test_record_autocast_vmap_and_dropout_do_not_use_a_plan(planned: list[bool]):
    layer, x = make_layer(dropout=0.5), torch.randn(2, 5, 64)
    expected = layer(x).output
    with regard.record() as records:
        assert torch.equal(layer(x).output, expected)
    assert len(records) == 1
    with torch.autocast("cpu"):
        assert layer(x).output.dtype == torch.bfloat16
    torch.testing.assert_close(torch.vmap(lambda each: layer(each).output)(x[None])[0], expected)
    layer.train()
    assert not torch.equal(layer(x).output, expected)
    assert not any(planned)


def test_plans_are_not_used_with_gradients_and_not_copied(planned: list[bool]):
    layer, x = make_layer(), torch.randn(2, 5, 64)
    with torch.no_grad():
        layer(x)
    layer(x).output.sum().backward()
    assert not any(planned) and layer.query.weight.grad is not None
    assert layer._plans and not copy.deepcopy(layer)._plans
    assert not layer.double()._plans


@torch.no_grad()
def test_a_layer_that_an_earlier_version_has_pickled_is_computed():
    layer, x = make_layer(), torch.randn(2, 5, 64)
    state = layer.__getstate__()
    del state["_plans"]
    old = regard.MultiHead.__new__(regard.MultiHead)
    old.__setstate__(state)
    for _ in range(2):
        torch.testing.assert_close(old(x).output, layer(x).output)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_nested_tensor_is_refused_with_and_without_gradients(gradients: bool):
    nested = torch.nested.nested_tensor([torch.randn(3, 64), torch.randn(5, 64)], layout=torch.jagged)
    with torch.set_grad_enabled(gradients), pytest.raises(regard.ArgumentError, match="nested tensor"):
        make_layer()(nested)
