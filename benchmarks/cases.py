"""What a benchmark is made of: a case, the peers that compute it, and the gate it must pass first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Case", "Gate", "Passes", "Peer", "Wrong", "both_ways", "judged"]

Passes = dict[str, Callable[[], object]]
"""What is timed, by name: `forward`, and `both` for forward and backward."""


@dataclass(frozen=True)
class Peer:
    """One way to compute a case.

    make: builds the inputs and gives the passes. ours: is timed only if the gate is passed. turn: 0 comes
    first, 1 has to be compiled by PyTorch and is asked for, 2 is compiled too and run if time is left,
    3 likewise, and takes long. holds: bytes that it is known to need. work: how much it computes, to foretell
    its time from that of a shorter length. note: what is told beside it, found when it is run.
    """

    name: str
    make: Callable[[], Passes]
    dtype: str = "float32"
    length: int | None = None
    ours: bool = False
    turn: int = 0
    holds: float = 0.0
    work: float = 0.0
    note: Callable[[], str] = str


@dataclass(frozen=True)
class Gate:
    """The worst error of ours against float64, as a fraction of two budgets.

    strict: of twice the error of plain PyTorch plus one rounding step. allowed: of what the gate allows.
    """

    strict: float
    allowed: float


@dataclass(frozen=True)
class Case:
    """What is computed, and by whom.

    gate: judges a peer that is ours; raises Wrong. limit: milliseconds a forward pass takes if nothing but
    `limited_by` takes time.
    """

    about: str
    peers: tuple[Peer, ...]
    gate: Callable[[Peer], Gate]
    limit: float | None = None
    limited_by: str = ""


class Wrong(Exception):
    """Ours is wrong before it was fast."""


def judged(
    ours: dict[str, Tensor],
    plain: dict[str, Tensor],
    oracle: dict[str, Tensor],
    dtype: torch.dtype,
    allowance: float = 0.0,
) -> Gate:
    """Raise where an error of ours is over the budget.

    allowance: rounding steps, relative to the largest number, beyond the one of the strict budget.
    """
    strict = allowed = 0.0
    for name, exact in oracle.items():
        exact = exact.detach().double()
        error, usual = ((each[name].detach().double() - exact).abs().max().item() for each in (ours, plain))
        most = exact.abs().max().item()
        budget = 2 * usual + torch.finfo(dtype).eps * most
        if not error <= budget + allowance * most:
            raise Wrong(f"{name} in {dtype}: error {error:.2e}, allowed {budget + allowance * most:.2e}")
        if error:
            strict, allowed = max(strict, error / budget), max(allowed, error / (budget + allowance * most))
    return Gate(strict, allowed)


def both_ways(function: Callable[..., Tensor], inputs: list[Tensor]) -> Passes:
    """A forward pass without a graph of gradients, and a forward with its backward pass."""
    plain = [each.detach() for each in inputs]
    source = torch.Generator(inputs[0].device).manual_seed(1)
    doutput = torch.randn(plain[0].shape, generator=source, device=plain[0].device).to(plain[0].dtype)

    def forward() -> object:
        with torch.no_grad():
            return function(*plain)

    return {
        "forward": forward,
        "both": lambda: torch.autograd.grad(function(*inputs), inputs, doutput),
    }
