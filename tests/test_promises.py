"""Regression tests for problems that first users reported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import regard
from regard.viewing import beside, draw


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_returned_half_precision_weights_are_those_of_the_forward_pass(dtype: torch.dtype):
    query, key = torch.full((1, 64), 2.0, dtype=dtype), torch.full((3, 64), 2.0, dtype=dtype)
    key[1, 0], key[2, :4] = 2.5, 2.25
    value = torch.eye(3, dtype=dtype)  # so that the output is the weights
    for backend in ("auto", "reference", "blocked"):
        seen = regard.attention(
            query, key, value, score=regard.Dot(), look=regard.Look(weights=True), backend=backend
        )
        torch.testing.assert_close(seen.weights, seen.output.float(), atol=torch.finfo(dtype).eps, rtol=0)


def test_scores_beyond_half_precision_do_not_overflow():
    x = (torch.randn(2, 4, 5, 8) * 1e3).half()
    seen = regard.attention(x, x, score=regard.Dot(), look=regard.Look(weights=True, entropy=True))
    exact = regard.attention(x, x, score=regard.Dot(), backend="reference")
    assert seen.weights.isfinite().all() and seen.entropy.isfinite().all() and exact.output.isfinite().all()


@pytest.mark.parametrize("score", ["additive", "scaled_dot"])
def test_blocked_supports_double_backward(score: str):
    made = regard.build_score(score, 4, 4)
    made = made.double() if isinstance(made, torch.nn.Module) else made
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def penalty(backend: str) -> torch.Tensor:
        output = regard.attention(x, x, score=made, backend=backend).output
        (first,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum() + x.pow(3).sum(), x)[0]

    torch.testing.assert_close(penalty("blocked"), penalty("reference"))
    assert torch.autograd.gradgradcheck(
        lambda x: regard.attention(x, x, score=made, backend="blocked").output, x
    )


def test_double_backward_with_dropout_uses_the_same_random_numbers():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def attend(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return regard.attention(x, x, dropout=0.5, backend="blocked").output

    assert torch.autograd.gradgradcheck(attend, x)


@pytest.mark.parametrize("position", ["rotary", "relative", "t5", "alibi"])
def test_a_layer_created_on_the_meta_device_works_after_loading(position: str):
    original, x = regard.MultiHead(16, 4, position=position), torch.randn(1, 5, 16)
    with torch.device("meta"):
        layer = regard.MultiHead(16, 4, position=position)
    layer = layer.to_empty(device="cpu")
    layer.load_state_dict(original.state_dict())
    assert torch.equal(layer(x).output, original(x).output)


def test_shapes_on_the_meta_device():
    layer = regard.MultiHead(16, 4, position="alibi").to("meta")
    assert layer(torch.empty(2, 5, 16, device="meta"), mask=regard.causal()).output.shape == (2, 5, 16)


def test_a_learned_sharpness_is_a_parameter_of_its_layer():
    layer = regard.AttentionLayer(4, 4, score=regard.Cosine(torch.nn.Parameter(torch.tensor(2.0))))
    assert list(dict(layer.named_parameters())) == ["sharpness"] and "sharpness" in layer.state_dict()
    layer(torch.randn(3, 4), torch.randn(5, 4)).output.sum().backward()
    assert layer.sharpness.grad is not None
    twin = copy.deepcopy(layer)
    assert twin.score.sharpness is twin.sharpness


def test_the_last_query_has_the_position_of_the_last_key_of_a_memory():
    layer, x = regard.MultiHead(16, 4, position="rotary"), torch.randn(2, 6, 16)
    whole, memory = layer(x, mask=regard.causal()).output, None
    for t in range(6):
        memory = layer.remember(x[:, t : t + 1], past=memory)
        step = layer(x[:, t : t + 1], memory, mask=regard.causal()).output  # no start
        torch.testing.assert_close(step, whole[:, t : t + 1])


def test_lists_are_converted_to_tensors():
    assert torch.equal(regard.padding([1, 2]).dense(1, 3), regard.padding(torch.tensor([1, 2])).dense(1, 3))
    ids = [[0, 0, 1]]
    assert torch.equal(regard.documents(ids).dense(3, 3), regard.documents(torch.tensor(ids)).dense(3, 3))
    x = torch.randn(2, 5, 4)
    one, each = regard.LocalP(1.0, width=2), regard.LocalP(torch.ones(2, 5), width=2)
    assert torch.equal(regard.attention(x, x, select=one).output, regard.attention(x, x, select=each).output)


def test_masks_have_no_truth_value():
    with pytest.raises(regard.ArgumentError, match="&"):
        regard.causal() and regard.padding([1])


def test_reprs_are_short():
    x = torch.randn(2, 4, 30, 8)
    seen = regard.attention(x, x, look=regard.Look(top=2, weights=True))
    assert repr(seen).startswith("Attended(output=(2, 4, 30, 8) float32, lse=(2, 4, 30) float32, weights=")
    mask = regard.causal() & regard.padding([3, 4]) & (regard.window(1, 2) | ~regard.documents([[1, 2]]))
    assert repr(mask) == "causal() & padding(2 lengths) & (window(1, 2) | ~(documents(...)))"
    assert repr(regard.prepare(x)).startswith(
        "Memory(key=(2, 4, 30, 8), value=(2, 4, 30, 8), score=ScaledDot()"
    )
    assert "heads=4, key_heads=2" in repr(regard.MultiHead(8, 4, key_heads=2, position="alibi"))


def test_a_drawing_shows_itself_in_a_notebook():
    pair = beside(draw([[1.0]], ["a"], ["b"]), draw([[1.0]], ["c"], ["d"]))
    assert pair._repr_svg_().startswith("<svg") and "b" in str(pair) and "d" in str(pair)


@pytest.mark.parametrize(
    "use",
    [
        torch.nn.Linear(4, 4),
        torch.nn.LayerNorm(4),
        torch.nn.Dropout(0.1),
        lambda attended: torch.matmul(attended, torch.eye(4)),
        torch.relu,
    ],
    ids=["linear", "layer norm", "dropout", "matmul", "relu"],
)
def test_an_attended_in_place_of_a_tensor_is_a_type_error_that_names_output(use: Any):
    attended = regard.attention(torch.ones(3, 4), torch.ones(3, 4))
    with pytest.raises(TypeError, match=r"\.output"):
        use(attended)
    assert use(attended.output).shape == (3, 4)


def test_an_attended_is_still_a_plain_named_tuple():
    attended = regard.attention(torch.ones(3, 4), torch.ones(3, 4))
    output, lse, *others = attended
    assert output is attended.output and lse is attended[1] and others == [None] * 9
    assert torch.cat(attended[:1]).shape == (3, 4) and not torch.is_tensor(attended)
    leaves = torch.utils._pytree.tree_leaves(attended)
    assert sum(isinstance(leaf, torch.Tensor) for leaf in leaves) == 2
