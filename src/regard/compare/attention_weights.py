"""What the attention of a trained run does: its entropy, its alignments, and the gradient of its scores."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import Tensor

from regard.compare.length_bins import SentenceSet
from regard.compare.run_cache import TrainedRun
from regard.compare.score_gradients import ScoreSamples, gradient_statistics, sample_scores, score_statistics
from regard.compare.study_context import StudyContext
from regard.data import korean_english
from regard.evaluation import Links, score_links
from regard.look import Look
from regard.runs.run_folder import config_of
from regard.select import Hard, StraightThrough
from regard.sites import record
from regard.training.baselines import Baseline, MovingAverage, NoBaseline, build_baseline
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.settings import EstimatorSettings

__all__ = ["GOLD_PAIRS", "alignment_errors", "gradient_noise", "score_state", "weight_entropy"]

GOLD_PAIRS = 100
"""Number of test sentences with gold alignments."""

ROWS = 8
"""Number of test sentences for which gradients are computed."""

SAMPLES, CLASSES = 128, 4
"""Number of gradient samples of hard attention per length class, and number of length classes."""


def _entropy_bits(weights: Tensor) -> float:
    share = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-12)
    return -(share * share.clamp(min=1e-12).log2()).sum(-1).mean().item()


def weight_entropy(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    """Measure the entropy of the weights in bits (after division by their sum), and the sum of the weights.

    For hard attention, the entropy is that of the distribution from which a key is sampled.
    """

    def measure() -> dict[str, float]:
        model, batch = context.reading(run, 16)
        if isinstance(model.select, Hard | StraightThrough):
            scores = sample_scores(model, batch).scores
            return {"entropy_bits": _entropy_bits(scores.double().softmax(-1)), "sum_of_weights": 1.0}
        with torch.no_grad(), record(Look(weights=True), at="cross") as seen:
            model(batch)
        calls = next(iter(seen.values()))
        kept = [call.weights for call in calls if call.weights is not None]
        weights = torch.cat(kept, -2).double()
        return {"entropy_bits": _entropy_bits(weights), "sum_of_weights": weights.sum(-1).mean().item()}

    result: dict[str, float] = context.cache.measured(run, "weights-2", context.sentences.name, measure)
    return result


def alignment_errors(context: StudyContext, run: TrainedRun, select: Any = None) -> dict[str, float]:
    """Measure the alignment error rate of the attention against the gold alignments of the built-in corpus.

    select: the selection to use instead of that of the training.
    """

    def measure() -> dict[str, float]:
        examples = list(korean_english("test", GOLD_PAIRS))
        sources, targets = ([getattr(each, side) for each in examples] for side in ("source", "target"))
        gold = [Links(each.sure, each.possible) for each in examples]
        links = [each.links for each in context.searching(run, select).align(sources, targets)]
        return {"alignment_error_rate": score_links(links, gold).error_rate}

    about = {"pairs": GOLD_PAIRS} | ({} if select is None else {"select": select})
    result: dict[str, float] = context.cache.measured(run, "alignment-2", about, measure)
    return result


def gradient_noise(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    """Measure the gradient of the scores of a trained run over repeated samples of the same sentences.

    See gradient_statistics(). The values are means over batches of short to long sentences. For hard
    attention, the estimate uses the baseline and the number of samples of the training, but keys only, not
    the expected context; variance_without_baseline is the variance of the same samples with the baseline 0.
    """

    def measure() -> dict[str, float]:
        found = []
        for pairs in _length_classes(context.sentences):
            model, batch = context.reading(run, ROWS // 2, pairs)
            sampled = isinstance(model.select, Hard)
            baseline, group = stored_baseline(run) if sampled else (NoBaseline(), 1)
            samples = sample_scores(model, batch, SAMPLES if sampled else 2)
            found.append(_noise_statistics(samples, baseline, group, sampled))
        return {name: statistics.fmean(each[name] for each in found) for name in found[0]}

    about = {"data": context.sentences.name, "rows": ROWS // 2, "samples": SAMPLES, "classes": CLASSES}
    result: dict[str, float] = context.cache.measured(run, "score-noise-3", about, measure)
    return result


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


def stored_baseline(run: TrainedRun) -> tuple[Baseline, int]:
    """Return the baseline of a run that REINFORCE has trained, and its number of samples of each example.

    A learned baseline is replaced by the moving average of the rewards that it has stored.
    """
    settings = EstimatorSettings.model_validate(config_of(run.folder)["training"]["estimator"])
    checkpoint = Checkpoints(run.folder).latest()
    average = None if checkpoint is None else checkpoint.tensors("weights").get("estimator.baseline.average")
    if average is not None:
        return MovingAverage(initial=float(average)), settings.samples
    return build_baseline(settings.baseline.name, settings.samples), settings.samples


def score_state(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    """Measure the variance of the scores, the saturation and the gradient of a trained run."""

    def measure() -> dict[str, float]:
        model, batch = context.reading(run, ROWS)
        samples = sample_scores(model, batch)
        return score_statistics(samples.scores, samples.gradients[0])

    about = {"data": context.sentences.name, "rows": ROWS}
    result: dict[str, float] = context.cache.measured(run, "score-state", about, measure)
    return result
