"""Muon: the optimizer of Jordan et al. (2024) for the matrices of a model, beside AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of the Newton-Schulz iteration (Jordan et al. 2024)."""


def split_groups(model: nn.Module, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Divide each group of parameters into the matrices that Muon updates, with "muon": True, and the others.

    AdamW updates vectors, embeddings and the output layer, whose rows are of single tokens.
    """
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    layer = getattr(model, "output_layer", lambda: None)()
    tables |= {id(each) for each in ([] if layer is None else layer.parameters())}
    parts = []
    for group in groups:
        by_muon = [each for each in group["params"] if each.dim() == 2 and id(each) not in tables]
        chosen = {id(each) for each in by_muon}
        others = [each for each in group["params"] if id(each) not in chosen]
        parts += [{**group, "params": by_muon, "muon": True}, {**group, "params": others}]
    return [part for part in parts if part["params"]]


class Muon(torch.optim.AdamW):
    """AdamW whose groups with "muon": True are updated by Muon (Jordan et al. 2024; Liu et al. 2025, eq. 4).

    m <- m + (1 - momentum) (g - m)
    w <- w - r (0.2 sqrt(max(rows, columns)) orthogonal(g + momentum (m - g)) + weight_decay w)

    g is the gradient of the matrix w, and r the learning rate. The factor gives updates of about the size of
    those of AdamW, so both have one learning rate. A state has the names of AdamW: m is "exp_avg", and
    "exp_avg_sq" is not used. torch.optim.Muon updates one matrix after another, and only in bfloat16, which
    takes several times as long on a CPU without instructions for it.
    """

    momentum = 0.95

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights."""
        groups = self.param_groups
        own = [group for group in groups if group.get("muon")]
        self.param_groups = [group for group in groups if not group.get("muon")]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in own:
            self._update(group)

    def _update(self, group: dict[str, Any]) -> None:
        """Update the matrices of a group. Those of the same shape are orthogonalised together."""
        members = [each for each in group["params"] if each.grad is not None]
        shapes: dict[tuple[int, int], list[Tensor]] = {}
        for each in members:
            if not self.state[each]:
                self.state[each] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(each),
                    "exp_avg_sq": torch.zeros(()),
                }
            rows, columns = each.shape
            shapes.setdefault((min(rows, columns), max(rows, columns)), []).append(each)
        gradients, means = [each.grad for each in members], [self.state[each]["exp_avg"] for each in members]
        torch._foreach_lerp_(means, gradients, 1 - self.momentum)
        torch._foreach_lerp_(gradients, means, self.momentum)
        torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
        half = torch.get_float32_matmul_precision() == "medium"
        for (_, longer), weights in shapes.items():
            own: list[Any] = [each.grad for each in weights]
            wide = torch.stack([each.T if len(each) > each.shape[1] else each for each in own])
            changes = orthogonal(wide.bfloat16() if half else wide).float()
            for weight, change in zip(weights, changes.unbind(), strict=True):
                change = change.T if len(weight) > weight.shape[1] else change
                weight.sub_(change, alpha=group["lr"] * 0.2 * math.sqrt(longer))


def orthogonal(x: Tensor) -> Tensor:
    """Return about U V^T for matrices x = U S V^T, (N, rows, columns), by five Newton-Schulz iterations.

    x <- a x + (b x x^T + c (x x^T)^2) x

    The singular values of the results are between about 0.7 and 1.2.

    >>> values = torch.linalg.svdvals(orthogonal(torch.randn(2, 4, 8)))
    >>> bool((values > 0.5).all() and (values < 1.5).all())
    True
    """
    a, b, c = NEWTON_SCHULZ
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x
