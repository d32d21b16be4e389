"""Tests of the kernels on a CUDA device, at full size, with lengths that are not multiples of tiles."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.backends import reference
from regard.kernels.additive.tile_sizes import Shape
from tests.agreement.cases import Case, checked
from tests.agreement.test_backends import assert_case_agrees
from tests.kernels.cases import Unprojected

pytestmark = pytest.mark.gpu

SHAPES = {
    "short": (3, 50, 50, 1000, 1000),
    "tiny": (5, 7, 5, 3, 9),
    "uneven": (2, 61, 77, 515, 33),
    "ragged": (2, 45, 70, 200, 100),
    "held": (2, 512, 511, 256, 256),
    "long": (2, 1031, 1027, 128, 128),
    "long and wide": (1, 700, 701, 40, 300),
    "decode": (64, 1, 50, 1000, 2000),
    "decode far": (2, 1, 20011, 128, 128),
}

MASKS = {
    "none": lambda queries, keys: None,
    "causal padding": lambda queries, keys: regard.causal() & regard.padding(torch.tensor([keys, keys // 2])),
    "window": lambda queries, keys: regard.window(9, 17),
}


def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    batch, queries, keys, width, depth = shape
    sizes = [(batch, queries, width), (batch, keys, width), (batch, keys, depth)]
    return [torch.randn(size, device="cuda").to(dtype).requires_grad_() for size in sizes]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", SHAPES)
def test_full_size_agrees(name: str, dtype: str, mask: str):
    batch, queries, keys, width, _ = SHAPES[name]
    score = regard.Additive(width, width).cuda()
    hiding = MASKS[mask](queries, keys) if batch == 2 or mask != "causal padding" else regard.causal()
    start = max(0, keys - queries) if hiding is not None else 0
    assert_as_precise(tensors(SHAPES[name], getattr(torch, dtype)), score, hiding, start)


def assert_as_precise(
    plain: list[torch.Tensor], score: regard.Score, mask: regard.Mask | None, start: int
) -> None:
    """The error of output and gradients against float64 is at most twice that of PyTorch in the same dtype,
    plus one rounding step."""
    dtype, results = plain[0].dtype, {}
    for kind in ("fused", "plain", "oracle"):
        wide = torch.float64 if kind == "oracle" else dtype
        inputs = [each.detach().to(wide).requires_grad_() for each in plain]
        own = score.to(dtype).to(wide)
        options = {"score": own, "mask": mask, "start": start, "bias": None, "select": regard.Soft()}
        if kind == "plain":
            arguments = dict(zip(("query", "key", "value"), inputs, strict=True)) | options
            output = reference.define(checked(arguments)).output
            output = output if plain[0].dim() == 4 else output.squeeze(1)
        else:
            backend = "fused" if kind == "fused" else "blocked"
            output = regard.attention(*inputs, **options, backend=backend).output
        doutput = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        results[kind] = [output, *torch.autograd.grad(output, [*inputs, own.vector], doutput)]
    for ours, theirs, oracle in zip(*results.values(), strict=True):
        error, allowed = ((each.double() - oracle).abs().max().item() for each in (ours, theirs))
        step = torch.finfo(dtype).eps + 16 * torch.finfo(torch.float32).eps
        assert error <= 2 * allowed + step * oracle.abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_queries_of_few_keys_agree(dtype: torch.dtype):
    """The backward pass splits the queries into parts."""
    score = regard.Additive(96, 96).cuda()
    for mask in (None, regard.padding(torch.tensor([5, 2], device="cuda"))):
        assert_as_precise(tensors((2, 2048, 5, 96, 40), dtype), score, mask, 0)


SCALES = {
    "8": lambda x, sign: x * 8,
    "outlier channel": lambda x, sign: torch.cat([x[..., :1] * 100, x[..., 1:]], -1),
    "far channel": lambda x, sign: torch.cat([x[..., :1] + sign * 100, x[..., 1:]], -1),
}
"""Changes of query and key; `sign` is 1 for the query and -1 for the key."""


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["short", "uneven", "held", "long", "decode"])
def test_inputs_of_every_scale_are_as_precise(name: str, dtype: str, scale: str):
    query, key, value = tensors(SHAPES[name], getattr(torch, dtype))
    width = query.shape[-1]
    score = regard.Additive(width, width).cuda()
    with torch.no_grad():  # projections that change nothing
        for weight in (score.query_weight, score.key_weight):
            weight.copy_(torch.eye(width))
    scaled = [SCALES[scale](each.detach(), sign) for each, sign in ((query, 1), (key, -1))]
    assert_as_precise([*scaled, value], score, None, 0)


@pytest.mark.parametrize("name", ["short", "held", "long", "decode"])
def test_bias_and_dropout_agree(name: str):
    batch, queries, keys, width, _ = SHAPES[name]
    query, key, _ = tensors((batch, queries, keys, width, 1), torch.float32)
    value = torch.eye(keys, device="cuda").expand(batch, keys, keys)  # the output is the dropped weights
    bias = torch.randn(1, queries, keys, device="cuda")
    bias[..., ::3] = -torch.inf
    bias.requires_grad_()
    score = regard.Additive(width, width).cuda()
    options = {"score": score, "bias": bias, "mask": regard.window(700, 800), "dropout": 0.3}
    output = regard.attention(query, key, value, **options, backend="fused").output
    kept, inputs = output != 0, [query, key, bias, score.vector]
    doutput = torch.randn_like(output)
    ours = [output, *torch.autograd.grad(output, inputs, doutput)]
    look, options["dropout"] = regard.Look(weights=True, gradient=True), 0.0
    weights = regard.attention(query, key, value, **options, look=look, backend="blocked").weights
    expected = weights.view_as(output) * kept / 0.7
    assert 0.65 < kept[weights.view_as(output) > 1e-30].double().mean() < 0.75
    for mine, theirs in zip(ours, [expected, *torch.autograd.grad(expected, inputs, doutput)], strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()


def test_each_replay_drops_other_weights():
    query, key, value = (each.detach() for each in tensors((2, 33, 40, 16, 16), torch.float32))
    score = regard.Additive(16, 16).cuda()
    regard.attention(query, key, value, score=score, dropout=0.5, backend="fused")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        output = regard.attention(query, key, value, score=score, dropout=0.5, backend="fused").output
    graph.replay()
    first = output.clone()
    graph.replay()
    assert not torch.equal(first, output)


def test_chunks_with_large_keys_agree():
    """With a shorter last chunk, and wide channels."""
    query, key, value = (torch.randn(1, 8, size, 64, device="cuda").bfloat16() for size in (2000, 512, 512))
    key[:, :, ::97] *= 6
    shape = Shape.of(query, key, value, back=True)
    assert shape.chunk < shape.queries and shape.queries % shape.chunk
    assert_as_precise([query, key, value], regard.Additive(64, 64).cuda(), None, 0)


@pytest.mark.parametrize("width", [64, 1030])
def test_any_width_agrees(width: int):
    case = Case("additive", "padding", "none", (63, 17), width, "wide", (4, 2), 0, 1.0, "sliced", "float32")
    assert_case_agrees(case, "fused", "cuda")


@pytest.mark.parametrize("queries", [1, 5, 300])
@pytest.mark.parametrize("source", ["query", "key", "both"])
def test_nan_reaches_the_rows_that_attend_to_it(queries: int, source: str):
    inputs = dict(
        zip(("query", "key", "value"), tensors((2, queries, 40, 24, 24), torch.float32), strict=True)
    )
    with torch.no_grad():
        if source == "both":  # inf - inf is NaN
            inputs["query"][0, 0, 3], inputs["key"][0, 7, 3] = torch.inf, -torch.inf
        else:
            inputs[source][0, 0, 3] = torch.nan
    score = regard.Additive(24, 24).cuda()
    output = regard.attention(*inputs.values(), score=score, backend="fused").output
    assert output[0, 0].isnan().any() and output[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_two_runs_give_the_same_bits(dtype: torch.dtype):
    for name in ("short", "held", "long", "decode"):
        inputs = tensors(SHAPES[name], dtype)
        score = regard.Additive(inputs[0].shape[-1], inputs[0].shape[-1]).cuda().to(dtype)
        runs = []
        for _ in range(2):
            output = regard.attention(*inputs, score=score, backend="fused").output
            runs.append([output, *torch.autograd.grad(output.square().sum(), [*inputs, score.vector])])
        assert all(map(torch.equal, *runs)), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SHAPES)
def test_calls_in_a_loop_give_the_same_bits(name: str, dtype: torch.dtype):
    """Calls of the same shapes with other values come between two calls with the same values."""
    batch, queries, keys, width, _ = SHAPES[name]
    score = Unprojected(torch.randn(1, width, device="cuda", dtype=dtype).requires_grad_())
    lengths = torch.full((batch,), keys // 2, device="cuda")
    bias = torch.randn(queries, keys, device="cuda", requires_grad=True)
    for options in ({}, {"mask": regard.padding(lengths)}, {"bias": bias, "dropout": 0.2}):
        runs, leaves = [], [score.vector, *([bias] if "bias" in options else [])]
        for step in (1, 0, 2, 1):
            torch.manual_seed(step)
            inputs = tensors(SHAPES[name], dtype)
            output = regard.attention(*inputs, score=score, backend="fused", **options).output
            doutput = torch.randn_like(output)
            runs.append([output, *torch.autograd.grad(output, [*inputs, *leaves], doutput)])
        assert all(map(torch.equal, runs[0], runs[3]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SHAPES)
def test_keys_behind_padding_are_not_read(name: str, dtype: torch.dtype):
    """Hidden keys and values are NaN and inf, and are not set to 0 before."""
    batch, _, keys, width, _ = SHAPES[name]
    inputs, count = tensors(SHAPES[name], dtype), keys // 2 - 1
    score = Unprojected(torch.randn(1, width, device="cuda", dtype=dtype).requires_grad_())
    cut = [each.detach()[:, :count].clone().requires_grad_() for each in inputs[1:]]
    with torch.no_grad():
        inputs[1][:, count:], inputs[2][:, count:] = torch.nan, torch.inf
    results = []
    for each, mask in (
        (inputs, regard.padding(torch.full((batch,), count, device="cuda"))),
        ([inputs[0], *cut], None),
    ):
        output = regard.attention(*each, score=score, mask=mask, backend="fused").output
        doutput = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        results.append([output, *torch.autograd.grad(output, [*each, score.vector], doutput)])
    for hidden in results[0][2:4]:
        assert not hidden[:, count:].any()
    results[0][2:4] = [each[:, :count] for each in results[0][2:4]]
    for ours, exact in zip(*results, strict=True):
        assert (ours.float() - exact.float()).norm() <= (
            2e-2 if dtype == torch.bfloat16 else 1e-4
        ) * exact.float().norm()


def test_memory_is_linear():
    peaks = []
    for length in (2048, 8192):
        inputs = tensors((1, length, length, 64, 64), torch.bfloat16)
        score = regard.Additive(64, 64).cuda().bfloat16()
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            output = regard.attention(*inputs, score=score, backend="fused").output
            torch.autograd.grad(output.sum(), inputs)
            peak = torch.cuda.max_memory_allocated() - before
            del output
        peaks.append(peak)
    assert Shape(1, 1, 1, 8192, 8192, 64, 64).kind == "long"
    assert peaks[1] < 5 * peaks[0] and peaks[1] < 8192 * 8192 * 4


def test_auto_selects_the_fused_backend():
    query, key, value = tensors((2, 5, 7, 16, 16), torch.float32)
    score = regard.Additive(16, 16).cuda()
    table = torch.ones(5, 7, dtype=torch.bool, device="cuda")
    for options in (
        {"mask": regard.causal()},
        {"dropout": 0.5},
        {"bias": torch.zeros(5, 7, device="cuda")},
        {"mask": table},
    ):
        assert regard.explain(query, key, value, score=score, **options).backend == "fused"


def test_cuda_graph_replay():
    inputs = tensors((2, 33, 40, 16, 16), torch.float32)
    score = regard.Additive(16, 16).cuda()

    def run() -> list[torch.Tensor]:
        output = regard.attention(*inputs, score=score, mask=regard.causal(), backend="fused").output
        return [output.detach(), *torch.autograd.grad(output.sum(), inputs)]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, run()))


class Attending(torch.nn.Module):
    """A layer that calls attention()."""

    def __init__(self, mask: regard.Mask | None, score: regard.Score):
        super().__init__()
        self.mask, self.score = mask, score

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return regard.attention(query, key, mask=self.mask, score=self.score).output


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # of make_graphed_callables() itself
@pytest.mark.parametrize("name", ["none", "causal", "padding", "additive"])
def test_graphed_callables_compute_the_same_bits(name: str):
    mask = {"causal": regard.causal(), "padding": regard.padding(torch.tensor([20, 7], device="cuda"))}
    score = regard.Additive(64, 64).cuda() if name == "additive" else regard.ScaledDot()
    sizes = ((2, 1, 64), (2, 20, 64)) if name == "additive" else ((2, 4, 20, 64), (2, 4, 20, 64))
    query, key, *samples = (torch.randn(size, device="cuda", requires_grad=True) for size in sizes * 2)
    plain = Attending(mask.get(name), score)
    graphed = torch.cuda.make_graphed_callables(Attending(mask.get(name), score), tuple(samples))
    results = []
    for layer in (graphed, plain):
        output = layer(query, key)
        results.append([output, *torch.autograd.grad(output.sin().sum(), (query, key))])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
