"""Study "hard": soft, sparse and hard attention, and how noisy the gradient of hard attention is."""

from __future__ import annotations

import math

from regard.compare.attention_weights import GOLD_PAIRS, alignment_errors, gradient_noise, weight_entropy
from regard.compare.comparison_options import Options
from regard.compare.confidence import judge
from regard.compare.run_cache import TrainedRun
from regard.compare.study import Claim, Row, Study, StudyResult, Variant
from regard.compare.study_base import bars_of_models
from regard.compare.study_context import StudyContext, seeds_text
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

CLAIMS = (
    Claim("hard.soft", "Soft attention beats hard attention.", "soft", SAMPLED),
    Claim(
        "hard.baseline",
        "A baseline raises the BLEU of hard attention.",
        SAMPLED,
        f"{SAMPLED} without baseline",
    ),
    Claim("hard.gold", "Training on gold alignments raises BLEU.", "soft, gold alignments", "soft"),
    Claim(
        "hard.supervised",
        "Hard attention that is trained on gold alignments beats hard attention that is trained by "
        "REINFORCE.",
        "hard, gold alignments",
        SAMPLED,
    ),
    Claim(
        "hard.argmax",
        "A model trained with soft attention loses BLEU if it reads by argmax.",
        "soft",
        "soft, argmax",
    ),
    Claim(
        "hard.latent",
        "A latent source word, marginalised exactly, beats soft attention.",
        "luong, latent word",
        "luong, soft",
    ),
    Claim(
        "hard.alignment",
        "Training on gold alignments lowers the alignment error rate.",
        "soft",
        "soft, gold alignments",
        "alignment_error_rate",
        f"alignment error rate, {GOLD_PAIRS} test sentences",
    ),
)
NOISE = Claim(
    "hard.noise",
    "REINFORCE trains the attention with a noisy gradient: more than half of its mean square is variance.",
)
VARIANCE = Claim("hard.variance", "A baseline lowers the variance of the gradient of REINFORCE.")


def _variants(options: Options) -> list[Variant]:
    """Return the variants; those that are trained on gold alignments only if the data have them."""
    aligned = options.built_in or bool(options.data.get("alignments"))
    return [variant for variant in VARIANTS if aligned or variant.training != GUIDED]


def _each(context: StudyContext, run: TrainedRun, variant: Variant) -> Row:
    """Measure the entropy, the agreement with gold alignments and the gradient of one run."""
    row: Row = {"entropy_bits": weight_entropy(context, run)["entropy_bits"]}
    if context.options.built_in:
        row |= alignment_errors(context, run, variant.read)
    return row | gradient_noise(context, run)


def _noise(context: StudyContext, rows: list[Row]) -> StudyResult:
    """Judge the claims about the gradient of REINFORCE, and draw the noise and the alignment errors."""
    sampled = [row for row in rows if row["model"] == SAMPLED]
    shares = [row["gradient_noise"] - 0.5 for row in sampled]
    ratios = [
        math.log(row["variance_without_baseline"] / row["gradient_variance"])
        for row in sampled
        if row["gradient_variance"] and row["variance_without_baseline"]
    ]
    share = "share of the variance in the mean square of the gradient of the scores, minus 0.5"
    ratio = "log of the variance without the baseline over the variance with it, same models and batches"
    verdicts = (judge(NOISE, shares, share), judge(VARIANCE, ratios, ratio))
    drawn = {"gradient_noise": "Share of the variance in the mean square of the gradient"}
    notes: tuple[str, ...] = ("The data have no gold alignments, so none are compared.",)
    if context.options.built_in:
        drawn["alignment_error_rate"] = "Alignment error rate against gold alignments"
        notes = ()
    where = f"trained models, test sentences, mean over {seeds_text(len({row['seed'] for row in rows}))}"
    figures = [
        bars_of_models(f"hard-{of.replace('_', '-')}", f"{text}: {where}.", rows, of, text)
        for of, text in drawn.items()
        if rows
    ]
    return StudyResult("hard", "", (), tuple(figures), verdicts, notes)


HARD = Study(
    "hard",
    "Hard against soft attention",
    (*CLAIMS, NOISE, VARIANCE),
    _variants,
    each=_each,
    extra=_noise,
)
