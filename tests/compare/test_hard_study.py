"""Statistics of REINFORCE with and without a baseline, from the same samples."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from regard.compare.hard_study import _length_classes, _noise_statistics, stored_baseline
from regard.compare.score_gradients import ScoreSamples, gradient_statistics, sample_scores
from regard.compare.study import Run, Variant
from regard.compare.study_context import SentenceSet
from regard.data.batch import Batch
from regard.models import build_model
from regard.runs.run_folder import write_config
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.estimators import LeaveOneOut, MovingAverage
from regard.training.settings import EstimatorSettings


def sampled_twice(**options) -> tuple[ScoreSamples, ScoreSamples]:
    """Samples of the gradient without a baseline, and the same samples with these options."""
    torch.manual_seed(0)
    model = build_model("bahdanau", 9, 9, width=6, select="hard").double()
    batch = Batch.collate([[4, 5, 6], [6, 4, 5]], [[7, 8], [8, 8]])
    return sample_scores(model, batch, 8), sample_scores(model, batch, 8, **options)


def test_samples_without_a_baseline_give_those_with_any_baseline():
    plain, helped = sampled_twice(baseline=-5.0)
    found = _noise_statistics(plain, MovingAverage(initial=-5.0), 1, sampled=True)
    expected = gradient_statistics(helped.gradients)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    variance = gradient_statistics(plain.gradients)["gradient_variance"]
    assert found["variance_without_baseline"] == pytest.approx(variance)


def test_estimate_of_two_samples_compares_each_with_the_other():
    plain, _ = sampled_twice()
    estimates = []
    for first in range(0, 8, 2):
        better = (plain.rewards[first] - plain.rewards[first + 1])[
            :, None, None
        ]  # r_1 - r_2 for each sentence
        one, two = (plain.gradients[at] / plain.rewards[at][:, None, None] for at in (first, first + 1))
        estimates.append(better * (one - two) / 2)
    found = _noise_statistics(plain, LeaveOneOut(2), 2, sampled=True)
    expected = gradient_statistics(torch.stack(estimates))
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    means = plain.gradients.unflatten(0, (4, 2)).mean(1)
    variance = gradient_statistics(means)["gradient_variance"]
    assert found["variance_without_baseline"] == pytest.approx(variance)


@pytest.mark.parametrize(
    ("settings", "stored", "kind", "samples"),
    [({}, {}, LeaveOneOut, 2), ({"samples": 1}, {"average": -3.0}, MovingAverage, 1)],
)
def test_baseline_of_a_run_is_that_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict, stored: dict, kind: type, samples: int
):
    estimator = EstimatorSettings(**settings).model_dump(exclude_none=True)
    write_config(tmp_path, {"training": {"estimator": estimator}})
    tensors = {f"estimator.baseline.{name}": torch.tensor(value) for name, value in stored.items()}
    checkpoint = SimpleNamespace(tensors=lambda which: tensors)
    monkeypatch.setattr(Checkpoints, "latest", lambda self: checkpoint)
    baseline, group = stored_baseline(Run(Variant("hard"), 0, folder=tmp_path))
    assert type(baseline) is kind and group == samples
    assert getattr(baseline, "average", torch.tensor(-3.0)) == -3.0


def test_sentences_within_the_training_length_are_divided_by_length():
    pairs = [("a " * length, "b") for length in (9, 1, 4, 7, 2, 30, 3, 5, 6)]
    classes = _length_classes(SentenceSet(pairs, "made up", longest_trained=8))
    assert [[len(source.split()) for source, _ in own] for own in classes] == [[1], [2], [3], [4]]
    assert len(_length_classes(SentenceSet(pairs[:2], "made up"))) == 2
