"""Weights of the projections of MultiHead that lie one after another in memory."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from safetensors.torch import load_model, save_model
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
    assert agrees()
    layer.value = nn.Linear(32, 8 * key_heads)
    assert agrees()


def test_weights_that_are_cut_at_the_same_address_are_followed():
    layer, x = MultiHead(32, 4).eval(), torch.randn(2, 5, 32)
    with torch.no_grad():
        layer(x)
        layer.query.bias = nn.Parameter(layer.query.bias.detach()[:1].expand(32))
        torch.testing.assert_close(layer(x).output, separately(layer, x))
        for name in ("query", "key", "value"):  # the first two heads remain
            linear = getattr(layer, name)
            linear.weight = nn.Parameter(linear.weight.detach()[:16])
            linear.bias = nn.Parameter(linear.bias.detach()[:16])
        layer.heads = layer.key_heads = 2
        layer.output.weight = nn.Parameter(layer.output.weight.detach()[:, :16])
        torch.testing.assert_close(layer(x).output, separately(layer, x))


def test_each_weight_is_saved_alone(tmp_path):
    layer = MultiHead(64, 4)
    save_model(layer, tmp_path / "layer.safetensors")
    other = MultiHead(64, 4)
    load_model(other, tmp_path / "layer.safetensors")
    torch.save(layer.query.weight, tmp_path / "weight.pt")
    assert (tmp_path / "weight.pt").stat().st_size < 2 * layer.query.weight.nbytes
    x = torch.randn(2, 5, 64)
    with torch.no_grad():
        assert torch.equal(other(x).output, layer(x).output)
        assert torch.equal(other.share_memory()(x).output, layer(x).output)


def test_layers_without_parameters_of_their_own_and_other_modules_run():
    """DataParallel moves the parameters of its replicas to plain attributes."""
    layer, x = MultiHead(32, 4).eval(), torch.randn(2, 5, 32)
    expected = layer(x).output
    replica = copy.copy(layer)
    replica._modules = {name: each._replicate_for_data_parallel() for name, each in layer._modules.items()}
    for name in ("query", "key", "value", "output"):
        of_layer = getattr(layer, name)
        replica._modules[name].weight, replica._modules[name].bias = of_layer.weight * 1, of_layer.bias * 1
    torch.testing.assert_close(replica(x).output, expected)
    layer.query = nn.Sequential(layer.query, nn.Identity())
    torch.testing.assert_close(layer(x).output, expected)


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


def test_weights_in_another_order_are_not_one_tensor():
    layer = MultiHead(32, 4)
    parts = weights(layer)
    assert torch.equal(joint_view(parts), torch.cat(parts))
    assert torch.equal(joint_view(parts[1:]), torch.cat(parts[1:]))
    assert joint_view(parts[::-1]) is None and joint_view([parts[0], parts[2]]) is None
    meta = MultiHead(32, 4).to("meta")
    assert meta.key.weight.is_meta


def test_gradients_reach_each_projection():
    layer, x = MultiHead(32, 4), torch.randn(2, 5, 32)
    layer(x).output.sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights(layer))
