"""The parts of a benchmark: a case, the peers that compute it, and the correctness check (gate)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Case", "Gate", "Passes", "Peer", "Wrong", "both_ways", "judged"]

Passes = dict[str, Callable[[], object]]
"""The functions to time, by name: `forward`, and `both` for forward and backward."""


@dataclass(frozen=True)
class Peer:
    """One way to compute a case.

    make: builds the inputs and returns the passes. ours: whether it is Regard, which is timed only if the
    gate passes. turn: when it runs. 0: first; 1: needs torch.compile, and a target refers to it; 2: needs
    torch.compile, and runs if time is left; 3: as 2, but compiles for long. holds: memory that it is known to
    need, in bytes. work: amount of computation, to predict its time from that of a shorter length. note: text
    for the table, computed when the peer runs.
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
    """The largest error of Regard against float64, as a fraction of two budgets.

    strict: relative to twice the error of eager PyTorch plus one rounding step. allowed: relative to what the
    gate allows.
    """

    strict: float
    allowed: float


@dataclass(frozen=True)
class Case:
    """A benchmark case: what is computed (about), and the peers that compute it.

    gate: checks a peer of Regard, raises Wrong. limit: lower bound of the forward time in milliseconds, by
    the throughput of `limited_by` (FP32 instructions or matmul).
    """

    about: str
    peers: tuple[Peer, ...]
    gate: Callable[[Peer], Gate]
    limit: float | None = None
    limited_by: str = ""


class Wrong(Exception):
    """The correctness check failed: an error of Regard is over the budget."""


def judged(
    ours: dict[str, Tensor],
    plain: dict[str, Tensor],
    oracle: dict[str, Tensor],
    dtype: torch.dtype,
    allowance: float = 0.0,
) -> Gate:
    """Compare Regard with float64; raise Wrong if an error is over the budget.

    The budget is twice the error of eager PyTorch in the same dtype plus one rounding step. allowance:
    further allowed error, relative to the largest value.
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
    """Return two passes: forward under no_grad, and forward with backward."""
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
