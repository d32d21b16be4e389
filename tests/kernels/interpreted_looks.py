"""Tests of the looking pass `fused` under Triton's interpreter, run by test_interpreted.py."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import regard
from regard import looking
from regard.checking import check
from regard.kernels.additive import tile_sizes
from regard.kernels.looking import measures, top
from regard.looking.block_pooling import block_means, block_sums
from regard.looking.look_kernels import additive_look
from tests.agreement.cases import CASES, Case
from tests.agreement.test_looking import assert_looks_agree, fused_supports

ADDITIVE = ("additive", "concat")
SUPPORTED = [
    case
    for case in CASES
    if max(case.size) < (100 if case.score in ADDITIVE else 1000) and fused_supports(case)
]
"""The largest cases run on a GPU only: the interpreter is slow."""


@pytest.mark.parametrize("score", ["inner", "additive"])
def test_looks_in_several_chunks_agree(score: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SMALL", 0)
    monkeypatch.setattr(tile_sizes, "LINEAR", 1 << 11)  # several chunks of queries
    monkeypatch.setattr(tile_sizes, "TIMES", 0)
    compared = regard.Additive(16, 16) if score == "additive" else regard.ScaledDot()
    look = regard.Look(entropy=True, alignment=True, mass=True, pooled=64, top=3)
    for lengths in ([90, 7], [90, 80], [1, 44], [20, 30]):
        query, key, bias = torch.randn(2, 130, 16), torch.randn(2, 90, 16), torch.randn(130, 90)
        options = {"score": compared, "mask": regard.padding(torch.tensor(lengths)), "bias": bias}
        seen = regard.attention(query, key, look=look, **options)
        weights = regard.attention(
            query, key, look=regard.Look(weights=True), backend="reference", **options
        ).weights
        torch.testing.assert_close(seen.entropy, torch.special.entr(weights).sum(-1), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(seen.mass, weights.sum(-2), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(seen.top.weights, weights.topk(3).values, atol=1e-4, rtol=1e-4)
        assert torch.equal(seen.alignment, weights.argmax(-1))
        expected = block_means(block_sums(weights[:, None], 64), (130, 90), 64)[:, 0]
        torch.testing.assert_close(seen.pooled, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("score", ["inner", "additive"])
def test_looks_of_a_compiled_call(score: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SMALL", 0)
    compared = regard.Additive(16, 16).requires_grad_(False) if score == "additive" else regard.ScaledDot()
    look = regard.Look(entropy=True, alignment=True, mass=True, pooled=64, top=3)

    def run(query: torch.Tensor, key: torch.Tensor) -> regard.Attended:
        return regard.attention(query, key, score=compared, mask=regard.causal(), start=20, look=look)

    query, key = torch.randn(2, 70, 16), torch.randn(2, 90, 16)
    passes = []
    for name, each in looking.PASSES.items():
        used = dataclasses.replace(
            each, run=lambda *call, name=name, run=each.run: passes.append(name) or run(*call)
        )
        monkeypatch.setitem(looking.PASSES, name, used)
    found, expected = torch.compile(run, backend="aot_eager", fullgraph=True)(query, key), run(query, key)
    assert set(passes) == {"fused"}
    for name in ("entropy", "mass", "pooled", "alignment"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    assert torch.equal(found.top.keys, expected.top.keys)


def test_the_additive_operator_has_the_shapes_that_it_declares():
    query, key, vector = torch.randn(1, 2, 70, 16), torch.randn(1, 1, 80, 16), torch.randn(1, 16)
    arguments = (query, key, torch.zeros(1, 2, 70), *[None] * 5, 0, None, 0, 1.0, 0.0, 1.0, vector)
    for wanted in ((True, True, True, 64, 3), (False, True, False, 0, 0), (True, False, True, 0, 2)):
        checks = ("test_schema", "test_faketensor")
        found = torch.library.opcheck(additive_look, (*arguments, *wanted), test_utils=checks)
        assert found == dict.fromkeys(checks, "SUCCESS")


def test_the_cases_cover_masks_and_biases():
    assert len(SUPPORTED) >= 10
    assert {case.mask for case in SUPPORTED} >= {"causal", "padding", "window", "documents", "table"}
    assert {case.bias for case in SUPPORTED} >= {"none", "tensor", "-inf"}
    assert {case.score for case in SUPPORTED} >= {*ADDITIVE, "dot", "scaled_dot", "cosine"}


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log2")  # masked, for rows that see no key
@pytest.mark.parametrize("case", SUPPORTED, ids=str)
def test_looks_agree(case: Case):
    assert_looks_agree(case, "cpu", "fused")


@pytest.mark.parametrize(
    ("rows", "columns", "groups"), [(64, 64, 1), (128, 64, 2), (64, 128, 1), (32, 32, 1)]
)
@pytest.mark.parametrize("halves", [0, 2048])
def test_every_size_of_tiles_gives_the_same_looks(
    halves: int, rows: int, columns: int, groups: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measures, "HALVES", halves)
    tiles = measures.Tiles(rows, columns, 4, 1, groups)
    monkeypatch.setattr(measures, "tiles_of", lambda width, dtype, looks, keys: tiles)
    monkeypatch.setattr(looking, "SMALL", 0)
    query, key = torch.randn(1, 200, 16), torch.randn(1, 150, 16)
    look = regard.Look(mass=True, entropy=True, alignment=True, pooled=64)
    seen = regard.attention(query, key, look=look, mask=regard.causal(), start=20)
    whole = regard.attention(query, key, look=regard.Look(weights=True), mask=regard.causal(), start=20)
    torch.testing.assert_close(seen.mass, whole.weights.sum(-2))
    torch.testing.assert_close(seen.mass.sum(), torch.tensor(200.0))
    torch.testing.assert_close(seen.entropy, torch.special.entr(whole.weights).sum(-1))
    assert torch.equal(seen.alignment, whole.weights.argmax(-1))
    expected = block_means(block_sums(whole.weights[None], 64), (200, 150), 64)[0]
    torch.testing.assert_close(seen.pooled, expected)


def test_the_mass_is_nan_where_a_query_that_sees_the_key_is_nan(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SMALL", 0)
    query, key = torch.randn(200, 16), torch.randn(200, 16)
    query[70], query[130:140] = torch.nan, torch.nan
    mask = regard.window(10, 5)
    seen = regard.attention(query, key, look=regard.Look(mass=True), mask=mask)
    whole = regard.attention(query, key, look=regard.Look(weights=True), mask=mask)
    assert 0 < seen.mass.isnan().sum() < 100
    torch.testing.assert_close(seen.mass, whole.weights.sum(-2), equal_nan=True)


def test_only_what_is_requested_is_computed():
    x = torch.randn(1, 1, 70, 16)
    entropy, alignment, mass, pooled = measures.inner_look(
        x, x, torch.zeros(1, 1, 70), *[None] * 5, 0, None, None, 1.0, 0.0, 1.0, False, True, False, 0
    )
    assert (entropy.numel(), alignment.shape, mass.numel(), pooled.numel()) == (0, (1, 1, 70), 0, 0)
    assert torch.equal(alignment, (x @ x.mT).argmax(-1))


@pytest.mark.parametrize("width", [16, 128])
def test_the_operators_have_the_shapes_that_they_declare(width: int):
    x = torch.randn(1, 2, 70, width)
    arguments = (x, x, torch.zeros(1, 2, 70), *[None] * 5, 0, None, 0, 1.0, 0.0, 1.0)
    for operator, others in (
        (measures.inner_look, (True, True, True, 64)),
        (measures.inner_look, (False, False, True, 0)),
        (top.inner_top, (3,)),
    ):
        checks = ("test_schema", "test_faketensor")
        found = torch.library.opcheck(operator, (*arguments, *others), test_utils=checks)
        assert found == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_keys_can_be_loaded_by_a_tensor_descriptor(
    dtype: torch.dtype, heads_first: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measures, "has_tma", lambda device: True)
    monkeypatch.setattr(looking, "SMALL", 0)
    sizes = [(2, 4, 150, 32), (2, 2, 90, 32)]
    if heads_first:
        query, key = (torch.randn(*size).to(dtype) for size in sizes)
    else:
        query, key = (torch.randn(b, n, h, d).to(dtype).transpose(1, 2) for b, h, n, d in sizes)
    assert measures.key_block(key, measures.tiles_of(32, dtype)) is not None
    look = regard.Look(mass=True, entropy=True, alignment=True)
    mask = regard.padding(torch.tensor([90, 7])) & regard.window(30, 20)
    seen = regard.attention(query, key, look=look, mask=mask, start=3)
    whole = regard.attention(query, key, look=regard.Look(weights=True), mask=mask, start=3).weights
    torch.testing.assert_close(seen.mass, whole.sum(-2), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(seen.entropy, torch.special.entr(whole).sum(-1), atol=1e-3, rtol=1e-3)
    seen_any = whole.any(-1)
    chosen = whole.gather(-1, seen.alignment.clamp_min(0)[..., None])[..., 0]
    assert torch.equal(seen.alignment >= 0, seen_any) and not seen_any.all()
    torch.testing.assert_close(chosen, whole.amax(-1), atol=1e-3, rtol=1e-3)


def test_keys_that_are_no_blocks_of_a_matrix_are_loaded_by_pointers():
    key = torch.zeros(2, 2, 64, 32, dtype=torch.bfloat16)
    tiles = measures.tiles_of(32, key.dtype)
    assert measures.key_block(key, tiles) is not None
    assert measures.key_block(key[:, :1, :5], tiles) is not None
    assert measures.key_block(key.float(), tiles) is None
    assert measures.key_block(key[..., 4:20], tiles) is None
    assert measures.key_block(key[:, :, :1].expand(-1, -1, 64, -1), tiles) is None


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("bias", [None, 0.1])
def test_the_soft_cap_is_computed(temperature: float, bias: float | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SMALL", 0)
    query, key = 2 * torch.randn(2, 70, 16), torch.randn(2, 90, 16)
    options = {
        "mask": regard.causal(), "start": 20, "softcap": 3.0, "select": regard.Soft(temperature=temperature),
        "bias": None if bias is None else bias * torch.randn(70, 90),
    }  # fmt: skip
    look = regard.Look(mass=True, entropy=True, alignment=True, pooled=64)
    assert regard.explain(query, key, look=look, **options).looking == "fused"
    seen = regard.attention(query, key, look=look, **options)
    monkeypatch.setattr(looking, "choose_pass", lambda call, look: "materialised")
    expected = regard.attention(query, key, look=look, **options)
    assert torch.equal(seen.alignment, expected.alignment)
    for name in ("mass", "entropy", "pooled"):
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("top", [1, 5, 16])
def test_the_largest_weights_of_equal_and_of_few_keys(top: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SMALL", 0)
    query, key = torch.randn(70, 16), torch.randn(40, 16).repeat(4, 1)  # each score occurs four times
    look = regard.Look(top=top, alignment=True, entropy=True)
    options: dict = {"mask": regard.causal(), "start": 0}
    assert regard.explain(query, key, look=look, **options).looking == "fused"
    seen = regard.attention(query, key, look=look, **options)
    whole = regard.attention(query, key, look=regard.Look(weights=True, entropy=True), **options)
    count = torch.arange(1, 71)[:, None].clamp_max(top)
    assert torch.equal((seen.top.keys >= 0).sum(-1, keepdim=True), count)
    torch.testing.assert_close(seen.top.weights, whole.weights.topk(top).values)
    expected = whole.weights.gather(-1, seen.top.keys.clamp_min(0)).where(seen.top.keys >= 0, 0.0)
    torch.testing.assert_close(seen.top.weights, expected)
    assert all(len(set(row)) == len(row) for row in seen.top.keys[16:].tolist())
    ties = seen.top.weights.diff(dim=-1) == 0
    assert (seen.top.keys.diff(dim=-1)[ties & (seen.top.keys[:, 1:] >= 0)] > 0).all()
    assert torch.equal(seen.alignment, seen.top.keys[:, 0])
    torch.testing.assert_close(seen.entropy, whole.entropy)


@pytest.mark.parametrize("kind", ["equal", "few large", "growing"])
def test_the_largest_weights_of_many_keys(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SMALL", 0)
    query, key = torch.randn(2, 150, 16), torch.randn(2, 700, 16)
    if kind == "equal":  # whole numbers: the scores of a query are equal, however BLAS sums
        query, key = query.round(), key[:, :1].round().expand(-1, 700, -1)
    elif kind == "few large":
        query, key = query.abs(), key * 0.1
        key[:, 3::64] = 1 + torch.rand(2, 11, 16)
    else:
        query, key = query.abs(), key * 0.1 + torch.arange(700)[:, None] / 700
    look = regard.Look(top=4, mass=True)
    seen = regard.attention(query, key, look=look)
    whole = regard.attention(query, key, look=regard.Look(weights=True)).weights
    assert torch.equal(
        seen.top.keys, whole.topk(4).indices if kind != "equal" else torch.arange(4).expand(2, 150, 4)
    )
    torch.testing.assert_close(seen.top.weights, whole.topk(4).values)
    torch.testing.assert_close(seen.mass, whole.sum(-2))


def test_more_largest_weights_are_left_to_the_next_pass():
    x, look = torch.randn(20, 8), regard.Look(top=17)
    call = check(x, x, score=regard.ScaledDot(), select=regard.Soft(), look=look)
    (reason,) = looking.PASSES["fused"].reasons(call, look)
    assert "top=17" in reason


@pytest.mark.parametrize("masked", [False, True])
def test_looks_of_additive_scores_are_joined_from_chunks_of_queries(
    masked: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(looking, "SMALL", 0)
    monkeypatch.setattr(tile_sizes, "TIMES", 0)
    monkeypatch.setattr(tile_sizes, "LINEAR", 64 * 60)  # 64 queries at a time
    query, key, score = torch.randn(150, 8), torch.randn(60, 8), regard.Additive(8, 8, 8)
    options: dict = {"score": score, "bias": torch.randn(150, 60), "start": 5}
    options["mask"] = regard.causal() & regard.dense(torch.rand(150, 60) > 0.2) if masked else None
    look = regard.Look(mass=True, entropy=True, alignment=True, pooled=64, top=2)
    with torch.no_grad():
        assert regard.explain(query, key, look=look, **options).looking == "fused"
        seen = regard.attention(query, key, look=look, **options)
        monkeypatch.setattr(looking, "choose_pass", lambda call, look: "materialised")
        expected = regard.attention(query, key, look=look, **options)
    assert torch.equal(seen.alignment, expected.alignment) and torch.equal(seen.top.keys, expected.top.keys)
    for name in ("mass", "entropy", "pooled"):
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name), atol=2e-5, rtol=2e-5)
