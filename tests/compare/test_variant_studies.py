"""Studies of variants: their runs are valid settings, and their measurements without training are right."""

from __future__ import annotations

import math

import pytest
import torch

from regard.compare.comparison_options import Options
from regard.compare.model_part_studies import saturation
from regard.compare.selection_studies import score_gradient
from regard.compare.studies import QUICK_STUDIES, STUDIES
from regard.models import build_model
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.settings import build


def test_every_study_has_claims_and_plans_valid_runs():
    assert set(QUICK_STUDIES) <= set(STUDIES)
    for name, study in STUDIES.items():
        assert study.name == name and study.claims
        assert all(claim.name.startswith(f"{name}.") for claim in study.claims)
        runs = study.runs(Options(seeds=(0, 1), width=8, training={"steps": 2}))
        assert len(runs) == 2 * len({run.label for run in runs})
        for run in runs[::2]:
            settings = build(TranslationSettings, run.settings, name)
            build_model(settings.model.name, 9, 9, **settings.model.options)


def test_scaling_keeps_the_variance_and_the_gradient():
    found = saturation(256, seed=0)
    assert found["dot_variance"] == pytest.approx(256, rel=0.2)
    assert found["scaled_dot_variance"] == pytest.approx(1, rel=0.2)
    assert found["scaled_dot_largest"] < 0.5 < 0.9 < found["dot_largest"]
    assert found["scaled_dot_gradient"] > found["dot_gradient"]


def test_gradient_that_reaches_the_scores():
    """Softmax: (diag(w) - w w^T) v. Unnormalised scores: v itself. Equal weights: nothing."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(64, 16, generator=generator) * 2.0
    rows = torch.randn(16, 8, generator=generator).sum(-1)
    weights = scores.softmax(-1)
    by_hand = weights * (rows - (weights @ rows)[:, None])
    assert score_gradient("softmax", 2.0, seed=3) == pytest.approx(
        by_hand.norm(dim=-1).mean().item(), rel=1e-4
    )
    assert score_gradient("linear", 2.0, seed=3) == pytest.approx(rows.norm().item(), rel=1e-4)
    assert score_gradient({"name": "softmax", "temperature": 1e6}, 2.0) == pytest.approx(0, abs=1e-4)
    assert math.isfinite(score_gradient("sparsemax", 2.0)) and score_gradient("gate", 2.0) > 0
