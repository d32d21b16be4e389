"""Tests of the backend `masked` under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.backends import BACKENDS, masked
from regard.kernels.inner import operators
from regard.kernels.inner.operators import Tiles
from tests.agreement.cases import DTYPES, FACTORS, Case, Inputs, checked, covering
from tests.agreement.test_backends import assert_case_agrees
from tests.kernels.cases import Unprojected

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about NaN and log2(0)


CASE_MASKS = ["padding", "causal padding", "window", "causal window", "none", "causal"]
SUPPORTED = covering(
    {
        **FACTORS,
        "score": ["scaled_dot"],
        "mask": CASE_MASKS,
        "bias": ["none"],
        "size": [(1, 35), (35, 17), (17, 35)],
        "width": [16, 20],
        "value": ["narrow", "wide"],
        "layout": ["transposed", "sliced"],
        "heads": [(2, 2), (4, 2)],
        "dtype": ["float32", "bfloat16"],
    }
)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles, so that the small test cases have several tiles; other sizes for each kernel."""
    sizes = {"forward": Tiles(32, 16, 1, 1), "query": Tiles(16, 32, 1, 1), "key": Tiles(32, 16, 1, 1)}
    tiles = {(name, dtype): {256: sizes[name]} for name, dtype in operators.TILES}
    monkeypatch.setattr(operators, "TILES", tiles)
    monkeypatch.setattr(operators, "SMALL_TILES", {})


@pytest.mark.parametrize("case", SUPPORTED, ids=str)
def test_agrees(case: Case):
    assert not BACKENDS["masked"].reasons(checked(Inputs(case).call(DTYPES[case.dtype])[0]))
    assert_case_agrees(case, "masked", "cpu")


MASKS: dict[str, Any] = {
    "padding": lambda queries, keys: regard.padding([keys - 20, 0]),
    "one length": lambda queries, keys: regard.padding(torch.tensor([3], dtype=torch.int32)),
    "causal and padding": lambda queries, keys: regard.causal() & regard.padding([keys - 20, 0]),
    "window": lambda queries, keys: regard.window(left=4, right=1),
    "causal window": lambda queries, keys: regard.causal() & regard.window(left=9),
    "window and padding": lambda queries, keys: (
        regard.window(left=9, right=2) & regard.padding([keys - 20, 0])
    ),
}


@pytest.mark.parametrize("size", [(19, 50), (70, 150)])
@pytest.mark.parametrize("name", MASKS)
def test_hidden_keys_may_be_nan(name: str, size: tuple[int, int]):
    (queries, keys), start = size, 3
    mask = MASKS[name](queries, keys)
    seen = mask.dense(queries, keys, start, batch=2, heads=4).expand(2, 4, queries, keys)
    hidden = ~seen.any(-2).view(2, 2, 2, keys).any(2)
    assert hidden.any()
    query = torch.randn(2, 4, queries, 12).requires_grad_()
    key, value = torch.randn(2, 2, keys, 12), torch.randn(2, 2, keys, 6)
    key[hidden], value[hidden] = torch.nan, torch.inf
    leaves = [query, key.requires_grad_(), value.requires_grad_()]
    results = []
    for backend in ("masked", "masked", "reference"):
        attended = regard.attention(*leaves, mask=mask, start=start, backend=backend)
        ramp = torch.linspace(-1, 1, attended.output.numel()).view_as(attended.output)
        results.append([attended.output, attended.lse, *torch.autograd.grad(attended.output, leaves, ramp)])
    for ours, again, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact)
        assert torch.equal(ours, again)
    assert all((gradient[hidden] == 0).all() for gradient in results[0][3:])


def test_a_visible_nan_reaches_the_output():
    query, key, value = (torch.randn(1, 1, 20, 8) for _ in range(3))
    lengths = regard.padding([12])
    for tensor in (key, value):
        kept = tensor[0, 0, 3, 0].clone()
        tensor[0, 0, 3, 0] = torch.nan
        attended = regard.attention(query, key, value, mask=lengths, backend="masked")
        assert attended.output[..., 0].isnan().all()
        tensor[0, 0, 3, 0] = kept


def test_heads_after_rows_in_memory_stay_there():
    query, key, value = (torch.randn(2, 20, 3, 8).transpose(1, 2) for _ in range(3))
    output = regard.attention(query, key, value, mask=regard.padding([20, 7]), backend="masked").output
    assert output.transpose(1, 2).is_contiguous()


def test_lengths_and_gradients_of_other_layouts():
    rows = [torch.randn(2, 20, 2, 8).transpose(1, 2) for _ in range(3)]
    heads = [torch.randn(2, 2, 20, 8) for _ in range(3)]
    lengths = torch.tensor([20, 3, 7])
    masks = [regard.padding(lengths[:2]), regard.padding(lengths[::2]), regard.padding(lengths[1:])]
    gradients = [torch.randn(2, 2, 20, 8), torch.randn(2, 20, 2, 8).transpose(1, 2)]
    gradients.append(torch.randn(8, 20, 2, 2).permute(3, 2, 1, 0))
    for tensors in (rows, heads):
        for mask, gradient in zip(masks, gradients, strict=True):
            leaves = [each.detach().requires_grad_() for each in tensors]
            results = []
            for backend in ("masked", "reference"):
                output = regard.attention(*leaves, mask=mask, backend=backend).output
                results.append([output, *torch.autograd.grad(output, leaves, gradient)])
            torch.testing.assert_close(*results)


def test_saved_tensors_may_have_other_strides():
    """As with torch.autograd.graph.save_on_cpu(), which returns contiguous copies in the backward pass."""
    leaves = [torch.randn(2, 20, 2, 8).transpose(1, 2) for _ in range(3)]
    leaves = [each.requires_grad_() for each in (leaves[0].contiguous(), *leaves[1:])]
    mask, gradient = regard.padding([20, 7]), torch.randn(2, 2, 20, 8)
    exact = torch.autograd.grad(
        regard.attention(*leaves, mask=mask, backend="reference").output, leaves, gradient
    )
    for copies in (True, False, True, False):

        def unpacked(saved: Tensor, copies: bool = copies) -> Tensor:
            return saved.clone(memory_format=torch.contiguous_format) if copies else saved

        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpacked):
            output = regard.attention(*leaves, mask=mask, backend="masked").output
        torch.testing.assert_close(torch.autograd.grad(output, leaves, gradient), exact)


def _attend(query: Tensor, key: Tensor, value: Tensor, backend: str = "masked") -> Tensor:
    return regard.attention(query, key, value, mask=regard.padding([5, 3]), backend=backend).output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.*:DeprecationWarning")
def test_compile():
    leaves = [torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(_attend, backend="aot_eager", fullgraph=True)
    found, exact = compiled(*leaves), _attend(*leaves, backend="reference")
    torch.testing.assert_close(found, exact)
    ours, theirs = (torch.autograd.grad(each.square().sum(), leaves) for each in (found, exact))
    torch.testing.assert_close(ours, theirs)


def test_double_backward():
    leaves = [torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(3)]
    slopes = []
    for backend in ("masked", "reference"):
        output = _attend(*leaves, backend=backend)
        (first,) = torch.autograd.grad(output.square().sum(), leaves[0], create_graph=True)
        slopes.append(torch.autograd.grad(first.square().sum(), leaves))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("lengths", [None, [7, 3]])
@pytest.mark.parametrize("shape", [(2,), (2, 3)], ids=["without heads", "heads"])
def test_a_repeated_additive_step(shape: tuple[int, ...], lengths: list[int] | None):
    score = regard.Additive(4, 5, 6, heads=3 if len(shape) == 2 else None)
    query, key = torch.randn(*shape, 1, 4, requires_grad=True), torch.randn(*shape, 7, 5, requires_grad=True)
    memory = regard.prepare(key, score=score, mask=None if lengths is None else regard.padding(lengths))
    leaves, results = [query, key, *score.parameters()], []
    for backend in ("fused", "fused", "reference"):
        attended = regard.attention(query, memory, backend=backend)
        gradients = torch.autograd.grad(attended.output.square().sum(), leaves, retain_graph=True)
        results.append([attended.output, attended.lse, *gradients])
    for first, second, exact in zip(*results, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(second, exact)


ADDITIVE_MASKS = {
    "none": None,
    "causal": regard.causal(),
    "padding": regard.padding([7, 3]),
    "causal and padding": regard.causal() & regard.padding([7, 3]),
}


@pytest.mark.parametrize("projected", [True, False])
@pytest.mark.parametrize("name", ADDITIVE_MASKS)
def test_a_repeated_additive_call(name: str, projected: bool):
    mask = ADDITIVE_MASKS[name]
    vector = torch.linspace(-1, 1, 5)[None].requires_grad_()
    score = regard.Additive(5, 5, 6) if projected else Unprojected(vector)
    leaves = [torch.randn(2, each, 5, requires_grad=True) for each in (7, 7, 7)]
    if "padding" in name:
        leaves[1].data[1, 3:], leaves[2].data[1, 3:] = torch.nan, torch.inf
    leaves += [*score.parameters()] if projected else [vector]
    results = []
    for backend in ("fused", "fused", "reference"):
        attended = regard.attention(*leaves[:3], score=score, mask=mask, backend=backend)
        gradients = torch.autograd.grad(attended.output.square().sum(), leaves, retain_graph=True)
        results.append([attended.output, attended.lse, *gradients])
    for first, second, exact in zip(*results, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(second, exact, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("part", ["causal padding", "window"])
def test_the_operator_for_tracers_has_the_same_gradients(part: str, monkeypatch: pytest.MonkeyPatch):
    mask = {
        "causal padding": regard.causal() & regard.padding(torch.tensor([30, 12])),
        "window": regard.window(5, 3),
    }[part]
    found = []
    for traced in (False, True):
        torch.manual_seed(0)
        tensors = [torch.randn(2, 2, length, 16, requires_grad=True) for length in (20, 35, 35)]
        monkeypatch.setattr(masked, "_traced", lambda *tensors, traced=traced: traced)
        output = regard.attention(*tensors, mask=mask, start=3, backend="masked").output
        found.append([output, *torch.autograd.grad(output.square().sum(), tensors)])
    for plain, by_operator in zip(*found, strict=True):
        assert torch.equal(plain, by_operator) and plain.any()
