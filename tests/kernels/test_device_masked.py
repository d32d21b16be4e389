"""Tests of the backend `masked` on a CUDA device, with lengths that are not multiples of tiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import regard

pytestmark = pytest.mark.gpu

QUERIES, KEYS, START = 150, 333, 40


MASKS: dict[str, Callable[[], regard.Mask]] = {
    "padding": lambda: regard.padding([KEYS - 3, 77]),
    "causal and padding": lambda: regard.causal() & regard.padding([KEYS - 3, 0]),
    "window": lambda: regard.window(left=60, right=9),
    "causal window": lambda: regard.causal() & regard.window(left=60),
    "window and padding": lambda: regard.window(left=60, right=9) & regard.padding([KEYS - 3, 77]),
}
ERROR = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
"""Largest relative Frobenius error of a result against float64."""


@pytest.mark.parametrize("width", [64, 128, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", MASKS)
def test_masks_agree_and_hidden_keys_may_be_nan(name: str, dtype: torch.dtype, width: int):
    mask = MASKS[name]().to(torch.device("cuda"))
    seen = mask.dense(QUERIES, KEYS, START, batch=2, heads=4, device="cuda")
    hidden = ~seen.expand(2, 4, QUERIES, KEYS).any(-2).view(2, 2, 2, KEYS).any(2)
    assert hidden.any()
    source = torch.Generator("cuda").manual_seed(0)
    sizes = ((QUERIES, 4), (KEYS, 2), (KEYS, 2))
    leaves = [
        torch.randn(2, length, heads, width, generator=source, device="cuda").to(dtype).transpose(1, 2)
        for length, heads in sizes
    ]
    leaves[1][hidden], leaves[2][hidden] = torch.nan, torch.inf
    options = {"mask": mask, "start": START}
    results = []
    for backend in ("masked", "masked", "reference"):
        wide = torch.float64 if backend == "reference" else dtype
        inputs = [leaf.detach().to(wide).requires_grad_() for leaf in leaves]
        attended = regard.attention(*inputs, **options, backend=backend)
        doutput = torch.randn(attended.output.shape, generator=source.manual_seed(1), device="cuda")
        gradients = torch.autograd.grad(attended.output, inputs, doutput.to(dtype).to(wide))
        results.append([attended.output, attended.lse, *gradients])
    assert regard.explain(*leaves, **options).backend == "masked"
    for ours, again, exact in zip(*results, strict=True):
        assert torch.equal(ours, again)
        finite = exact.isfinite()
        assert torch.equal(ours.isfinite(), finite)
        error = torch.linalg.norm((ours.double() - exact)[finite])
        assert error <= ERROR[dtype] * torch.linalg.norm(exact[finite])


def test_compiled_calls_agree():
    leaves = [torch.randn(2, 2, 70, 32, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in "qkv"]
    mask = regard.padding(torch.tensor([70, 31], device="cuda"))

    def attend(*leaves: torch.Tensor) -> torch.Tensor:
        return regard.attention(*leaves, mask=mask).output

    found, plain = torch.compile(attend, fullgraph=True)(*leaves), attend(*leaves)
    torch.testing.assert_close(found, plain)
    ours, theirs = (torch.autograd.grad(each.square().sum(), leaves) for each in (found, plain))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["padding", "causal and padding"])
def test_repeated_backward_passes_give_the_same_bits(kind: str):
    batch, keys = 3, 37
    mask = regard.padding(torch.tensor([keys, 20, 5], device="cuda"))
    if kind != "padding":
        mask = regard.causal() & mask
    for start in (0, 4):  # another position, and other values
        source = torch.Generator("cuda").manual_seed(start)
        shape = (batch, keys, 4, 64)
        query, key, value, doutput = (
            torch.randn(shape, generator=source, device="cuda").bfloat16().transpose(1, 2) for _ in range(4)
        )
        leaves = [each.requires_grad_() for each in (query, key, value)]

        def results(
            start: int = start, inputs: list[torch.Tensor] = leaves, doutput: torch.Tensor = doutput
        ) -> tuple[torch.Tensor, ...]:
            output = regard.attention(*inputs, mask=mask, start=start).output
            return output.detach(), *torch.autograd.grad(output, inputs, doutput)

        kept = [results() for _ in range(3)]  # so that the addresses of the first passes differ
        for _ in range(8):
            assert all(map(torch.equal, results(), kept[0]))
        assert all(map(torch.equal, kept[1], kept[0])) and all(map(torch.equal, kept[2], kept[0]))
