"""Recipes: each is valid, sets all that determines its result, and begins with its result and commands."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.multi30k import RECIPES, Measured, given, table
from regard.data.public_datasets import SETS
from regard.models import build_model
from regard.tasks.translation import TranslationSettings
from regard.training.settings import build, read_toml

FOLDER = Path(__file__).parents[1] / "recipes"
PATHS = sorted(FOLDER.iterdir())


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def recipe(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_every_model_has_a_recipe():
    models = {read_toml(path)["model"]["name"] for path in PATHS}
    assert models == {"seq2seq", "bahdanau", "luong", "transformer"}
    assert [*RECIPES.values()] == PATHS


def test_recipe_is_valid_and_its_model_can_be_built(recipe: Path):
    settings = build(TranslationSettings, read_toml(recipe), recipe.name)
    sizes = settings.data.source_vocab_size, settings.data.target_vocab_size
    assert None not in sizes
    with torch.device("meta"):
        model = build_model(settings.model.name, *sizes, **settings.model.options)
    assert 1e6 < sum(each.numel() for each in model.parameters()) < 2e7


def test_recipe_has_every_setting_that_determines_its_result(recipe: Path):
    content = read_toml(recipe)
    assert isinstance(content["seed"], int)
    assert {"steps", "batch_tokens", "learning_rate", "warmup_steps", "precision"} <= set(content["training"])
    assert not {"minutes", "epochs"} & set(content["training"])
    assert {"dropout", "name"} <= set(content["model"])


def test_files_of_a_recipe_are_those_of_the_dataset(recipe: Path):
    fetched = SETS["multi30k-en-de"]
    known = {f"data/{fetched.folder}/{piece.name}" for piece in fetched.pieces}
    data = read_toml(recipe)["data"]
    named = [place for places in data.values() if isinstance(places, list) for place in places]
    assert len(named) == 4 and set(named) <= known
    direction = recipe.stem.split("-")[1:3]
    assert [Path(data[side][0]).suffix[1:] for side in ("source", "target")] == direction
    assert not any("test" in Path(place).name for place in named)


def test_recipe_begins_with_its_result_and_commands(recipe: Path):
    head = re.match(r"(#.*\n)+", recipe.read_text())
    assert head is not None
    assert re.search(r"Test 2016: BLEU \d\d\.\d", head.group())
    assert f"regard train --recipe recipes/{recipe.name} --output runs/" in head.group()
    assert "regard evaluate runs/" in head.group()


def test_benchmark_changes_the_data_folder_and_the_seed_of_a_recipe():
    settings = given("multi30k-de-en-luong", Path("/far"), seed=2)
    assert settings["data"]["source"] == ["/far/multi30k/train.de"]
    assert settings["seed"] == read_toml(RECIPES["multi30k-de-en-luong"])["seed"] + 2


def test_table_has_a_row_for_each_run():
    machine = {"torch": "2.0", "gpu": "one"}
    scores = (30.04, 31.0, 32.06, 33.0)
    runs = [
        Measured("multi30k-de-en-luong", seed, 1_000, 50, 40, 9.6, 700.0, 2, 1.0, *scores, "s", "m", machine)
        for seed in (2, 1)
    ]
    text = table(runs, alphas=[0.8, 1.0], notes="content")
    assert "| de-en | luong | 1 | 1,000 | 50 | 40 | 10 | 700 | 1 | 30.0 | 32.1 | 31.0 | 33.0 |" in text
    assert text.index("| luong | 1 |") < text.index("| luong | 2 |") < text.index("content")
    assert "0.8, 1" in text
    assert "torch 2.0, gpu one; up to 2 " in text
    apart = table([runs[0], replace(runs[1], recipe="multi30k-en-de-transformer", at_once=1)], alphas=[1.0])
    assert "(de-en)" in apart and "(en-de)" in apart
