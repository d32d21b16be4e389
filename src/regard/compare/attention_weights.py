"""What the attention of a trained run does: its entropy, its alignments, and the gradient of its scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.compare.gradient_study import equal_lengths
from regard.compare.run_cache import TrainedRun
from regard.compare.score_gradients import gradient_statistics, sample_scores, score_statistics
from regard.compare.study_context import StudyContext, set_selection
from regard.data import korean_english
from regard.data.batch import Batch
from regard.decoding import Greedy
from regard.evaluation import Links, score_links
from regard.look import Look
from regard.models import Model
from regard.select import Hard, StraightThrough
from regard.sites import record
from regard.tasks.task_table import load
from regard.training.checkpoints.checkpoints import Checkpoints

__all__ = ["GOLD_PAIRS", "alignment_errors", "gradient_noise", "score_state", "weight_entropy"]

GOLD_PAIRS = 100
"""Number of test sentences with gold alignments."""

ROWS = 8
"""Number of test sentences for which gradients are computed."""

SAMPLES = 32
"""Number of samples of the gradient of hard attention."""


def _model_and_batch(context: StudyContext, run: TrainedRun, rows: int) -> tuple[Model, Batch]:
    """Load the last checkpoint of a run, and encode test sentences of one length."""
    translator = load(run.folder, checkpoint="latest", device="cpu")
    sides = (translator.source_tokenizer, translator.target_tokenizer)
    return translator.model.eval(), equal_lengths(context.sentences.pairs, *sides, rows=rows)


def _entropy_bits(weights: Tensor) -> float:
    share = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-12)
    return -(share * share.clamp(min=1e-12).log2()).sum(-1).mean().item()


def weight_entropy(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    """Measure the entropy of the weights in bits (after division by their sum), and the sum of the weights.

    For hard attention, the entropy is that of the distribution from which a key is sampled.
    """

    def measure() -> dict[str, float]:
        model, batch = _model_and_batch(context, run, 16)
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
        translator = load(run.folder, checkpoint="latest", device=context.cache.device, search=Greedy())
        set_selection(translator.model, select)
        links = [each.links for each in translator.align(sources, targets)]
        return {"alignment_error_rate": score_links(links, gold).error_rate}

    about = {"pairs": GOLD_PAIRS} | ({} if select is None else {"select": select})
    result: dict[str, float] = context.cache.measured(run, "alignment-2", about, measure)
    return result


def gradient_noise(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    """Measure the gradient of the scores of a trained run over repeated samples of the same batch.

    See gradient_statistics(). For hard attention, the estimate uses the baseline of the training;
    variance_without_baseline is the variance of the same samples with the baseline 0.
    """

    def measure() -> dict[str, float]:
        model, batch = _model_and_batch(context, run, ROWS)
        if not isinstance(model.select, Hard):
            return gradient_statistics(sample_scores(model, batch, 2).gradients)
        average = stored_average(run)
        own = gradient_statistics(sample_scores(model, batch, SAMPLES, baseline=average).gradients)
        plain = gradient_statistics(sample_scores(model, batch, SAMPLES).gradients)
        return {**own, "variance_without_baseline": plain["gradient_variance"]}

    about = {"data": context.sentences.name, "rows": ROWS, "samples": SAMPLES}
    result: dict[str, float] = context.cache.measured(run, "score-noise", about, measure)
    return result


def stored_average(run: TrainedRun) -> float:
    """Return the moving average of the reward that REINFORCE has stored; 0 for a run without a baseline."""
    checkpoint = Checkpoints(run.folder).latest()
    average = None if checkpoint is None else checkpoint.tensors("weights").get("estimator.baseline.average")
    return 0.0 if average is None else float(average)


def score_state(context: StudyContext, run: TrainedRun) -> dict[str, float]:
    """Measure the variance of the scores, the saturation and the gradient of a trained run."""

    def measure() -> dict[str, float]:
        model, batch = _model_and_batch(context, run, ROWS)
        samples = sample_scores(model, batch)
        return score_statistics(samples.scores, samples.gradients[0])

    about = {"data": context.sentences.name, "rows": ROWS}
    result: dict[str, float] = context.cache.measured(run, "score-state", about, measure)
    return result
