"""Looking: a second pass after the forward pass, which computes what a Look requests (weights, entropy, ...).

The second pass does not change output or lse. look_at() uses the first entry of PASSES that supports the
Look, with one exception: on a GPU, `blocked` is not used if the matrix of weights is small. Computing the
whole matrix is faster then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attended import Attended
from regard.call import Call, Forward
from regard.lazy_package import on_first_use
from regard.look import Look
from regard.looking import materialised

__all__ = ["PASSES", "Pass", "choose_pass", "look_at"]

SMALL = 1 << 20
"""If there are at most this many weights (B H T S), a GPU computes them faster all at once than in blocks."""


def _blockwise() -> Any:
    from regard.looking import blockwise

    return blockwise


def _fused_look() -> Any:
    from regard.looking import fused_look

    return fused_look


@dataclass(frozen=True)
class Pass:
    """One implementation of the looking pass: after the forward pass, it computes what a Look requests.

    reasons(call, look): why this pass cannot compute what `look` requests; empty if it can.
    run(call, forward, look): compute what `look` requests from the call and the result of the forward pass.
        Its lse is computed again, because the lse of the forward pass has no gradient.
    about: a short description.
    """

    reasons: Callable[[Call, Look], list[str]]
    run: Callable[[Call, Forward, Look], Attended]
    about: str = ""


PASSES: dict[str, Pass] = {
    "fused": Pass(
        on_first_use(_fused_look, "reasons"),
        on_first_use(_fused_look, "run"),
        "Triton kernels, from lse; for any length",
    ),
    "blocked": Pass(
        on_first_use(_blockwise, "reasons"),
        on_first_use(_blockwise, "run"),
        "block by block from lse; for any length",
    ),
    "materialised": Pass(
        materialised.reasons, materialised.run, "from the whole matrix of weights; supports gradients"
    ),
}


def choose_pass(call: Call, look: Look) -> str:
    """Return the key of PASSES for the looking pass that computes what `look` requests for this call."""
    small, on_cpu = math.prod(call.sizes) <= SMALL, call.query.device.type == "cpu"
    if small and on_cpu:
        passes: Iterable[str] = ("blocked", "materialised")
    else:
        passes = (name for name in PASSES if name != "blocked" or not small)
    return next(name for name in passes if not PASSES[name].reasons(call, look))


def look_at(call: Call, forward: Forward, look: Look | None) -> Attended:
    """Return the result of a backend (`forward`) as an Attended, with the fields that `look` requests."""
    attended = Attended(
        output=forward.output,
        lse=None if forward.lse is None else forward.lse.detach(),
        entropy=forward.entropy,
        chosen=forward.chosen,
        log_probability=forward.log_probability,
    )
    if look is None or not (look.requested or look.gradient):
        return attended
    with torch.set_grad_enabled(look.gradient and torch.is_grad_enabled()):
        seen = PASSES[choose_pass(call, look)].run(call, forward, look)
    return seen.but(
        lse=_with_gradient(attended.lse, seen.lse) if look.gradient else attended.lse,
        entropy=attended.entropy if attended.entropy is not None else seen.entropy,
        chosen=attended.chosen,
        log_probability=attended.log_probability,
    )


def _with_gradient(lse: Tensor | None, recomputed: Tensor | None) -> Tensor | None:
    """Return a tensor with the values of `lse` and the gradient of `recomputed`.

    lse: from the forward pass, without gradient.
    recomputed: from the looking pass; its values differ from those of `lse` by rounding.
    """
    if lse is None or recomputed is None:
        return recomputed
    zero = torch.where(recomputed.isinf(), 0.0, recomputed - recomputed.detach())
    return lse + zero.to(lse.dtype)
