"""Tests of the kernels under Triton's interpreter; test_interpreted.py runs this file in subprocesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import regard
from regard.backends import BACKENDS, fused
from regard.kernels import launch
from regard.kernels.additive import operators, tile_sizes
from regard.kernels.additive.forward import Forward, Sight
from tests.agreement.cases import DTYPES, Inputs, checked
from tests.agreement.test_backends import assert_case_agrees
from tests.kernels.cases import SMALL, Unprojected


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles, so that the small test cases have several tiles."""
    tile = replace(tile_sizes.LAUNCHES["short"], rows=16, columns=32, read_rows=16, read_columns=32, width=16)
    tiles = dict.fromkeys(tile_sizes.LAUNCHES, tile)
    monkeypatch.setattr(tile_sizes, "LAUNCHES", tiles)
    monkeypatch.setattr(tile_sizes, "CHANGES", {})


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the device is large, so that every reduction is split into parts."""
    monkeypatch.setattr(launch, "processors", lambda device: 64)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Treat every call with more than one query as "long", with chunks of one tile of rows."""
    monkeypatch.setattr(tile_sizes.Shape, "kind", property(lambda s: "decode" if s.queries == 1 else "long"))
    monkeypatch.setattr(tile_sizes.Shape, "chunk", property(lambda s: min(s.queries, s.launch.rows)))
    yield


def assert_agrees(arguments: dict, error: float = 2e-5) -> list[torch.Tensor]:
    """Compare output, lse and gradients of the kernels with the reference in float64, and return them."""
    results = []
    for backend, dtype in (("fused", torch.float32), ("reference", torch.float64)):
        tensors = {
            name: arguments[name].detach().to(dtype).requires_grad_() for name in ("query", "key", "value")
        }
        score = regard.Additive(tensors["query"].shape[-1], tensors["key"].shape[-1]).to(dtype)
        with torch.no_grad():
            for parameter in score.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        rest = {name: value for name, value in arguments.items() if name not in tensors}
        attended = regard.attention(**tensors, score=score, **rest, backend=backend)
        doutput = torch.linspace(-1, 1, attended.output.numel()).view_as(attended.output).to(dtype)
        inputs = [*tensors.values(), *score.parameters()]
        results.append(
            [attended.output, attended.lse, *torch.autograd.grad(attended.output, inputs, doutput)]
        )
    for ours, oracle in zip(*results, strict=True):
        size = max(1.0, oracle[oracle.isfinite()].abs().max().item()) if oracle.isfinite().any() else 1.0
        torch.testing.assert_close(ours.double(), oracle, rtol=0, atol=error * size)
    return results[0]


def inputs(queries: int, keys: int, width: int = 6, depth: int = 5, heads: int = 1) -> dict:
    return {
        "query": torch.randn(2, heads, queries, width),
        "key": torch.randn(2, heads, keys, width),
        "value": torch.randn(2, heads, keys, depth),
    }


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_agrees(case):
    assert not BACKENDS["fused"].reasons(checked(Inputs(case).call(DTYPES[case.dtype])[0]))
    assert_case_agrees(case, "fused", "cpu")


@pytest.mark.parametrize(
    ("mask", "depth"),
    [(None, 5), (regard.window(3, 1), 5), (regard.causal(), 5), (regard.causal(), 260)],
    ids=str,
)
def test_long_shapes_agree(long, parts, mask, depth: int):
    assert_agrees({**inputs(18, 35, 5, depth), "mask": mask, "start": 2})


@pytest.mark.parametrize(("queries", "mask"), [(20, regard.window(9, 7)), (1, None)], ids=str)
def test_forward_and_backward_drop_the_same_weights(
    parts, queries: int, mask: regard.Mask | None, monkeypatch: pytest.MonkeyPatch
):
    """With the unit matrix as value, the output is the dropped weights; so they are known here."""
    monkeypatch.setattr(tile_sizes, "CHANGES", {("short", "back"): {"rows": 32, "columns": 16}})
    query, key, vector = torch.randn(2, 2, queries, 6), torch.randn(2, 1, 35, 6), torch.randn(1, 6)
    arguments = {"score": Unprojected(vector.requires_grad_()), "mask": mask, "start": 9, "backend": "fused"}
    exact = regard.attention(query, key, torch.eye(35).expand(2, 1, 35, 35), **arguments).output
    torch.manual_seed(3)
    value = torch.eye(35).repeat(2, 1, 1, 1).requires_grad_()
    inputs = [query.requires_grad_(), key.requires_grad_(), value, vector]
    output = regard.attention(*inputs[:3], **arguments, dropout=0.4).output
    kept = output != 0
    torch.testing.assert_close(output[kept], exact[kept] / 0.6)
    assert 0.5 < kept[exact > 0].double().mean() < 0.7
    torch.manual_seed(3)
    assert torch.equal(regard.attention(*inputs[:3], **arguments, dropout=0.4).output, output)
    doutput = torch.linspace(-1, 1, output.numel()).view_as(output)
    ours = torch.autograd.grad(output, inputs, doutput)
    wide = [each.detach().double().requires_grad_() for each in inputs]
    scores = torch.tanh(wide[0][..., :, None, :] + wide[1][..., None, :, :]) @ wide[3][0]
    if mask is not None:
        scores = scores.masked_fill(~mask.dense(queries, 35, start=9), -torch.inf)
    expected = (scores.softmax(-1) * kept / 0.6) @ wide[2]
    for mine, oracle in zip(ours, torch.autograd.grad(expected, wide, doutput.double()), strict=True):
        assert (mine.double() - oracle).norm() <= 2e-6 * oracle.norm()


def test_document_ids_may_be_non_contiguous():
    ids = torch.tensor([[0, 1], [0, 1], [1, 0], [1, 0], [2, 2]]).t()
    assert not ids.is_contiguous()
    assert_agrees({**inputs(5, 5), "mask": regard.documents(ids)})


@pytest.mark.parametrize("mask", [None, regard.padding(torch.tensor([35, 0])), regard.window(3, 1)], ids=str)
def test_softmax_tile_of_one_row_agrees(mask: regard.Mask | None, monkeypatch: pytest.MonkeyPatch):
    tile = replace(tile_sizes.LAUNCHES["decode"], read_rows=1)
    monkeypatch.setattr(tile_sizes, "LAUNCHES", {**tile_sizes.LAUNCHES, "decode": tile})
    assert_agrees({**inputs(1, 35, heads=2), "mask": mask, "start": 20})


def test_split_reductions_agree(parts):
    assert_agrees(inputs(3, 35, width=66))
    assert_agrees({**inputs(1, 35), "mask": regard.padding(torch.tensor([35, 3]))})


@pytest.mark.parametrize("group", [1, 2, 4])
def test_shared_reciprocals_agree_for_every_group_size(group: int, monkeypatch: pytest.MonkeyPatch):
    tile = replace(tile_sizes.LAUNCHES["short"], group=group, unroll=2)
    monkeypatch.setattr(tile_sizes, "LAUNCHES", dict.fromkeys(tile_sizes.LAUNCHES, tile))
    assert_agrees(inputs(5, 7, width=11))


@pytest.mark.parametrize(("fours", "warps"), [(2, 2), (4, 4), (2, 4)])
def test_rows_divided_among_warps_agree(fours: int, warps: int, monkeypatch: pytest.MonkeyPatch):
    tile = replace(tile_sizes.LAUNCHES["short"], fours=fours, warps=warps)
    monkeypatch.setattr(tile_sizes, "LAUNCHES", dict.fromkeys(tile_sizes.LAUNCHES, tile))
    assert_agrees(inputs(19, 35, width=7))


@pytest.mark.parametrize("mask", [regard.causal(), regard.window(3, 0)])
def test_backward_pass_with_other_tiles_agrees(mask: regard.Mask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tile_sizes, "CHANGES", {("short", "back"): {"rows": 64, "columns": 16}})
    arguments = inputs(19, 35, width=30)
    assert tile_sizes.Shape.of(*arguments.values()).kind == "short"
    assert_agrees({**arguments, "mask": mask})


@pytest.mark.parametrize("size", [3.0, 12.0, 40.0, 300.0])
def test_large_queries_and_keys_agree(size: float):
    arguments = inputs(6, 35)
    arguments["query"][0, 0, 2] = size
    arguments["key"][0, 0, 5] = -size
    arguments["key"][0, 0, 6] = size
    assert_agrees(arguments, error=1e-4)


def results_of(
    tensors: list[torch.Tensor], backend: str, dtype: torch.dtype, mask: regard.Mask | None = None
) -> list[torch.Tensor]:
    """Return output, lse and gradients of additive attention without projections."""
    inputs = [each.to(dtype, copy=True).requires_grad_() for each in tensors]
    attended = regard.attention(*inputs[:3], score=Unprojected(inputs[3]), mask=mask, backend=backend)
    doutput = torch.linspace(-1, 1, attended.output.numel()).view_as(attended.output).to(dtype)
    return [attended.output, attended.lse, *torch.autograd.grad(attended.output, inputs, doutput)]


SCALES = {
    "8": lambda x: x * 8,
    "outlier channel": lambda x: x * torch.tensor([1, 1, 100.0, 1, 1, 1]),
    "far channel": lambda x: x + torch.tensor([0, 0, 1e4, 0, 0, 0]) * (1 if x.shape[2] == 6 else -1),
    "most channels are wide": lambda x: x * 60,
    "large keys": lambda x: x * (1 if x.shape[2] == 6 else 60),
    "large queries": lambda x: x * (60 if x.shape[2] == 6 else 1),
}
"""Changes of query and key. Kernels compute wide channels from q + k (see kernels/tanh.py)."""


@pytest.mark.parametrize("name", SCALES)
def test_inputs_of_every_scale_are_as_precise(name: str):
    tensors = [*(SCALES[name](torch.randn(2, 1, size, 6)) for size in (6, 35)), torch.randn(2, 1, 35, 5)]
    tensors.append(torch.randn(1, 6))
    ours = results_of(tensors, "fused", torch.float32)
    for mine, exact in zip(ours, results_of(tensors, "reference", torch.float64), strict=True):
        assert (mine.double() - exact).norm() <= 4e-6 * exact.norm()


def test_wide_channels_at_every_place_agree():
    """A program finds the wide channels as bits of a number: also the first, the last and those between."""
    tensors = [torch.randn(1, 1, size, 130) for size in (18, 70)]
    for tensor, sign in zip(tensors, (1.0, -1.0), strict=True):
        tensor[..., [0, 1, 31, 32, 62, 63, 64, 127, 129]] += 50.0 * sign
    tensors += [torch.randn(1, 1, 70, 5), torch.randn(1, 130)]
    ours = results_of(tensors, "fused", torch.float32)
    for mine, exact in zip(ours, results_of(tensors, "reference", torch.float64), strict=True):
        assert (mine.double() - exact).norm() <= 4e-6 * exact.norm()


@pytest.mark.parametrize("keys", [3, 40])
def test_channels_are_wide_if_query_and_key_have_large_elements_of_opposite_signs(keys: int):
    query, key = torch.zeros(1, 1, 18, 16), torch.zeros(1, 1, keys, 16)
    query[0, 0, 1, :6] = torch.tensor([-50.0, -50.0, 50.0, 30.0, -30.0, torch.nan])
    query[0, 0, 17, 6] = -39.0
    key[0, 0, keys - 1, :7] = torch.tensor([20.0, 30.0, 20.0, -50.0, 50.0, 0.0, 30.0])
    mask = Sight(None, None, None, 0, None, None)
    forward = Forward(query, key, key, torch.ones(1, 16), mask, 1.0, hold=False)
    of_query, of_key = forward.prepared(turned=False).whole
    crossed = (of_query & of_key >> 8) | (of_key & of_query >> 8) | (of_query | of_key) >> 16
    assert (crossed & 1).nonzero().flatten().tolist() == [1, 3, 5, 6]


@pytest.mark.parametrize(
    ("heads", "scale", "mask"),
    [((2, 2), 60.0, None), ((2, 1), 3.0, regard.causal()), ((1, 1), 1.0, regard.padding([45, 30]))],
)
def test_gradients_agree_in_float16(heads: tuple[int, int], scale: float, mask: regard.Mask | None):
    shapes = [(2, heads[0], 40, 70), (2, heads[1], 45, 70), (2, heads[1], 45, 5), (1, 70)]
    tensors = [torch.randn(shape) * (scale if i < 2 else 1.0) for i, shape in enumerate(shapes)]
    assert_precise_in(torch.float16, tensors, mask)


@pytest.mark.parametrize("wide", [(), (3,), (290,), (0, 31, 32, 63, 64, 290)])
def test_gradients_agree_in_bfloat16(wide: tuple[int, ...]):
    """With no wide channel, or some in the first and the last block of channels."""
    tensors = [torch.randn(1, 1, 40, 300), torch.randn(1, 1, 9, 300), torch.randn(1, 1, 9, 5)]
    for each in tensors[:2]:
        each[..., wide] *= 100.0
    assert_precise_in(torch.bfloat16, [*tensors, torch.randn(1, 300)], None)


def assert_precise_in(dtype: torch.dtype, tensors: list[torch.Tensor], mask: regard.Mask | None) -> None:
    """Compare errors against float64: at most twice those of plain PyTorch in this dtype, plus a rounding."""
    exact, plain, ours = (
        results_of([each.to(dtype) for each in tensors], backend, of, mask)
        for backend, of in (("reference", torch.float64), ("reference", dtype), ("fused", dtype))
    )
    for true, usual, mine in zip(exact, plain, ours, strict=True):
        allowed = 2 * (usual.double() - true).norm() + torch.finfo(dtype).eps * true.norm()
        assert (mine.double() - true).norm() <= allowed


@pytest.mark.parametrize("lengths", [None, [3, 1]])
def test_many_queries_in_parts_agree(lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operators, "MANY_QUERIES", 48)
    monkeypatch.setattr(operators, "ROWS_OF_PART", 16)
    heads = []

    class Counted(operators.Backward):
        def run(self) -> tuple[torch.Tensor, ...]:
            heads.append(self.shape.heads)
            return super().run()

    monkeypatch.setattr(operators, "Backward", Counted)
    mask = None if lengths is None else regard.padding(lengths)
    assert_agrees({**inputs(48, 3), "mask": mask})
    assert heads == [3]


@pytest.mark.parametrize("queries", [19, 1])
def test_uninitialised_memory_has_no_effect(queries: int, monkeypatch: pytest.MonkeyPatch):
    """With a wide channel in one of three spans of channels, and other numbers in all allocated tensors."""
    tensors = [torch.randn(2, 1, size, 130) for size in (queries, 35)] + [
        torch.randn(2, 1, 35, 5),
        torch.randn(1, 130),
    ]
    tensors[0][0, 0, 0, 70], tensors[1][1, 0, 3, 129] = 90.0, -80.0
    expected = results_of(tensors, "reference", torch.float64)
    allocate = torch.Tensor.new_empty

    def filled(self: torch.Tensor, *sizes: Any, **options: Any) -> torch.Tensor:
        tensor = allocate(self, *sizes, **options)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 0x55)

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)
    ours = results_of(tensors, "fused", torch.float32)
    for mine, exact in zip(ours, expected, strict=True):
        assert (mine.double() - exact).norm() <= 1e-5 * exact.norm()


@pytest.mark.filterwarnings("ignore:All-NaN")
@pytest.mark.parametrize("far", [torch.nan, torch.inf])
def test_nan_and_inf_in_a_query_stay_in_its_row(far: float):
    tensors = [
        *(torch.randn(2, 1, size, 6) for size in (19, 35)),
        torch.randn(2, 1, 35, 5),
        torch.randn(1, 6),
    ]
    tensors[0][0, 0, 3, 2] = far
    ours = results_of(tensors, "fused", torch.float32)
    expected = results_of(tensors, "reference", torch.float64)
    for mine, exact in zip(ours[:3], expected, strict=False):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert ours[0][0, 0, 3].isnan().all() == (far != far)


@pytest.mark.parametrize("queries", [1, 18])
def test_fully_masked_rows_and_masked_nan_keys(queries: int):
    arguments = inputs(queries, 34, heads=2)
    for name in ("key", "value"):
        arguments[name][1] = torch.nan
        arguments[name][0, :, 30:] = torch.nan
    lengths = torch.tensor([30, 0])
    output, lse, *gradients = (
        each.detach()
        for each in assert_agrees(
            {**{n: t.nan_to_num(7.0) for n, t in arguments.items()}, "mask": regard.padding(lengths)}
        )
    )
    poisoned = run_operators(arguments, lengths)
    assert all(map(torch.equal, (output, lse, *gradients[:3]), poisoned))
    assert (output[1] == 0).all() and (lse[1] == -torch.inf).all() and (gradients[0][1] == 0).all()


def run_operators(arguments: dict, lengths: torch.Tensor) -> list[torch.Tensor]:
    """Call the operators directly, without attention(), which would replace NaN in masked keys."""
    query, key, value = arguments.values()
    ramp = torch.linspace(-1, 1, 6)
    width = query.shape[-1]
    weight = torch.linspace(-1, 1, width * width).view(width, width)
    call = checked({**arguments, "score": regard.Additive(width, width), "mask": None, "bias": None,
                    "select": regard.Soft(), "start": 0})  # fmt: skip
    assert fused.reasons(call) == [] and fused._load()
    projected = query @ weight, key @ weight
    sight = (lengths, None, None, 0, None, None, 1.0)
    forward, backward = torch.ops.regard.additive_forward, torch.ops.regard.additive_backward
    output, lse, norm, scores = forward(*projected, value, ramp[None], *sight, True, None, None, 0.0)
    doutput = torch.linspace(-1, 1, output.numel()).view_as(output)
    gradients = backward(
        doutput, *projected, value, ramp[None], norm, scores, *sight, True, None, None, 0.0, False
    )
    return [output, lse, gradients[0] @ weight.T, gradients[1] @ weight.T, gradients[2]]


def test_too_many_sequences_for_the_launch_grid_are_rejected():
    arguments = {name: each[:1].expand(65536, -1, -1, -1) for name, each in inputs(1, 2).items()}
    arguments |= {"score": regard.Additive(6, 6), "mask": None, "bias": None, "select": regard.Soft()}
    (reason,) = fused.reasons(checked({**arguments, "start": 0}))
    assert "65,535" in reason and "65,536" in reason


def test_double_backward():
    tensors = [torch.randn(1, 1, size, 3, dtype=torch.float32, requires_grad=True) for size in (2, 3, 3)]
    score = regard.Additive(3, 3)
    results = []
    for backend in ("fused", "reference"):
        output = regard.attention(*tensors, score=score, mask=regard.causal(), backend=backend).output
        (slope,) = torch.autograd.grad(output.square().sum(), tensors[0], create_graph=True)
        results.append(torch.autograd.grad(slope.square().sum(), tensors))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("queries", [1, 5])
def test_torch_compile_without_graph_breaks(queries: int):
    score = regard.Additive(4, 4)

    def run(query: torch.Tensor, key: torch.Tensor) -> regard.Attended:
        return regard.attention(query, key, score=score, mask=regard.causal(), start=3, backend="fused")

    torch._dynamo.reset()
    query, key = (torch.randn(2, size, 4, requires_grad=True) for size in (queries, 7))
    compiled, eager = torch.compile(run, fullgraph=True, backend="aot_eager")(query, key), run(query, key)
    assert torch.equal(compiled.output, eager.output) and torch.equal(compiled.lse, eager.lse)
    for ours, theirs in zip(
        torch.autograd.grad(compiled.output.sum(), (query, key)),
        torch.autograd.grad(eager.output.sum(), (query, key)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("queries", [1, 5])
def test_gradient_of_the_query_alone(queries: int):
    tensors, score = list(inputs(queries, 20).values()), regard.Additive(6, 6).requires_grad_(False)
    gradients = []
    for count in (1, 3):
        arguments = [each.requires_grad_(place < count) for place, each in enumerate(tensors)]
        output = regard.attention(*arguments, score=score, backend="fused").output
        gradients.append(torch.autograd.grad(output.square().sum(), arguments[0])[0])
        assert output.grad_fn is not None
    assert torch.equal(*gradients) and gradients[0].any()


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("queries", [1, 5])
def test_operators_pass_opcheck(queries: int, others: bool):
    assert fused._load()
    tensors = [torch.randn(2, 1, size, 3).half() for size in (queries, 20, 20)]
    tensors.append(torch.randn(1, 3).half())
    sight = (torch.tensor([20, 9]), None, None, 2, None, 0, 0.5)
    extra = (torch.randn(1, 1, queries, 20), torch.tensor([7]), 0.1) if others else (None, None, 0.0)
    utilities = ("test_schema", "test_faketensor")
    forward, backward = torch.ops.regard.additive_forward, torch.ops.regard.additive_backward
    checks = torch.library.opcheck(forward.default, (*tensors, *sight, True, *extra), test_utils=utilities)
    assert set(checks.values()) == {"SUCCESS"}
    output, _, *held = forward(*tensors, *sight, True, *extra)
    arguments = (torch.randn_like(output), *tensors, *held, *sight, others, *extra, others)
    checks = torch.library.opcheck(backward.default, arguments, test_utils=utilities)
    assert set(checks.values()) == {"SUCCESS"}
