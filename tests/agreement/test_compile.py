"""torch.compile without graph breaks and torch.export, through the call, for reference and sdpa."""

from __future__ import annotations

import shutil

import pytest
import torch

import regard

LENGTHS = torch.tensor([6, 3])
LOOK = regard.Look(weights=True, rows=(0,), top=2, alignment=True, entropy=True, mass=True)
MASKS = {
    "none": lambda: None,
    "causal": regard.causal,
    "padding": lambda: regard.padding(LENGTHS) & regard.causal(),
    "window": lambda: regard.window(1, 2),
    "documents": lambda: regard.documents(torch.tensor([[0, 0, 0, 1, 1, 1]])),
    "condition": lambda: regard.where(lambda b, h, q, k: (q + k) % 2 == 0) | regard.causal(),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_compiles_without_graph_breaks(backend: str, mask: str):
    def run(x: torch.Tensor) -> regard.Attended:
        return regard.attention(x, x, x, mask=MASKS[mask](), look=LOOK, backend=backend)

    x = torch.randn(2, 4, 6, 16, requires_grad=True)
    compiled, eager = torch.compile(run, fullgraph=True, backend="aot_eager")(x), run(x)
    torch.testing.assert_close(compiled.output, eager.output)
    torch.testing.assert_close(compiled.entropy, eager.entropy)
    assert torch.equal(compiled.alignment, eager.alignment)
    (ours,) = torch.autograd.grad(compiled.output.sum(), x)
    (theirs,) = torch.autograd.grad(eager.output.sum(), x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("score", regard.SCORES)
def test_every_score_compiles(score: str):
    layer = regard.MultiHead(width=16, heads=2, score=score)
    x = torch.randn(2, 5, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, mask=regard.causal())
    torch.testing.assert_close(compiled.output, layer(x, mask=regard.causal()).output)


@pytest.mark.parametrize("position", ["rotary", "relative", "t5", "alibi"])
def test_every_position_of_a_layer_compiles(position: str):
    layer = regard.MultiHead(width=16, heads=2, position=position)
    x = torch.randn(2, 5, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(compiled.output, layer(x).output)


@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler"
)
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_inductor_gives_the_same_results(backend: str):
    x = torch.randn(2, 4, 6, 16)
    run = torch.compile(
        lambda x: regard.attention(x, x, x, mask=regard.causal(), backend=backend).output, fullgraph=True
    )
    torch.testing.assert_close(run(x), regard.attention(x, x, x, mask=regard.causal()).output)


class Exported(torch.nn.Module):
    def __init__(self, backend: str):
        super().__init__()
        self.backend = backend

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> regard.Attended:
        look = regard.Look(alignment=True)
        return regard.attention(query, key, mask=regard.causal(), look=look, backend=self.backend)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_exports_with_any_length(backend: str):
    length = torch.export.Dim("length", min=2, max=64)
    x = torch.randn(2, 4, 6, 16)
    program = torch.export.export(Exported(backend), (x, x), dynamic_shapes=({2: length}, {2: length}))
    longer = torch.randn(2, 4, 11, 16)
    found, wanted = program.module()(longer, longer), Exported(backend)(longer, longer)
    torch.testing.assert_close(found.output, wanted.output)
    assert torch.equal(found.alignment, wanted.alignment)
