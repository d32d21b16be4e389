"""Studies "scores", "positions" and "parts": score functions, position schemes, and parts of a model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from regard.compare.confidence import judge
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, Series, StudyResult, Table
from regard.compare.study_context import StudyContext
from regard.compare.variant_study import Better, Variant, variant_study

__all__ = ["PARTS", "POSITIONS", "SCORES", "saturation"]

SCALED = Claim(
    "scores.scaled",
    "Without the factor 1 / sqrt(d), the softmax saturates for large d, and the gradient of the scores "
    "becomes smaller.",
)
WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)


def _score(name: str) -> Variant:
    return Variant(name, {"name": "bahdanau", "score": name})


def saturation(width: int, seed: int, keys: int = 32, rows: int = 256) -> dict[str, float]:
    """Measure dot products of random queries and keys of unit variance, with and without 1 / sqrt(d).

    Returns, for "dot" and "scaled_dot", the variance of the scores, the mean of the largest weight, and the
    mean norm of the gradient of log p_0 with respect to the scores, where p is the softmax.
    """
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(size, width, generator=generator) for size in (rows, keys))
    result = {}
    for name, scale in (("dot", 1.0), ("scaled_dot", 1 / math.sqrt(width))):
        scores = (query @ key.T * scale).requires_grad_()
        weights = scores.softmax(-1)
        (gradient,) = torch.autograd.grad(weights[:, 0].sum(), scores)
        result[f"{name}_variance"] = scores.var().item()
        result[f"{name}_largest"] = weights.amax(-1).mean().item()
        result[f"{name}_gradient"] = gradient.norm(dim=-1).mean().item()
    return result


def _saturation_result(context: StudyContext, trained: Sequence[TrainedRun]) -> StudyResult:
    seeds = (0, 1, 2, 3, 4)
    rows: list[dict[str, Any]] = [
        {"width": width, "seed": seed, **saturation(width, seed)} for width in WIDTHS for seed in seeds
    ]
    figures = []
    about = "random queries and keys of unit variance, 32 keys, mean over 5 seeds"
    for of, text in (
        ("variance", "variance of the scores"),
        ("largest", "largest weight"),
        ("gradient", "norm of the gradient of a weight with respect to the scores"),
    ):
        lines = [
            Series(
                name,
                WIDTHS,
                [
                    statistics.fmean(r[f"{name}_{of}"] for r in rows if r["width"] == width)
                    for width in WIDTHS
                ],
            )
            for name in ("dot", "scaled_dot")
        ]
        ends = "; ".join(f"{line.label}: {line.y[0]:.2g} to {line.y[-1]:.2g}" for line in lines)
        caption = f"{text.capitalize()} against d: {about}."
        alt = f"Lines of the {text} against d. {ends}."
        figures.append(Figure(f"scores-{of}", caption, alt, lines, x="d", y=text, log="xy"))
    widest = [row for row in rows if row["width"] == WIDTHS[-1]]
    values = [math.log(row["scaled_dot_gradient"] / row["dot_gradient"]) for row in widest]
    what = f"log of the gradient norm with over without the factor, d = {WIDTHS[-1]}"
    table = Table("scores-saturation", f"Saturation of the softmax: {about}.", rows)
    return StudyResult("scores", "", (table,), tuple(figures), (judge(SCALED, values, what),))


SCORES = variant_study(
    "scores",
    "Score functions",
    [_score(name) for name in ("additive", "concat", "general", "dot", "scaled_dot")],
    [
        Better(Claim("scores.dot", "Dot beats concat."), "dot", "concat"),
        Better(Claim("scores.general", "General beats concat."), "general", "concat"),
        Better(Claim("scores.additive", "Additive beats dot."), "additive", "dot"),
    ],
    _saturation_result,
    (SCALED,),
)


def _transformer(label: str, **options: Any) -> Variant:
    return Variant(label, {"name": "transformer", "layers": 2, "heads": 4, **options})


SCHEMES = ("none", "noise", "learned", "sinusoidal", "relative", "rotary", "alibi")

POSITIONS = variant_study(
    "positions",
    "Position schemes",
    [_transformer(name, position=name) for name in SCHEMES],
    [
        Better(
            Claim("positions.needed", "A Transformer needs positions to translate well."),
            "sinusoidal",
            "none",
        ),
        Better(
            Claim("positions.noise", "Positions must be regular: random vectors serve less well."),
            "sinusoidal",
            "noise",
        ),
        Better(
            Claim(
                "positions.beyond",
                "Relative positions generalise better to sources longer than those of the training.",
            ),
            "relative",
            "learned",
            "beyond",
        ),
    ],
)

PARTS = variant_study(
    "parts",
    "Parts of a model",
    [
        _transformer("transformer"),
        _transformer("without scaling", score="dot"),
        _transformer("1 head", heads=1),
        _transformer("2 heads", heads=2),
        _transformer("8 heads", heads=8),
        _transformer("feed-forward of width 1", inner=1),
        Variant("luong", {"name": "luong"}),
        Variant("luong without input feeding", {"name": "luong", "feeding": False}),
    ],
    [
        Better(
            Claim("parts.scaling", "A Transformer loses quality without the factor 1 / sqrt(d)."),
            "transformer",
            "without scaling",
        ),
        Better(Claim("parts.heads", "Several heads are better than one."), "transformer", "1 head"),
        Better(
            Claim("parts.feedforward", "The feed-forward layer is needed."),
            "transformer",
            "feed-forward of width 1",
        ),
        Better(
            Claim("parts.feeding", "Input feeding helps Luong's model."),
            "luong",
            "luong without input feeding",
        ),
    ],
)
