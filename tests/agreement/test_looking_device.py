"""The looking pass `fused` on a GPU: longer inputs than in test_looking.py, and the k largest weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard

pytestmark = pytest.mark.gpu
LOOK = regard.Look(entropy=True, alignment=True, mass=True, pooled=64, top=16)


def bfloat16(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="cuda").bfloat16()


def equal(seen: regard.Attended, other: regard.Attended) -> bool:
    """Whether all results of LOOK have the same bits."""
    pairs = [
        (getattr(seen, name), getattr(other, name)) for name in ("entropy", "alignment", "mass", "pooled")
    ]
    pairs += [(seen.top.keys, other.top.keys), (seen.top.weights, other.top.weights)]
    return all(torch.equal(*pair) for pair in pairs)


def assert_agrees(seen: regard.Attended, weights: torch.Tensor, error: float) -> None:
    """Compare the results of LOOK with weights in float64, (B, H, T, S)."""

    def near(ours: torch.Tensor, exact: torch.Tensor) -> None:
        torch.testing.assert_close(ours.double(), exact, rtol=error, atol=error)

    def named(keys: torch.Tensor) -> torch.Tensor:
        return weights.gather(-1, keys.clamp_min(0)).where(keys >= 0, 0.0)

    near(seen.entropy, torch.special.entr(weights).sum(-1))
    near(seen.mass, weights.sum(-2))
    near(seen.top.weights, weights.topk(16).values)
    near(named(seen.top.keys), weights.topk(16).values)
    near(named(seen.alignment[..., None])[..., 0], weights.amax(-1))
    rows, columns = weights.shape[-2] // 64, weights.shape[-1] // 64
    blocks = weights[..., : rows * 64, : columns * 64].unflatten(-1, (columns, 64)).unflatten(-3, (rows, 64))
    near(seen.pooled[..., :rows, :columns], blocks.mean((-1, -3)))


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "table"])
@pytest.mark.parametrize(("width", "softcap"), [(64, None), (128, None), (64, 5.0)])
def test_looks_of_grouped_heads(width: int, softcap: float | None, mask: str):
    query, key, value = bfloat16(2, 8, 1100, width), bfloat16(2, 2, 1330, width), bfloat16(2, 2, 1330, width)
    masks: dict[str, Any] = {
        "none": None,
        "causal": regard.causal(),
        "padding": regard.padding(torch.tensor([1330, 400], device="cuda")),
        "table": torch.rand(1100, 1330, device="cuda") > 0.3,
    }
    options: dict[str, Any] = {"mask": masks[mask], "start": 230, "softcap": softcap}
    assert regard.explain(query, key, value, look=LOOK, **options).looking == "fused"
    seen, again = (regard.attention(2 * query, key, value, look=LOOK, **options) for _ in range(2))
    assert equal(seen, again)
    assert torch.equal(seen.output, regard.attention(2 * query, key, value, **options).output)
    exact = (2 * query).double(), key.double(), value.double()
    whole = regard.attention(*exact, look=regard.Look(weights=True), backend="reference", **options)
    assert_agrees(seen, whole.weights.double(), 2e-3)


def inputs_of(kind: str, width: int) -> tuple[torch.Tensor, torch.Tensor, regard.Mask | None]:
    """Return query (2, 8, T, D), key (2, 2, S, D) and mask, for test_the_largest_weights_are_exact()."""
    queries, keys = (200, 4100) if kind == "wide rows" else (1500, 1500)
    query, key = bfloat16(2, 8, queries, width), bfloat16(2, 2, keys, width)
    if kind == "ties":
        key = key[:, :, torch.randint(0, 40, (keys,), device="cuda")].contiguous()
    elif kind == "peaked":
        query = 6 * query
    elif kind == "local":
        places = torch.linspace(0, 2, keys, device="cuda")[:, None]
        key, query = (key * 0.2 + places).bfloat16(), query.abs()
    elif kind == "popular":  # all queries prefer keys of one slot, so that the lists of some threads are full
        key = (0.3 * key).bfloat16()
        key[:, :, 5::64] += (1 + torch.rand(2, 2, len(range(5, keys, 64)), 1, device="cuda")).bfloat16()
        query = (query.abs() + 0.5).bfloat16()
    lengths = torch.tensor([1500, 9], device="cuda")
    masks = {"causal": regard.causal(), "local": regard.causal(), "padding": regard.padding(lengths)}
    return query, key, masks.get(kind)


@pytest.mark.parametrize("top", [1, 8, 16])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(
    "kind", ["random", "causal", "padding", "ties", "peaked", "local", "wide rows", "popular"]
)
def test_the_largest_weights_are_exact(kind: str, width: int, top: int):
    """Largest first; of equal scores, the lowest key first; twice the same bits."""
    query, key, mask = inputs_of(kind, width)
    look = regard.Look(top=top, entropy=True, mass=True)
    assert regard.explain(query, key, mask=mask, look=look).looking == "fused"
    looks = (look, look, regard.Look(top=top, alignment=True))
    seen, again, alone = (regard.attention(query, key, mask=mask, look=each) for each in looks)
    assert torch.equal(seen.top.keys, again.top.keys) and torch.equal(seen.top.weights, again.top.weights)
    assert torch.equal(seen.top.keys, alone.top.keys)
    assert torch.equal(alone.alignment, alone.top.keys[..., 0])
    scores = query.double() @ key.repeat_interleave(4, 1).double().mT * width**-0.5
    if kind in ("causal", "local"):
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), -torch.inf)
    if kind == "padding":
        scores[1, ..., 9:] = -torch.inf
    weights = scores.softmax(-1)
    values, keys = weights.topk(top).values, seen.top.keys
    torch.testing.assert_close(seen.top.weights.double(), values, rtol=2e-3, atol=1e-6)
    assert torch.equal(keys >= 0, values > 0)
    named = weights.gather(-1, keys.clamp_min(0)).where(keys >= 0, 0.0)
    torch.testing.assert_close(named, values, rtol=1e-4, atol=1e-9)
    ordered = keys.sort(-1).values
    assert not ((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)).any()
    equal_weights = (seen.top.weights.diff(dim=-1) == 0) & (keys[..., 1:] >= 0)
    assert (keys.diff(dim=-1)[equal_weights] > 0).all()
    torch.testing.assert_close(
        seen.entropy.double(), torch.special.entr(weights).sum(-1), rtol=2e-3, atol=2e-3
    )
    torch.testing.assert_close(seen.mass.double(), weights.sum(-2), rtol=2e-3, atol=2e-3)


def test_a_nan_stays_in_its_row_and_in_the_keys_it_sees():
    query, key = bfloat16(1, 4, 500, 64), bfloat16(1, 4, 500, 64)
    query[0, 1, 300] = torch.nan
    seen = regard.attention(query, key, look=LOOK, mask=regard.causal())
    assert seen.entropy[0, 1, 300].isnan() and seen.entropy.isnan().sum() == 1
    assert seen.mass[0, 1, :301].isnan().all() and seen.mass.isnan().sum() == 301


def test_65536_tokens_need_little_memory():
    query, key, value = (bfloat16(1, 2, 65536, 64) for _ in range(3))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seen = regard.attention(query, key, value, look=LOOK, mask=regard.causal())
    assert torch.cuda.max_memory_allocated() - before < 2**30
    torch.testing.assert_close(
        seen.mass.sum(-1), torch.full((1, 2), 65536.0, device="cuda"), rtol=1e-3, atol=0
    )
    row = (query[0, 1, 60000].double() @ key[0, 1, :60001].double().T / 8).softmax(-1)
    torch.testing.assert_close(
        seen.entropy[0, 1, 60000].double(), torch.special.entr(row).sum(), rtol=1e-3, atol=1e-3
    )
