"""Tests of the backend `short` under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.backends import BACKENDS
from regard.checking import check
from regard.fast.joint_linear import joined
from tests.agreement.cases import DTYPES, FACTORS, Case, Inputs, checked, covering
from tests.agreement.test_backends import assert_case_agrees

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about NaN and log2(0)

SUPPORTED = covering(
    {
        **FACTORS,
        "score": ["scaled_dot"],
        "mask": ["padding", "causal padding", "none", "causal"],
        "bias": ["none"],
        "size": [(1, 35), (35, 17), (17, 128)],
        "width": [16, 20],
        "value": ["narrow", "wide"],
        "layout": ["transposed", "sliced"],
        "heads": [(2, 2)],
        "dtype": ["float32", "bfloat16"],
    }
)


@pytest.mark.parametrize("case", SUPPORTED, ids=str)
def test_agrees(case: Case):
    assert not BACKENDS["short"].reasons(checked(Inputs(case).call(DTYPES[case.dtype])[0]))
    assert_case_agrees(case, "short", "cpu")


@pytest.mark.parametrize("name", ["padding", "one length", "causal", "causal and padding"])
def test_hidden_keys_may_be_nan(name: str):
    queries, keys, start = 19, 50, 3
    padding = regard.padding([keys - 20, 0])
    mask = {
        "padding": padding,
        "one length": regard.padding(torch.tensor([3], dtype=torch.int32)),
        "causal": regard.causal(),
        "causal and padding": regard.causal() & padding,
    }[name]
    hidden = ~mask.dense(queries, keys, start, batch=2, heads=2).expand(2, 2, queries, keys).any(-2)
    assert hidden.any()
    key, value = torch.randn(2, 2, keys, 12), torch.randn(2, 2, keys, 6)
    key[hidden], value[hidden] = torch.nan, torch.inf
    leaves = [each.requires_grad_() for each in (torch.randn(2, 2, queries, 12), key, value)]
    results = []
    for backend in ("short", "reference"):
        attended = regard.attention(*leaves, mask=mask, start=start, backend=backend)
        ramp = torch.linspace(-1, 1, attended.output.numel()).view_as(attended.output)
        results.append([attended.output, attended.lse, *torch.autograd.grad(attended.output, leaves, ramp)])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("keys", [5, 7])
def test_gradients_of_one_linear_layer_are_adjacent(keys: int):
    """Queries, keys and values are slices of the result of one layer, if all have 5 positions."""
    source = torch.randn(2, keys, 3, 2, 8)
    leaves = [source.permute(2, 0, 3, 1, 4)[i, :, :, : 5 if i == 0 else keys] for i in range(3)]
    gradients = []
    for backend in ("short", "reference"):
        own = [each.detach().requires_grad_() for each in leaves]
        output = regard.attention(*own, backend=backend).output
        gradients.append(torch.autograd.grad(output.sin().sum(), own))
    for ours, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, exact)
    rows = [each.transpose(1, 2).flatten(2) for each in gradients[0]][0 if keys == 5 else 1 :]
    assert joined(rows).data_ptr() == rows[0].data_ptr()


def test_dropout_is_the_same_in_both_passes():
    """With the unit matrix as values, the output is the weights after dropout, which show the factors."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 20, 20) for _ in range(3))
    eye = torch.eye(20).expand(2, 3, 20, 20)

    def run(*tensors: Tensor) -> Tensor:
        torch.manual_seed(5)
        return regard.attention(*tensors, mask=regard.causal(), dropout=0.3, backend="short").output

    weights = regard.attention(query, key, eye, mask=regard.causal(), backend="reference").output
    dropped = run(query, key, eye)
    factors = torch.where(dropped > 0, 1 / 0.7, 0.0)
    torch.testing.assert_close(dropped, weights * factors)
    seen = weights > 1e-6
    assert abs((dropped[seen] > 0).float().mean() - 0.7) < 0.05
    leaves = [each.requires_grad_() for each in (query, key, value)]
    hidden = torch.ones(20, 20).triu(1).bool()
    scores = (query @ key.mT / 20**0.5).masked_fill(hidden, -torch.inf)
    expected = (scores.softmax(-1) * factors) @ value
    gradient = torch.randn(2, 3, 20, 20)
    torch.testing.assert_close(run(*leaves), expected)
    ours = torch.autograd.grad(run(*leaves), leaves, gradient)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, leaves, gradient), rtol=1e-4, atol=1e-5)


def test_auto_selects_short_in_training_with_dropout():
    x = torch.randn(1, 2, 5, 8).bfloat16().requires_grad_()
    for dropout, trains in ((0.1, True), (0.0, True), (0.1, False)):
        with torch.set_grad_enabled(trains):
            call = check(x, x, x, score=regard.ScaledDot(), select=regard.Soft(), dropout=dropout)
            assert not BACKENDS["short"].reasons(call)
            assert (not BACKENDS["short"].not_requested(call)) == (dropout > 0 and trains)
