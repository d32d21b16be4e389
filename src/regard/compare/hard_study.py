"""Study "hard": soft, sparse and hard attention, and how noisy the gradient of hard attention is."""

from __future__ import annotations

import math
import statistics

from torch import Tensor

from regard.compare.score_gradients import ScoreSamples, gradient_statistics, sample_scores, weight_entropy
from regard.compare.study import (
    Claim,
    Row,
    Run,
    Study,
    StudyResult,
    Variant,
    seeds_text,
)
from regard.compare.study_context import SentenceSet, StudyContext
from regard.data import korean_english
from regard.evaluation import Links, score_links
from regard.runs.run_folder import config_of
from regard.select import Hard
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.estimators import Baseline, MovingAverage, NoBaseline, build_baseline
from regard.training.settings import EstimatorSettings

GOLD_PAIRS = 100
"""Number of test sentences with gold alignments."""

ROWS, SAMPLES, CLASSES = 4, 128, 4
"""The noise of the gradient: number of test sentences and of gradient samples for each class of source
length, and number of classes."""

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
    Variant("luong, latent word", {**LUONG, "readout": "latent"}),
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


def _variants(context: StudyContext) -> list[Variant]:
    """Return the variants; those that are trained on gold alignments only if the data have them."""
    aligned = context.built_in or bool(context.settings["data"].get("alignments"))
    return [variant for variant in VARIANTS if aligned or variant.training != GUIDED]


def alignment_errors(context: StudyContext, run: Run) -> dict[str, float]:
    """Measure the alignment error rate of the attention on the built-in corpus."""

    def measure() -> dict[str, float]:
        examples = list(korean_english("test", GOLD_PAIRS))
        sources, targets = ([getattr(each, side) for each in examples] for side in ("source", "target"))
        gold = [Links(each.sure, each.possible) for each in examples]
        links = [each.links for each in context.searching(run).align(sources, targets)]
        return {"alignment_error_rate": score_links(links, gold).error_rate}

    about = {"pairs": GOLD_PAIRS} | ({} if run.variant.read is None else {"select": run.variant.read})
    return context.measured("alignment-2", about, measure, run)


def gradient_noise(context: StudyContext, run: Run) -> dict[str, float]:
    """Measure the gradient of the scores of a trained run over repeated samples of the same sentences.

    See gradient_statistics(). The values are means over batches of short to long sentences. For hard
    attention, the estimate uses the baseline and the number of samples of the training, but keys only, not
    the expected context; variance_without_baseline is the variance of the same samples with the baseline 0.
    """

    def measure() -> dict[str, float]:
        found = []
        for pairs in _length_classes(context.sentences):
            model, batch = context.reading(run, ROWS, pairs)
            sampled = isinstance(model.select, Hard)
            baseline, group = stored_baseline(run) if sampled else (NoBaseline(), 1)
            samples = sample_scores(model, batch, SAMPLES if sampled else 2)
            found.append(_noise_statistics(samples, baseline, group, sampled))
        return {name: statistics.fmean(each[name] for each in found) for name in found[0]}

    about = {"data": context.sentences.name, "rows": ROWS, "samples": SAMPLES, "classes": CLASSES}
    return context.measured("score-noise-3", about, measure, run)


def _noise_statistics(
    samples: ScoreSamples, baseline: Baseline, group: int, sampled: bool
) -> dict[str, float]:
    """Return the statistics of the estimates; an estimate of the gradient is the mean of `group` samples."""
    if not sampled:
        return gradient_statistics(samples.gradients)
    count = len(samples.rewards) // group * group
    gradients, rewards_KB = samples.gradients[:count], samples.rewards[:count]
    # A baseline gets rows whose samples are consecutive for each sentence.
    value_KB = baseline(rewards_KB.T.flatten())[0].view(-1, count).T
    # REINFORCE multiplies the gradient of log p(s) by r - b, so samples with b = 0 give those with any b.
    factor_KB = (rewards_KB - value_KB) / rewards_KB

    def statistics_of(gradients: Tensor) -> dict[str, float]:
        return gradient_statistics(gradients.unflatten(0, (-1, group)).mean(1))

    plain = statistics_of(gradients)
    return {
        **statistics_of(gradients * factor_KB[..., None, None]),
        "variance_without_baseline": plain["gradient_variance"],
    }


def _length_classes(sentences: SentenceSet) -> list[list[tuple[str, str]]]:
    """Return the test sentences within the training length in CLASSES classes, from short to long."""
    longest = sentences.longest_trained or math.inf
    kept = [pair for pair in sentences.pairs if len(pair[0].split()) <= longest] or list(sentences.pairs)
    kept.sort(key=lambda pair: len(pair[0].split()))
    size = max(len(kept) // CLASSES, 1)
    return [kept[start : start + size] for start in range(0, size * min(CLASSES, len(kept)), size)]


def stored_baseline(run: Run) -> tuple[Baseline, int]:
    """Return the baseline of a run that REINFORCE has trained, and its number of samples of each example.

    A learned baseline is replaced by the moving average of the rewards that it has stored.
    """
    settings = EstimatorSettings.model_validate(config_of(run.folder)["training"]["estimator"])
    checkpoint = Checkpoints(run.folder).latest()
    average = None if checkpoint is None else checkpoint.tensors("weights").get("estimator.baseline.average")
    if average is not None:
        return MovingAverage(initial=float(average)), settings.samples
    return build_baseline(settings.baseline.name, settings.samples), settings.samples


def _each(context: StudyContext, run: Run) -> Row:
    """Measure the entropy, the agreement with gold alignments and the gradient of one run."""
    row: Row = {"entropy_bits": weight_entropy(context, run)["entropy_bits"]}
    if context.built_in:
        row |= alignment_errors(context, run)
    return row | gradient_noise(context, run)


def _noise(context: StudyContext, rows: list[Row], result: StudyResult) -> None:
    """Judge the claims about the gradient of REINFORCE, and draw the noise and the alignment errors."""
    sampled = [row for row in rows if row["model"] == SAMPLED]
    noisy = (
        "REINFORCE trains the attention with a noisy gradient: more than half of its mean square is variance."
    )
    share = "share of the variance in the mean square of the gradient of the scores, minus 0.5"
    result.judge("hard.noise", noisy, [row["gradient_noise"] - 0.5 for row in sampled], share)
    ratios = [
        math.log(row["variance_without_baseline"] / row["gradient_variance"])
        for row in sampled
        if row["gradient_variance"] and row["variance_without_baseline"]
    ]
    ratio = "log of the variance without the baseline over the variance with it, same models and batches"
    lowers = "A baseline lowers the variance of the gradient of REINFORCE."
    result.judge("hard.variance", lowers, ratios, ratio)
    drawn = {"gradient_noise": "Share of the variance in the mean square of the gradient"}
    if context.built_in:
        drawn["alignment_error_rate"] = "Alignment error rate against gold alignments"
    where = f"trained models, test sentences, mean over {seeds_text(len({row['seed'] for row in rows}))}"
    for of, text in drawn.items() if rows else ():
        result.bars(f"hard-{of.replace('_', '-')}", f"{text}: {where}.", rows, of, text)


HARD = Study("hard", "Hard against soft attention", CLAIMS, _variants, each=_each, extra=_noise)
