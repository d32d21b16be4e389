"""Defaults: what suits a model and an amount of data; what was said stays."""

from __future__ import annotations

import pytest

from regard.models import MODELS, build_model
from regard.tasks.translation.defaults import filled


@pytest.mark.parametrize("pairs", [100, 500_000, 5_000_000])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_built_from_them(name: str, pairs: int):
    import torch

    found = filled({"model": {"name": name}}, pairs)
    options = {key: value for key, value in found["model"].items() if key != "name"}
    with torch.device("meta"):
        assert build_model(name, 9, 9, **options).target_size == 9


def test_more_pairs_make_larger_models_with_less_dropout():
    sizes = [filled({"model": {"name": "transformer"}}, n)["model"] for n in (10**4, 10**6, 10**8)]
    assert [each["size"] for each in sizes] == ["tiny", "small", "base"]
    assert [each["dropout"] for each in sizes] == [0.3, 0.2, 0.1]
    assert [filled({}, n)["model"]["width"] for n in (10**4, 10**6, 10**8)] == [256, 512, 1000]


def test_what_was_said_stays():
    given = {
        "model": {"name": "luong", "width": 7},
        "training": {"rate": 0.5},
        "data": {"tokenizer": "character"},
    }
    found = filled(given, 100)
    assert found["model"]["width"] == 7 and found["training"]["rate"] == 0.5
    assert found["data"]["tokenizer"] == "character"


def test_the_rate_is_low_where_weights_are_there_already():
    assert filled({"init_from": "runs/x"}, 100)["training"]["rate"] < filled({}, 100)["training"]["rate"]


def test_lower_case_is_judged_in_lower_case_unless_told():
    assert filled({"data": {"lowercase": True}}, 100)["evaluation"] == {"lowercase": True}
    said = {"data": {"lowercase": True}, "evaluation": {"lowercase": False}}
    assert filled(said, 100)["evaluation"] == {"lowercase": False}
