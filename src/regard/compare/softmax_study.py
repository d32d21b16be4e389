"""Study "softmax": how scores become weights."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from regard.attention import attention
from regard.compare.attention_weights import score_state, weight_entropy
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, Series, StudyResult, Table
from regard.compare.study_context import StudyContext
from regard.compare.variant_study import Better, Variant, variant_study
from regard.select import build_select

__all__ = ["SOFTMAX", "score_gradient"]

UNIFORM = {"name": "softmax", "temperature": 1e6}
SPREADS = (0.25, 1.0, 4.0, 16.0)
"""Standard deviations of the random scores for which the gradient is measured."""

SELECTIONS: dict[str, Any] = {
    "softmax": "softmax",
    "sparsemax": "sparsemax",
    "gate": "gate",
    "unnormalised": "linear",
    "uniform": UNIFORM,
}
"""Name of a variant -> its selection."""


def score_gradient(select: Any, spread: float, seed: int = 0, keys: int = 16, rows: int = 64) -> float:
    """Return the mean norm of the gradient of an output sum with respect to random scores.

    select: a selection, as in a configuration file.
    spread: standard deviation of the scores.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randn(rows, keys, generator=generator) * spread).requires_grad_()
    value, zeros = torch.randn(keys, 8, generator=generator), torch.zeros
    output = attention(
        zeros(rows, 8), zeros(keys, 8), value, bias=scores, select=build_select(select), backend="reference"
    ).output
    (gradient,) = torch.autograd.grad(output.sum(), scores)
    return gradient.norm(dim=-1).mean().item()


def _gradients(context: StudyContext, trained: Sequence[TrainedRun]) -> StudyResult:
    rows: list[dict[str, Any]] = [
        {"selection": name, "spread": spread, "seed": seed, "gradient": score_gradient(select, spread, seed)}
        for name, select in SELECTIONS.items()
        for spread in SPREADS
        for seed in range(3)
    ]
    lines = [
        Series(
            name,
            SPREADS,
            [
                statistics.fmean(
                    row["gradient"] for row in rows if (row["selection"], row["spread"]) == (name, spread)
                )
                for spread in SPREADS
            ],
        )
        for name in SELECTIONS
        if name != "uniform"  # its gradient is 0
    ]
    about = "random scores of 16 keys, mean over 64 rows and 3 seeds"
    ends = "; ".join(f"{line.label}: {line.y[0]:.2g} to {line.y[-1]:.2g}" for line in lines)
    figure = Figure(
        "softmax-gradient",
        f"Norm of the gradient that reaches the scores, against their standard deviation: {about}.",
        f"Lines of the gradient norm against the spread of the scores. {ends}.",
        lines,
        x="standard deviation of the scores",
        y="gradient norm",
        log="xy",
    )
    table = Table("softmax-gradient", f"Norm of the gradient that reaches the scores: {about}.", rows)
    return StudyResult("softmax", "", (table,), (figure,))


def _each(context: StudyContext, run: TrainedRun) -> dict[str, Any]:
    """Measure the entropy and the sum of the weights, and the gradient that reaches the scores."""
    gradient = score_state(context, run)["score_gradient"]
    return {**weight_entropy(context, run), "score_gradient": gradient}


SOFTMAX = variant_study(
    "softmax",
    "Why softmax",
    [
        Variant(label, {"name": "bahdanau"} | ({} if label == "softmax" else {"select": select}))
        for label, select in SELECTIONS.items()
    ],
    [
        Better(Claim(f"softmax.{name}", f"Softmax beats {text}."), "softmax", name)
        for name, text in (
            ("sparsemax", "sparsemax"),
            ("gate", "a gate for each key"),
            ("unnormalised", "scores without normalisation"),
            ("uniform", "equal weights"),
        )
    ],
    each=_each,
    extra=_gradients,
)
