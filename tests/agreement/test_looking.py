"""Every looking pass against the reference: every look, after every backend that returns an lse."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import regard
from regard import blocks
from regard.backends import BACKENDS, reference
from regard.checking import check
from regard.looking import PASSES, blockwise
from tests.agreement.cases import CASES, DTYPES, Case, Inputs, checked
from tests.agreement.exact import in_float64

LOOK = regard.Look(rows=(0, -1), top=3, alignment=True, entropy=True, mass=True, pooled=64)
FORWARDS = [
    "reference", "masked", "sdpa-cpu", "sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "fused", "blocked",
]  # fmt: skip


def largest(tensor: torch.Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def error(found: torch.Tensor, oracle: torch.Tensor) -> float:
    return (found.double() - oracle).abs().max().item() if oracle.numel() else 0.0


def assert_looks_agree(case: Case, device: str, name: str = "blocked") -> dict[str, float]:
    """Compare the looks of a pass with float64 on the same inputs, after every forward backend.

    Returns the tolerance of each look relative to its largest value: the largest error that would pass.
    The pass computes in float32 at least, whatever the dtype of the call. Only rounding is allowed: of the
    scores, of the lse, and of sums over keys and rows.
    """
    inputs, dtype = Inputs(case, device, gradients=False), DTYPES[case.dtype]
    call = checked(inputs.call(dtype)[0], replace(LOOK, weights=name == "blocked"))
    exact = in_float64(call)
    assert call.look is not None and not PASSES[name].reasons(call, call.look)
    oracle = PASSES["materialised"].run(exact, reference.run(exact), call.look)
    scores, visible = reference.compare(exact)
    loudest = scores[visible].abs().max().item() / case.temperature if visible.any() else 1.0
    step = 8 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * max(1.0, loudest)
    if dtype in (torch.bfloat16, torch.float16):
        step += 2e-4  # the exp of PyTorch's CPU kernel in half precision is exact to about 5e-5
    for forward in FORWARDS:
        if BACKENDS[forward].reasons(call):
            continue
        seen = PASSES[name].run(call, BACKENDS[forward].run(call), call.look)
        for look in ("rows", "entropy", "mass", "pooled", *(["weights"] if name == "blocked" else [])):
            wanted, found = getattr(oracle, look), getattr(seen, look)
            assert found.shape == wanted.shape
            limit = step * (largest(wanted) if look == "pooled" else max(1.0, largest(wanted)))
            assert error(found, wanted) <= limit, (forward, look)
        assert torch.equal(seen.alignment < 0, oracle.alignment < 0)
        whole = torch.softmax(torch.where(visible, scores / case.temperature, -torch.inf), -1)
        chosen = whole.gather(-1, seen.alignment.clamp_min(0)[..., None])[..., 0]
        largest_weight = whole.amax(-1).where(seen.alignment >= 0, 0.0)
        assert error(chosen.where(seen.alignment >= 0, 0.0), largest_weight) <= step, forward
        assert error(seen.top.weights, oracle.top.weights) <= step
        assert torch.equal(seen.top.keys < 0, oracle.top.keys < 0)
        assert torch.equal(seen.alignment, seen.top.keys[..., 0])
        # The returned key has the returned weight, and no other key has a larger one.
        named = whole.gather(-1, seen.top.keys.clamp_min(0)).where(seen.top.keys >= 0, 0.0)
        assert error(named, oracle.top.weights) <= step
    sizes = {look: largest(getattr(oracle, look)) for look in ("rows", "entropy", "mass")}
    return {look: step * max(1.0, size) / size for look, size in sizes.items() if size}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_looks_without_blocks_agree(case: Case):
    assert_looks_agree(case, "cpu")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocked_looks_agree(case: Case, device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blockwise, "AT_ONCE", 0)
    monkeypatch.setattr(blocks, "AT_ONCE", 1 << 9)
    monkeypatch.setattr(blocks, "ROWS", 48)
    assert_looks_agree(case, device)


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize(
    "mask", [None, regard.causal(), regard.window(3, 2), regard.causal() & regard.window(4, 9)]
)
def test_blocks_without_a_mask_are_those_in_which_all_keys_are_visible(mask: regard.Mask | None, start: int):
    x = torch.randn(1, 1, 8, 4), torch.randn(1, 1, 12, 4)
    call = check(*x, x[1], score=regard.Dot(), select=regard.Soft(), mask=mask, start=start)
    visible = call.mask.tile(call.whole).expand(1, 1, 8, 12)[0, 0]
    for top, left in itertools.product(range(8), range(12)):
        for bottom, right in itertools.product(range(top + 1, 9), range(left + 1, 13)):
            rows, columns = slice(top, bottom), slice(left, right)
            assert blockwise._sees_all(call, rows, columns) == bool(visible[rows, columns].all())
    padded = replace(call, mask=call.mask & regard.padding(torch.tensor([12])))
    assert not blockwise._sees_all(padded, slice(0, 1), slice(0, 1))


def fused_supports(case: Case) -> bool:
    """Whether the pass `fused` supports a case, apart from its device."""
    call = checked(Inputs(case, "cpu", gradients=False).call(DTYPES[case.dtype])[0], LOOK)
    return all(" on cpu" in reason for reason in PASSES["fused"].reasons(call, LOOK))


# Without a GPU, the tests of these cases are skipped; there is no need to build the inputs of each case.
FUSED_CASES = [case for case in CASES if not torch.cuda.is_available() or fused_supports(case)]


@pytest.mark.gpu
@pytest.mark.parametrize("case", FUSED_CASES, ids=str)
def test_fused_looks_agree(case: Case):
    assert_looks_agree(case, "cuda", "fused")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["reference", "sdpa", "blocked"])
def test_output_and_lse_are_bitwise_identical_with_looking(backend: str, dtype: torch.dtype):
    query, key = (3 * torch.randn(2, 64, 16)).to(dtype), torch.randn(2, 200, 16).to(dtype)
    options: dict = {"mask": regard.padding(torch.tensor([200, 0])), "backend": backend}
    plain = regard.attention(query, key, **options)
    for look in (LOOK, regard.Look(gradient=True), regard.Look(entropy=True, gradient=True)):
        seen = regard.attention(query.clone().requires_grad_(look.gradient), key, look=look, **options)
        assert torch.equal(seen.output, plain.output) and torch.equal(seen.lse, plain.lse)
        assert seen.lse.requires_grad == look.gradient


def test_the_gradient_of_the_lse_is_exact():
    query, key = torch.randn(2, 9, 16, dtype=torch.float64), torch.randn(2, 20, 16, dtype=torch.float64)
    mask, look, found = regard.padding(torch.tensor([20, 0])), regard.Look(gradient=True), []
    for backend in ("sdpa", "reference"):
        given = query.clone().requires_grad_()
        lse = regard.attention(given, key, mask=mask, look=look, backend=backend).lse
        found.append(torch.autograd.grad(lse[0].square().sum() + lse[1].exp().sum(), given)[0])
    torch.testing.assert_close(*found)
    assert found[0][0].any() and not found[0][1].any()


@pytest.mark.parametrize(
    "select", [regard.Sparse(), regard.Gate(), regard.Best(), regard.Hard()], ids=lambda s: type(s).__name__
)
def test_other_selections_keep_their_weights(select: regard.Select):
    x = torch.randn(2, 3, 7, 8)
    seen = regard.attention(
        x,
        x,
        x,
        mask=regard.causal(),
        select=select,
        look=regard.Look(weights=True, mass=True, alignment=True),
    )
    assert torch.allclose(seen.weights @ x, seen.output, atol=1e-6)
    assert torch.allclose(seen.weights.sum(-2), seen.mass)
    assert torch.equal(seen.weights.gather(-1, seen.alignment[..., None])[..., 0], seen.weights.amax(-1))
    assert "blocked" in PASSES and PASSES["blocked"].reasons(checked_call(x, select), regard.Look(mass=True))


def checked_call(x: torch.Tensor, select: regard.Select):
    return check(x, x, x, score=regard.ScaledDot(), select=select)


@pytest.mark.parametrize(
    ("width", "look", "refused"),
    [
        (256, {"top": 16, "pooled": 64}, False),
        (257, {"entropy": True}, True),
        (8, {"weights": True}, True),
        (8, {"top": 17}, True),
        (8, {"pooled": 65}, True),
    ],
)
def test_the_fused_pass_refuses_what_its_kernels_do_not_compute(width: int, look: dict, refused: bool):
    call = checked_call(torch.randn(1, 1, 3, width), regard.Soft())
    usual = PASSES["fused"].reasons(
        checked_call(torch.randn(1, 1, 3, 8), regard.Soft()), regard.Look(entropy=True)
    )
    reasons = [each for each in PASSES["fused"].reasons(call, regard.Look(**look)) if each not in usual]
    assert bool(reasons) == refused
