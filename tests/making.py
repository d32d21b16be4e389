"""Small inputs that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.training.losses import sequence_losses

ON_CPU = ("sdpa-cpu", "blocked", "reference")
HIDDEN = {"batch": 2, "heads": 2, "queries": 3, "keys": 7}
"""Sizes for which each of MASKS hides at least one key of each sequence from every query."""


def randn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return random numbers that require a gradient."""
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def make_score(
    name: str, query_size: int, key_size: int, heads: int | None = None, dtype: torch.dtype = torch.float64
) -> regard.Score:
    """Return a score by name; Location with few positions, so that gradcheck is fast."""
    if name == "location":
        score: regard.Score = regard.Location(query_size, max_length=8, heads=heads)
    else:
        score = regard.build_score(name, query_size, key_size, heads)
    return score.to(dtype) if isinstance(score, nn.Module) else score


def parameters(*modules: Any) -> list[nn.Parameter]:
    """Return the parameters of those arguments that have any."""
    return [each for module in modules if isinstance(module, nn.Module) for each in module.parameters()]


def takers(
    query: Tensor, key: Tensor | regard.Memory, value: Tensor | None = None, **options: Any
) -> list[str]:
    """Return "auto" and the backends that run this call on CPU, without flex, which tests/agreement tests."""
    refused = regard.explain(query, key, value, **options).refused
    return ["auto", *(name for name in ON_CPU if name not in refused)]


def _documents() -> regard.Mask:
    of_query = torch.tensor([[0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 2, 2, 2]])
    return regard.documents(of_query, torch.tensor([[0, 0, 1, 9, 9, 0, 1], [1, 1, 0, 9, 9, 8, 1]]))


def _table() -> Tensor:
    seen = torch.ones(2, 2, 3, 7, dtype=torch.bool)
    seen[0, :, :, 4] = seen[1, :, :, :2] = seen[:, :, 1, 2:] = False
    return seen


def _not_three(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key != 3 + batch) & (query + head + key >= 1)


MASKS: dict[str, Callable[[], regard.Mask]] = {
    "causal": regard.causal,
    "padding": lambda: regard.padding(torch.tensor([5, 2])),
    "window": lambda: regard.window(left=1, right=1),
    "documents": _documents,
    "table": lambda: regard.dense(_table()),
    "condition": lambda: regard.where(_not_three),
    "causal & padding": lambda: regard.causal() & regard.padding(torch.tensor([1, 2])),
    "causal & window": lambda: regard.causal() & regard.window(left=1),
    "documents & documents": lambda: _documents() & _documents(),
    "padding | condition": lambda: regard.padding(torch.tensor([1, 2])) | regard.where(_not_three),
    "~table": lambda: ~regard.dense(~_table()),
}


def log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each target sequence, (B,)."""
    return -sequence_losses(logits, labels)[0]
