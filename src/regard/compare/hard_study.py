"""Study "hard": soft, sparse and hard attention, and how noisy the gradient of hard attention is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from regard.compare.attention_weights import GOLD_PAIRS, alignment_errors, gradient_noise, weight_entropy
from regard.compare.comparison_options import Options
from regard.compare.confidence import by_model, judge, series_of
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Figure, StudyResult
from regard.compare.study_context import StudyContext
from regard.compare.variant_study import Better, Variant, variant_study
from regard.training.settings import EstimatorSettings

__all__ = ["HARD"]

SAMPLED, ARGMAX = "hard, REINFORCE", "best"
REINFORCE = EstimatorSettings().model_dump(exclude_none=True)
"""The default estimator, with all its settings: if a default changes, the cache of runs trains it again."""
NO_BASELINE = {**REINFORCE, "baseline": {"name": "none"}}
GUIDED = {"guided_alignment": 1.0}
LUONG = {"name": "luong", "feeding": False}

VARIANTS = (
    Variant("soft", {"name": "bahdanau"}),
    Variant("soft, argmax", {"name": "bahdanau"}, read=ARGMAX),
    Variant("sparse", {"name": "bahdanau", "select": "sparsemax"}),
    Variant("straight-through", {"name": "bahdanau", "select": "straight-through"}),
    Variant(SAMPLED, {"name": "bahdanau", "select": "hard"}, {"estimator": REINFORCE}),
    Variant(
        f"{SAMPLED} without baseline", {"name": "bahdanau", "select": "hard"}, {"estimator": NO_BASELINE}
    ),
    Variant("soft, gold alignments", {"name": "bahdanau"}, GUIDED),
    Variant("hard, gold alignments", {"name": "bahdanau"}, GUIDED, read=ARGMAX),
    Variant("luong, soft", LUONG),
    Variant("luong, latent word", {**LUONG, "readout": "mixture"}),
)
"""Variants with read="best" are trained with soft weights, and read only the key with the highest score."""

NOISE = (
    Claim(
        "hard.noise",
        "REINFORCE trains the attention with a noisy gradient: more than half of its mean square is "
        "variance.",
    ),
    Claim("hard.variance", "A baseline lowers the variance of the gradient of REINFORCE."),
    Claim("hard.alignment", "Training on gold alignments lowers the alignment error rate."),
)


def _each(context: StudyContext, run: TrainedRun) -> dict[str, Any]:
    """Measure the entropy, the agreement with gold alignments and the gradient of one run."""
    read = next(variant.read for variant in VARIANTS if variant.label == run.label)
    row: dict[str, Any] = {"entropy_bits": weight_entropy(context, run)["entropy_bits"]}
    if context.options.built_in:
        row |= alignment_errors(context, run, read)
    return row | gradient_noise(context, run)


def _noise(context: StudyContext, trained: Sequence[TrainedRun]) -> StudyResult:
    rows = [{"model": run.label, "seed": run.seed, **_each(context, run)} for run in trained]
    sampled = [row for row in rows if row["model"] == SAMPLED]
    noise, variance, agreement = NOISE
    verdicts = [
        judge(
            noise,
            [row["gradient_noise"] - 0.5 for row in sampled],
            "share of the variance in the mean square of the gradient of the scores, minus 0.5",
        ),
        judge(
            variance,
            [
                math.log(row["variance_without_baseline"] / row["gradient_variance"])
                for row in sampled
                if row["gradient_variance"] and row["variance_without_baseline"]
            ],
            "log of the variance without the baseline over the variance with it, same models and batches",
        ),
    ]
    notes: tuple[str, ...] = ("The data have no gold alignments, so none are compared.",)
    if context.options.built_in:
        rates = {(row["model"], row["seed"]): row["alignment_error_rate"] for row in rows}
        seeds = [
            seed for model, seed in rates if model == "soft" and ("soft, gold alignments", seed) in rates
        ]
        values = [rates["soft", seed] - rates["soft, gold alignments", seed] for seed in seeds]
        what = f"alignment error rate without minus with gold alignments, {GOLD_PAIRS} test sentences"
        verdicts.append(judge(agreement, values, what))
        notes = ()
    figures = [_bars(rows, "gradient_noise", "Share of the variance in the mean square of the gradient")]
    if context.options.built_in:
        figures.append(_bars(rows, "alignment_error_rate", "Alignment error rate against gold alignments"))
    return StudyResult("hard", "", (), tuple(figures) if rows else (), tuple(verdicts), notes)


def _bars(rows: Sequence[dict[str, Any]], of: str, text: str) -> Figure:
    stats = by_model(rows, of)
    seeds = len({row["seed"] for row in rows})
    where = f"trained models, test sentences, mean over {seeds} seed{'s' * (seeds != 1)}"
    listed = "; ".join(f"{model}: {each.mean:.2g}" for model, each in stats.items())
    series = [series_of(text, list(stats), list(stats.values()))]
    name = f"hard-{of.replace('_', '-')}"
    return Figure(name, f"{text}: {where}.", f"Bars. {text}. {listed}.", series, "bars", y=text)


BETTER = (
    Better(Claim("hard.soft", "Soft attention beats hard attention."), "soft", SAMPLED),
    Better(
        Claim("hard.baseline", "A baseline raises the BLEU of hard attention."),
        SAMPLED,
        f"{SAMPLED} without baseline",
    ),
    Better(Claim("hard.gold", "Training on gold alignments raises BLEU."), "soft, gold alignments", "soft"),
    Better(
        Claim(
            "hard.supervised",
            "Hard attention that is trained on gold alignments beats hard attention that is trained by "
            "REINFORCE.",
        ),
        "hard, gold alignments",
        SAMPLED,
    ),
    Better(
        Claim("hard.argmax", "A model trained with soft attention loses BLEU if it reads by argmax."),
        "soft",
        "soft, argmax",
    ),
    Better(
        Claim("hard.latent", "A latent source word, marginalised exactly, beats soft attention."),
        "luong, latent word",
        "luong, soft",
    ),
)


def _variants(options: Options) -> list[Variant]:
    """Return the variants; those that are trained on gold alignments only if the data have them."""
    aligned = options.built_in or bool(options.data.get("alignments"))
    return [variant for variant in VARIANTS if aligned or variant.training != GUIDED]


def _better(options: Options) -> list[Better]:
    labels = {variant.label for variant in _variants(options)}
    return [better for better in BETTER if {better.first, better.second} <= labels]


HARD = variant_study(
    "hard", "Hard against soft attention", _variants, _better, each=_each, extra=_noise, more_claims=NOISE
)
