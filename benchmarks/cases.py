"""The cases: what is run, by us and by whom one would use instead, and the gate each must pass first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import regard

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """peers: by name, what makes the inputs and gives what is to be run. gate: stops where ours is wrong."""

    about: str
    peers: dict[str, Callable[[], Callable[[], object]]]
    gate: Callable[[], None]


def _close(ours: Tensor, plain: Tensor, oracle: Tensor) -> None:
    """At most twice the error of plain PyTorch, plus one rounding step."""
    error, plain_error = ((each.double() - oracle).abs().max().item() for each in (ours, plain))
    budget = 2 * plain_error + torch.finfo(ours.dtype).eps * oracle.abs().max().item()
    if not error <= budget:
        raise SystemExit(f"wrong before it was fast: error {error:.2e}, allowed {budget:.2e}")


class _AsGiven(regard.Score):
    """An additive score of queries and keys that are projected already: the attention alone is timed."""

    combine = "additive"

    def __init__(self, vector: Tensor):
        self.vector = vector

    def mixing_vector(self) -> Tensor:
        return self.vector[None]


def _additive_inputs(dtype: torch.dtype = torch.float32, batch: int = 32) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    shapes = [(batch, 50, 512), (batch, 50, 512), (batch, 50, 512), (512,)]
    numbers = [torch.randn(shape, generator=source) for shape in shapes]
    numbers[3] /= 512**0.5
    return [each.to(dtype).requires_grad_() for each in numbers]


def _additive_eager(query: Tensor, key: Tensor, value: Tensor, vector: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(query[:, :, None] + key[:, None]) @ vector, -1) @ value


def _additive_ours(query: Tensor, key: Tensor, value: Tensor, vector: Tensor) -> Tensor:
    return regard.attention(query, key, value, score=_AsGiven(vector)).output


def _trained(function: Callable[..., Tensor]) -> Callable[[], Callable[[], object]]:
    def make() -> Callable[[], object]:
        inputs = _additive_inputs()
        return lambda: torch.autograd.grad(function(*inputs).sum(), inputs)

    return make


def _additive_gate() -> None:
    found = {}
    for name, function, dtype in (
        ("oracle", _additive_eager, torch.float64),
        ("plain", _additive_eager, torch.float32),
        ("ours", _additive_ours, torch.float32),
    ):
        inputs = [each.detach().to(dtype).requires_grad_() for each in _additive_inputs(batch=4)]
        output = function(*inputs)
        found[name] = [output, *torch.autograd.grad(output.square().sum(), inputs)]
    for ours, plain, oracle in zip(found["ours"], found["plain"], found["oracle"], strict=True):
        _close(ours, plain, oracle)


LOOK = regard.Look(entropy=True, alignment=True, top=8, mass=True)


def _look_inputs(length: int) -> Tensor:
    return torch.randn(1, 8, length, 64, generator=torch.Generator().manual_seed(0))


def _blind(length: int) -> Callable[[], object]:
    x = _look_inputs(length)
    return lambda: regard.attention(x, x, x, mask=regard.causal())


def _looking(length: int) -> Callable[[], object]:
    x = _look_inputs(length)
    return lambda: regard.attention(x, x, x, mask=regard.causal(), look=LOOK)


def _matrix(length: int) -> Callable[[], object]:
    x = _look_inputs(length)
    above = torch.ones(length, length, dtype=torch.bool).triu(1)

    def run() -> object:
        weights = torch.softmax((x @ x.transpose(-2, -1) / 8).masked_fill(above, -torch.inf), -1)
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        return weights @ x, entropy, weights.argmax(-1), weights.topk(8), weights.sum(-2)

    return run


def _look_gate() -> None:
    x = _look_inputs(1024).double()
    seen = regard.attention(x.float(), x.float(), x.float(), mask=regard.causal(), look=LOOK)
    whole = regard.attention(
        x, x, x, mask=regard.causal(), look=LOOK | regard.Look(weights=True), backend="reference"
    )
    plain = regard.attention(
        x.float(), x.float(), x.float(), mask=regard.causal(), look=regard.Look(weights=True)
    )
    if regard.explain(x.float(), x.float(), look=LOOK).looking != "blocked":
        raise SystemExit("this case is about the blocked pass")
    weights = plain.weights
    _close(seen.entropy, -torch.special.xlogy(weights, weights).sum(-1), whole.entropy)
    _close(seen.mass, weights.sum(-2), whole.mass)
    _close(seen.top.weights, weights.topk(8).values, whole.top.weights)
    if not (seen.alignment == whole.alignment).double().mean() > 0.999:
        raise SystemExit("alignments differ")


CASES: dict[str, Case] = {
    "additive-50": Case(
        "Additive attention, forward and backward, B=32 T=S=50 A=E=512, float32",
        {"eager": _trained(_additive_eager), "regard": _trained(_additive_ours)},
        _additive_gate,
    ),
    "look-8192": Case(
        "Causal attention of 8,192 tokens, 8 heads of 64, float32, with entropy, alignment, top 8 and mass",
        {
            "whole matrix": lambda: _matrix(8192),
            "regard, not looking": lambda: _blind(8192),
            "regard": lambda: _looking(8192),
        },
        _look_gate,
    ),
}
