"""Tests of additive_short_kernel under Triton's interpreter; test_interpreted.py runs this file."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.backends import BACKENDS
from regard.kernels.additive import forward
from regard.kernels.additive.short import ShortLaunch, additive_short_kernel, short_launch
from regard.kernels.additive.tile_sizes import Shape
from tests.agreement.cases import DTYPES, FACTORS, Case, Inputs, checked, covering
from tests.agreement.test_backends import assert_case_agrees
from tests.kernels.cases import Unprojected
from tests.kernels.interpreted import assert_precise_in, results_of

CASES: list[Case] = covering(
    {
        **FACTORS,
        "score": ["additive", "concat"],
        "mask": ["none", "padding", "causal padding", "causal window", "documents", "table"],
        "bias": ["none", "learned tensor", "-inf"],
        "size": [(1, 19), (5, 35), (18, 5)],
        "width": [4, 10, 24],
        "value": ["narrow", "wide"],
        "heads": [(2, 2), (2, 1)],
        "dtype": ["float32", "bfloat16", "float16"],
    }
)


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Use programs of 64 threads, and return a list of the grids of additive_short_kernel."""
    grids: list[tuple[int, ...]] = []

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return additive_short_kernel[grid]

    monkeypatch.setattr(forward, "additive_short_kernel", Counted())
    use(monkeypatch, 7)
    return grids


def use(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Use programs of this many query rows."""
    parameters = ShortLaunch(rows, threads=64)
    monkeypatch.setattr(forward, "short_launch", lambda shape, device, padded: parameters)


def tensors(queries: int, keys: int, width: int, depth: int = 5) -> list[torch.Tensor]:
    """Return query, key, value and vector."""
    sizes = [(2, 1, queries, width), (2, 1, keys, width), (2, 1, keys, depth), (1, width)]
    return [torch.randn(size) for size in sizes]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees(case: Case, launches: list[tuple[int, ...]]):
    assert not BACKENDS["fused"].reasons(checked(Inputs(case).call(DTYPES[case.dtype])[0]))
    assert_case_agrees(case, "fused", "cpu")
    assert launches


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 9, 13, 16])
@pytest.mark.parametrize(("keys", "width"), [(1, 1), (9, 70)])
def test_every_number_of_rows_agrees(
    rows: int, keys: int, width: int, launches: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    use(monkeypatch, rows)
    inputs = tensors(17, keys, width)
    ours = results_of(inputs, "fused", torch.float32)
    for mine, exact in zip(ours, results_of(inputs, "reference", torch.float64), strict=True):
        assert (mine.double() - exact).norm() <= 2e-6 * exact.norm() + 1e-12
    assert launches == [(2 * -(-17 // rows),)]


SCALES = {
    "8": lambda x, sign: x * 8,
    "outlier channel": lambda x, sign: x * torch.where(torch.arange(x.shape[-1]) == 3, 100.0, 1.0),
    "opposite": lambda x, sign: x + torch.where(torch.arange(x.shape[-1]) == 3, 1e4, 0.0) * sign,
    "large keys": lambda x, sign: x * (1.0 if sign > 0 else 60.0),
    "large queries": lambda x, sign: x * (60.0 if sign > 0 else 1.0),
    "large": lambda x, sign: x * 60,
}
"""Changes of query and key; `sign` is 1 for the query and -1 for the key."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SCALES)
def test_inputs_of_every_scale_are_as_precise(name: str, dtype: str):
    inputs = tensors(9, 11, 70)
    inputs[:2] = [SCALES[name](each, sign) for each, sign in zip(inputs[:2], (1, -1), strict=True)]
    if dtype == "bfloat16":
        assert_precise_in(torch.bfloat16, inputs, None)
        return
    ours = results_of(inputs, "fused", torch.float32)
    for mine, exact in zip(ours, results_of(inputs, "reference", torch.float64), strict=True):
        assert (mine.double() - exact).norm() <= 4e-6 * exact.norm()


def test_infinite_elements_agree():
    inputs = tensors(9, 11, 24)
    inputs[0][0, 0, 2, 5], inputs[0][1, 0, 3, 6] = torch.inf, -torch.inf
    inputs[1][0, 0, 4, 7], inputs[1][1, 0, 8, 9] = torch.inf, -torch.inf
    query, key, value, vector = (each.double() for each in inputs)
    scores = torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ vector[0]
    ours = results_of(inputs, "fused", torch.float32)
    torch.testing.assert_close(ours[0].double(), scores.softmax(-1) @ value, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[1].double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_nan_reaches_only_the_rows_that_attend_to_it():
    query, key, value, vector = tensors(9, 11, 24)
    query[0, 0, 2, 5] = key[1, 0, 9, 7] = torch.nan
    key[0, 0, 10], value[0, 0, 10] = torch.nan, torch.nan  # beyond the length of the first sequence
    mask = regard.padding(torch.tensor([10, 11])) & regard.window(8, 8)
    output = regard.attention(query, key, value, score=Unprojected(vector), mask=mask, backend="fused").output
    rows = output.isnan()
    assert torch.equal(rows.all(-1), rows.any(-1))
    assert rows[0, 0, :, 0].nonzero().tolist() == [[2]]
    assert rows[1, 0, :, 0].nonzero().tolist() == [[each] for each in range(1, 9)]


def test_uninitialised_memory_has_no_effect(monkeypatch: pytest.MonkeyPatch):
    inputs = tensors(19, 35, 130)
    inputs[0][0, 0, 0, 70], inputs[1][1, 0, 3, 129] = 90.0, -80.0
    mask = regard.padding(torch.tensor([35, 0]))
    expected = results_of(inputs, "reference", torch.float64, mask)
    allocate = torch.Tensor.new_empty

    def filled(self: torch.Tensor, *sizes: Any, **options: Any) -> torch.Tensor:
        found = allocate(self, *sizes, **options)
        return found.fill_(torch.nan) if found.is_floating_point() else found.fill_(1)

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)
    for mine, exact in zip(results_of(inputs, "fused", torch.float32, mask), expected, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


def test_scores_that_are_kept_do_not_change_the_output():
    query, key, value, vector = tensors(9, 11, 24)
    arguments = {"score": Unprojected(vector), "mask": regard.padding([11, 4]), "backend": "fused"}
    plain = regard.attention(query, key, value, **arguments)
    trained = regard.attention(query.requires_grad_(), key, value, **arguments)
    assert torch.equal(plain.output, trained.output) and torch.equal(plain.lse, trained.lse)


@pytest.mark.parametrize(
    ("sizes", "one", "padded"),
    [
        ((64, 50, 50, 1000), True, True),
        ((64, 50, 64, 1000), False, True),
        ((64, 50, 65, 1000), False, False),
        ((2, 3, 5, 7), True, True),
        ((2, 3, 1, 7), False, False),
        ((1, 100_000, 63, 64), False, False),  # the temporary memory of all programs would be large
    ],
)
def test_short_calls_are_one_launch(sizes: tuple[int, ...], one: bool, padded: bool):
    """one, padded: whether calls without and with padding are one launch."""
    batch, queries, keys, width = sizes
    shape = Shape(batch, 1, 1, queries, keys, width, width)
    for expected, lengths in ((one, False), (padded, True)):
        assert (short_launch(shape, torch.device("cpu"), lengths) is not None) == expected
