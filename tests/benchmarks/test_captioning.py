"""The captioning benchmark: variants are valid settings, and the table has a row for each variant."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.captioning import VARIANTS, changes_of, jobs_of, table
from benchmarks.recipe_runs import Job
from regard.runs.run_task import smallest_model
from regard.tasks.captioning import CaptioningSettings, CaptioningTask
from regard.training.settings import build


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("recipe", ["shapes-soft", "flickr8k-soft"])
def test_variants_are_valid(recipe: str, variant: str):
    job = Job(recipe, 3, Path("/far"), Path("runs"), variant, changes_of(recipe, variant, "convolutional"))
    settings = build(CaptioningSettings, CaptioningTask.defaults(job.settings)[0], recipe)
    smallest_model(CaptioningTask, settings)
    assert settings.seed == 3 and str(settings.data.train_file or "/far").count("/far")
    assert (settings.training.estimator is not None) == (variant == "hard")


def test_a_frozen_encoder_has_no_augmentation():
    changes = changes_of("flickr8k-soft", "soft", "other")
    assert changes["data"] == {"flip": False} and changes["model"]["image_encoder"] == "other"


def test_jobs_and_table(tmp_path: Path):
    arguments = Namespace(data=Path("d"), runs=tmp_path, device="cpu", threads=1, measured=False, set=[])
    arguments.only, arguments.variants = ["shapes-hard", "flickr8k-soft"], ["none", "soft"]
    arguments.encoders, arguments.seeds = ["convolutional", "other"], [1]
    jobs = jobs_of(arguments)
    assert len({job.name for job in jobs}) == len(jobs) == 5
    machine = {"torch": "2"}
    runs = [
        {"recipe": "a", "variant": "soft", "seed": seed, "seconds": 9.0, "cider": 0.5, "machine": machine}
        for seed in (1, 2)
    ]
    assert "| a | soft | 2 | 9 | 0.500 ± 0.000 |" in table(runs)
