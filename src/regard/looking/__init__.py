"""Looking: the second pass, after any forward. It changes no bit of the output or the lse.

`look_at` takes the first of PASSES that can: the whole matrix where it is small, blocks where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attended import Attended
from regard.call import Call, Forward
from regard.look import Look
from regard.looking import blockwise, materialised
from regard.looking.look_result import Seen

__all__ = ["PASSES", "Pass", "choose_pass", "look_at"]

SMALL = 1 << 20
"""Up to this many weights the whole matrix is the quicker way."""


@dataclass(frozen=True)
class Pass:
    """reasons(call, look): why it cannot give the look, empty when it can. run: the looks."""

    reasons: Callable[[Call, Look], list[str]]
    run: Callable[[Call, Forward, Look], Seen]
    about: str = ""


PASSES: dict[str, Pass] = {
    "blocked": Pass(blockwise.reasons, blockwise.run, "block by block from lse: any length"),
    "materialised": Pass(
        materialised.reasons, materialised.run, "from the whole matrix: everything, gradients too"
    ),
}


def choose_pass(call: Call, look: Look) -> str:
    """The name of the looking pass for this call."""
    batch, heads, queries, keys = call.sizes
    if batch * heads * queries * keys <= SMALL:
        return "materialised"
    return next(name for name, each in PASSES.items() if not each.reasons(call, look))


def look_at(call: Call, forward: Forward, look: Look | None) -> Attended:
    """The answer of a backend together with what was asked to be seen of it."""
    attended = Attended(
        output=forward.output,
        lse=None if forward.lse is None else forward.lse.detach(),
        entropy=forward.entropy,
        chosen=forward.chosen,
        log_probability=forward.log_probability,
    )
    if look is None or not (look.asked or look.gradient):
        return attended
    with torch.set_grad_enabled(look.gradient and torch.is_grad_enabled()):
        seen = PASSES[choose_pass(call, look)].run(call, forward, look)
    return attended.but(
        lse=_with_gradient(attended.lse, seen.lse) if look.gradient else attended.lse,
        weights=seen.weights,
        rows=seen.rows,
        top=seen.top,
        alignment=seen.alignment,
        entropy=attended.entropy if attended.entropy is not None else seen.entropy,
        mass=seen.mass,
    )


def _with_gradient(lse: Tensor | None, again: Tensor | None) -> Tensor | None:
    """The lse of the forward pass, bit for bit, with the gradient of the one from the looking pass."""
    if lse is None or again is None:
        return again
    nothing = torch.where(again.isinf(), 0.0, again - again.detach())
    return lse + nothing.to(lse.dtype)
