"""Weights of the projections of MultiHead that lie one after another in memory."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from regard import MultiHead
from regard.layers.adjacent_weights import joint_view


def weights(layer: MultiHead) -> list[Tensor]:
    return [layer.query.weight, layer.key.weight, layer.value.weight]


def separately(layer: MultiHead, x: Tensor) -> Tensor:
    """The output of the layer, with a hook that makes it call its projections one by one."""
    hook = layer.query.register_forward_hook(lambda *_: None)
    output = layer(x).output
    hook.remove()
    return output


@pytest.mark.parametrize("key_heads", [4, 2])
def test_one_product_without_gradients_follows_every_change_of_the_weights(key_heads: int):
    torch.manual_seed(0)
    layer, x = MultiHead(32, 4, key_heads=key_heads).eval(), torch.randn(2, 5, 32)
    other = MultiHead(32, 4, key_heads=key_heads)

    def agrees() -> bool:
        with torch.no_grad():
            return torch.allclose(layer(x).output, separately(layer, x), atol=1e-6)

    with torch.no_grad(), mock.patch("torch.nn.functional.linear", wraps=nn.functional.linear) as linear:
        before = layer(x).output
        assert linear.call_count == 2  # one for query, key and value, and one for the output
    assert agrees()
    layer.key.weight.data.mul_(2)  # which changes no version counter
    layer.value.bias.data.add_(1)
    assert agrees() and not torch.allclose(layer(x).output, before)
    layer.query.weight.data = layer.query.weight.data.t()
    assert agrees()
    layer.load_state_dict(other.state_dict(), assign=True)
    assert joint_view(weights(layer)) is not None and agrees()
    layer.load_state_dict({name: each.clone() for name, each in other.state_dict().items()}, assign=True)
    assert agrees()
    layer.value = nn.Linear(32, 8 * key_heads)
    assert agrees()


def test_weights_stay_adjacent_when_they_are_moved_and_copies_have_their_own():
    layer, x = MultiHead(32, 4).eval(), torch.randn(1, 3, 32)
    with torch.no_grad():
        layer(x)
        assert joint_view(weights(layer.double())) is not None
        assert layer(x.double()).output.dtype == torch.float64
        copied = copy.deepcopy(layer)
        expected = layer(x.double()).output
        for parameter in layer.parameters():
            parameter.zero_()
        assert torch.equal(copied(x.double()).output, expected)
    names = [name for name, _ in MultiHead(32, 4).named_parameters()]
    assert [name for name, _ in layer.named_parameters()] == names and list(layer.state_dict()) == names


def test_weights_of_other_layers_are_not_taken_for_a_part():
    """Neighbours in memory that lie in other storages are not one tensor, nor weights in another order."""
    whole = torch.randn(96, 32)
    parts = [nn.Parameter(part) for part in whole.split(32)]
    assert torch.equal(joint_view(parts), whole)
    assert joint_view(parts[::-1]) is None and joint_view([parts[0], parts[2]]) is None
    first = torch.frombuffer(memoryview(whole.numpy())[:32], dtype=torch.float32).view(32, 32)
    second = torch.frombuffer(memoryview(whole.numpy())[32:], dtype=torch.float32).view(64, 32)
    assert first.data_ptr() + first.nbytes == second.data_ptr()
    assert joint_view([first, second]) is None
    meta = MultiHead(32, 4).to("meta")
    assert meta.key.weight.is_meta


def test_gradients_reach_each_projection():
    layer, x = MultiHead(32, 4), torch.randn(2, 5, 32)
    layer(x).output.sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights(layer))
