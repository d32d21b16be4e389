"""Recipes: each is valid, sets all that determines its result, and begins with its result and commands."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import algorithms, answering, captioning, classification, language
from benchmarks.multi30k import RECIPES, Measured, given, table
from benchmarks.recipe_runs import Job
from regard.data.fetch import SETS
from regard.models import build_classifier, build_language_model, build_model
from regard.runs.run_task import smallest_model
from regard.tasks.task_table import find_task
from regard.tasks.translation import TranslationSettings
from regard.training.settings import build, merged, read_toml
from tests.facts import mentions, table_rows

FOLDER = Path(__file__).parents[1] / "recipes"
PATHS = sorted(FOLDER.glob("multi30k-*.toml"))
OTHERS = sorted(set(FOLDER.iterdir()) - set(PATHS))


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def recipe(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(params=OTHERS, ids=lambda path: path.stem)
def other(request: pytest.FixtureRequest) -> Path:
    """A recipe of a language model, a classifier or a captioner."""
    return request.param


def test_every_model_has_a_recipe():
    models = {read_toml(path)["model"]["name"] for path in PATHS}
    assert models == {"seq2seq", "bahdanau", "luong", "lstmn", "transformer"}
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
    fetched = SETS["multi30k-en-fr" if "-fr-" in recipe.stem else "multi30k-en-de"]
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
    numbers = ("1", "1,000", "50", "40", "10", "700", "1", "30.0", "32.1", "31.0", "33.0")
    assert ["de-en", "luong", *numbers] in table_rows(text)
    assert text.index("| luong | 1 |") < text.index("| luong | 2 |") < text.index("content")
    assert "0.8, 1" in text
    assert mentions(text, "torch 2.0", "gpu one", "to 2")
    apart = table([runs[0], replace(runs[1], recipe="multi30k-en-de-transformer", at_once=1)], alphas=[1.0])
    assert "(de-en)" in apart and "(en-de)" in apart


def test_benchmarks_have_every_recipe_of_their_task():
    tasks = {path.stem: read_toml(path)["task"] for path in OTHERS}
    assert {name for name, task in tasks.items() if task == "language"} == set(language.RECIPES)
    assert {name for name, task in tasks.items() if task == "classification"} == set(classification.TESTS)
    assert {name for name, task in tasks.items() if task == "captioning"} == set(captioning.RECIPES)
    assert {name for name, task in tasks.items() if task == "answering"} == set(answering.RECIPES)
    assert {name for name, task in tasks.items() if task == "algorithms"} == set(algorithms.RECIPES)


def test_recipe_of_another_task_is_valid_and_sets_what_determines_its_result(other: Path):
    content = read_toml(other)
    task = find_task(content["task"])
    settings = build(task.settings_type, content, other.name)
    whole = task.settings_type.model_validate(task.defaults(settings.model_dump())[0])
    smallest_model(task, whole)
    needed = {"steps", "learning_rate", "warmup_steps", "precision", "evaluate_every"}
    size = {"answering": "width", "algorithms": "name"}.get(content["task"], "dropout")
    assert needed <= set(content["training"]) and {size, "name"} <= set(content["model"])
    assert isinstance(content["seed"], int) and {"batch_size", "batch_tokens"} & set(content["training"])
    head = re.match(r"(#.*\n)+", other.read_text())
    assert head is not None
    assert f"regard train --recipe recipes/{other.name} --output runs/{other.stem}\n" in head.group()
    if content["task"] == "captioning":
        assert f"regard evaluate runs/{other.stem} --split test\n" in head.group()
        return
    if content["task"] == "algorithms":  # sequences are generated: there is no test file
        assert f"regard evaluate runs/{other.stem}" in head.group()
        return
    test_file = re.search(rf"regard evaluate runs/{other.stem} --test-file data/(\S+)\n", head.group())
    assert test_file is not None and test_file[1] not in str(content["data"])
    if content["task"] == "answering":
        assert f"data/{test_file[1].replace('_test', '_train')}" in content["data"]["train_file"]
        return
    assert test_file[1] == classification.TESTS.get(other.stem, "ptb/ptb.test.txt.gz")


def test_language_models_of_penn_treebank_have_the_same_number_of_parameters():
    counts = []
    for name in ("ptb-lstm", "ptb-transformer"):
        options = read_toml(FOLDER / f"{name}.toml")["model"]
        options.pop("uniform", None)  # draws random numbers, which takes time
        with torch.device("meta"):
            model = build_language_model(options.pop("name"), 10_002, **options)
        counts.append(sum(each.numel() for each in model.parameters()))
    assert max(counts) / min(counts) < 1.03


def test_lstm_of_zaremba_et_al_has_the_settings_of_the_paper():
    recipe = read_toml(FOLDER / "ptb-lstm.toml")
    data, training = recipe["data"], recipe["training"]
    epoch = -(-(929_589 // data["streams"]) // data["window"])
    assert training["steps"] == 39 * epoch and training["evaluate_every"] % epoch == 0
    assert training["learning_rate"] == data["window"]
    assert training["max_grad_norm"] == pytest.approx(5 / data["window"], rel=1e-15)


def test_lstmn_of_cheng_et_al_has_the_sizes_of_the_paper():
    recipe = read_toml(FOLDER / "ptb-lstmn.toml")
    assert (recipe["model"]["embedding"], recipe["model"]["width"], recipe["model"]["depth"]) == (150, 300, 1)
    assert (recipe["data"]["layout"], recipe["model"].pop("tape")) == ("documents", "window")
    twin = read_toml(FOLDER / "ptb-lstm-300.toml")
    assert twin == {**recipe, "model": {**recipe["model"], "name": "lstm"}}


def test_memory_network_of_sukhbaatar_et_al_has_the_settings_of_the_paper():
    joint, one = (read_toml(FOLDER / f"{name}.toml") for name in ("babi-joint", "babi-task"))
    for recipe, width in ((joint, 50), (one, 20)):
        paper = {"width": width, "hops": 3, "tying": "adjacent", "encoding": "position", "noise": 0.1}
        assert paper.items() <= recipe["model"].items() and recipe["model"]["time"] is True
        assert recipe["data"]["max_sentences"] == 50 and recipe["training"]["linear_start"] > 0
    assert len(joint["data"]["train_file"]) == 20


@pytest.mark.parametrize("name", classification.TESTS)
def test_lstmn_is_compared_with_an_lstm_of_equal_size(name: str):
    counts = []
    for model in ("lstmn", "equal"):
        options = merged(read_toml(FOLDER / f"{name}.toml"), classification.changes_of(name, model))["model"]
        pairs, words = (True, 2_300) if name == "sick" else (False, 17_000)
        with torch.device("meta"):
            built = build_classifier(options.pop("name"), words, 3, **options, pairs=pairs)
        counts.append(sum(each.numel() for each in built.parameters()))
    assert abs(counts[0] / counts[1] - 1) < 0.01


def test_paired_difference_is_over_the_seeds_that_both_have():
    runs = [("lstmn", 1, 80.0), ("lstmn", 2, 82.0), ("equal", 2, 80.0), ("equal", 1, 79.0), ("lstmn", 3, 9.0)]
    results = [{"recipe": "sick", "model": m, "seed": s, "test": test} for m, s, test in runs]
    half = 12.706 * 0.5**0.5 / 2**0.5
    assert classification.paired(results, "sick").split(" | ")[1:] == [
        "2", "+1.50", f"{1.5 - half:+.2f} to {1.5 + half:+.2f}", "yes |"
    ]  # fmt: skip
    assert classification.paired(results[:2], "sick") == classification.paired(results, "sst-fine") == ""


def test_job_changes_the_data_folder_the_seed_and_settings_of_a_recipe():
    changes = classification.MODELS["transformer"]
    job = Job("sick", 3, Path("/far"), Path("runs"), variant="transformer", changes=changes)
    assert job.name == "sick-transformer-3" and job.settings["seed"] == 3
    assert job.settings["data"]["train_file"] == ["/far/sick/SICK_train.txt.gz"]
    assert job.settings["model"]["name"] == "transformer" and "dropout" in job.settings["model"]


def test_tables_have_a_row_for_each_model():
    machine = {"torch": "2.0"}
    run = {"seed": 1, "parameters": 2_000, "steps": 9, "best_step": 8, "seconds": 7.4, "machine": machine}
    scores = {"valid": 90.04, "test": 80.0, "tokens_per_second": 700, "test_macro_f1": 50.0}
    text = language.table([{"recipe": "ptb-lstm", "variant": "wide", **run, **scores}], notes="remark")
    assert ["ptb-lstm, wide", "1", "2,000", "9", "8", "7", "700", "90.0", "80.0"] in table_rows(text)
    assert text.index("82.7") < text.index("remark") < text.index("torch 2.0")
    runs = [{"recipe": "sick", "model": "mean", **run, **scores, "test": test} for test in (80.0, 82.0)]
    text = classification.table(runs)
    assert "| 2 | 2,000 | 7 | 90.0 ± 0.0 | 81.0 ± 1.4 | 50.0 ± 0.0 |" in text
