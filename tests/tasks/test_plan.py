"""Planning: what the data, the budget and the speed decide; what the user sets stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.data import korean_english
from regard.models import MODELS, build_model
from regard.tasks.translation.plan import FILLED, Plan, Workload, fill_data, fit_to_text, make_plan
from regard.training.budget import total_steps
from regard.training.settings import Training

TOKENS = 12
"""Target tokens of a pair in these tests."""


class Machine:
    """A machine whose speed falls with the width of a model; it remembers what it was asked to time."""

    def __init__(self, speed: float = 1.1e6):
        self.speed, self.asked = speed, list[tuple[dict[str, Any], int]]()

    def __call__(self, model: dict[str, Any], tokens: int) -> float:
        self.asked.append((model, tokens))
        return self.speed / model.get("width", 128) / max(model.get("layers", 0), 1)


def plan(given: dict[str, Any], pairs: int = 20_000, device: str = "cpu", speed: float = 1.1e6) -> Plan:
    return make_plan(given, Workload(pairs, TOKENS * pairs, device), Machine(speed))


def minutes(count: float, **model: Any) -> dict[str, Any]:
    return {"model": model, "training": {"minutes": count}}


@pytest.mark.parametrize("pairs", [10, 100, 500_000, 5_000_000])
@pytest.mark.parametrize("budget", [{}, {"steps": 10}, {"epochs": 3}, {"minutes": 5}])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_built_from_a_plan(name: str, budget: dict[str, Any], pairs: int):
    found = plan({"model": {"name": name}, "training": budget}, pairs).settings
    options = {key: value for key, value in found["model"].items() if key != "name"}
    with torch.device("meta"):
        assert build_model(name, 9, 9, **options).target_size == 9
    assert found["training"]["learning_rate"] > 0 and found["training"]["warmup_steps"] >= 1


def test_more_time_and_a_faster_machine_make_larger_models():
    for name in ("bahdanau", "transformer"):
        sizes = [
            found["width"] * found.get("layers", 1)
            for found in (
                plan(minutes(count, name=name), 168_000).settings["model"] for count in (1, 20, 200)
            )
        ]
        assert sizes == sorted(set(sizes))
        slow, fast = (
            plan(minutes(5, name=name), 168_000, speed=speed).settings["model"] for speed in (1e5, 1e7)
        )
        assert slow["width"] < fast["width"]


def test_few_pairs_keep_a_model_small_and_repeat_with_dropout():
    few, many = (plan(minutes(60), pairs).settings["model"] for pairs in (1_000, 1_000_000))
    assert few["width"] < many["width"] and few["dropout"] > many["dropout"]
    once = plan(minutes(2), 1_000_000).settings["model"]
    assert once["dropout"] == 0.0


@pytest.mark.parametrize(
    ("pairs", "count", "width", "tokens"),
    [(5_000, 2, 192, 512), (20_000, 2, 128, 1024), (20_000, 5, 192, 2048), (168_000, 15, 352, 2048)],
)
def test_the_choices_are_close_to_what_was_best_by_hand(pairs: int, count: int, width: int, tokens: int):
    found = plan(minutes(count), pairs).settings
    assert abs(found["model"]["width"] - width) <= 32 and found["training"]["batch_tokens"] == tokens
    assert 3e-3 <= found["training"]["learning_rate"] <= 6e-3


def test_at_most_three_models_are_timed_and_none_without_minutes():
    for given in ({"training": {"steps": 100}}, {"training": {"epochs": 2}}, {}):
        machine = Machine()
        assert make_plan(given, Workload(1_000, 12_000), machine).tokens_per_second is None
        assert machine.asked == []
    machine = Machine()
    make_plan(minutes(5), Workload(20_000, 250_000), machine)
    assert 1 <= len(machine.asked) <= 3
    machine = Machine(1e9)
    make_plan(minutes(5), Workload(20_000, 250_000, "cuda"), machine)
    assert len(machine.asked) == 1


def test_what_the_user_sets_stays():
    given = {
        "model": {"name": "luong", "width": 7, "dropout": 0.4},
        "training": {"learning_rate": 0.5, "batch_tokens": 333, "warmup_steps": 3, "minutes": 1},
    }
    machine = Machine()
    found = make_plan(given, Workload(100, 1_200), machine).settings
    assert found == given
    assert [options["width"] for options, _ in machine.asked] == [7]


def test_the_learning_rate_is_low_for_weights_that_are_trained_already():
    tuned, fresh = plan({"init_from": "runs/x"}).settings, plan({}).settings
    assert tuned["training"]["learning_rate"] < fresh["training"]["learning_rate"] / 5


def test_several_processes_share_a_step():
    alone, four = (
        make_plan({"training": {"epochs": 10}}, Workload(50_000, 600_000, "cpu", count), Machine()).settings
        for count in (1, 4)
    )
    assert four["training"]["batch_tokens"] < alone["training"]["batch_tokens"]


def test_the_data_section_is_filled_in():
    assert fill_data({})["data"] == {}
    assert fill_data({"data": {"tokenizer": "character"}})["data"]["tokenizer"] == "character"
    assert fill_data({"data": {"lowercase": True}})["evaluation"] == {"lowercase": True}
    said = {"data": {"lowercase": True}, "evaluation": {"lowercase": False}}
    assert fill_data(said)["evaluation"] == {"lowercase": False}
    assert fill_data({"training": {"minutes": 2}})["evaluation"]["sentences"] == 200


def test_the_plan_names_its_choices():
    text = plan(minutes(5)).text
    settings = plan(minutes(5)).settings
    for value in (settings["model"]["width"], f"{settings['training']['batch_tokens']:,}", "5 minutes"):
        assert str(value) in text


def test_the_text_decides_on_the_tokenizer_and_the_metric():
    dates = [
        (f"{day} March {year}", f"{year}-03-{day:02}") for day in range(1, 29) for year in range(1990, 2020)
    ]
    labels = [(f"the film was {word} number {n}", word) for n in range(400) for word in ("good", "bad")]
    sentences = list(korean_english("train", 300))
    expected = {"character": dates, "unigram": sentences}
    for name, pairs in expected.items():
        settings, why = fit_to_text({}, pairs)
        assert settings["data"]["tokenizer"] == name and why.startswith(name)
    assert fit_to_text({}, dates)[0]["training"]["best"] == "exact"
    assert fit_to_text({}, labels)[0]["training"]["best"] == "exact"
    assert fit_to_text({}, sentences)[0]["training"]["best"] == "bleu"
    settings, why = fit_to_text({"data": {"tokenizer": "bpe"}, "training": {"best": "loss"}}, dates)
    assert (settings["data"]["tokenizer"], settings["training"]["best"], why) == ("bpe", "loss", "")


@pytest.mark.parametrize("pairs", [300, 4_000, 60_000, 5_000_000])
def test_without_a_budget_the_plan_is_for_the_steps_that_are_taken(pairs: int):
    work = Workload(pairs, TOKENS * pairs)
    found = make_plan({}, work, Machine())
    batch = found.settings["training"]["batch_tokens"]
    epoch = max(round(TOKENS * pairs / (batch * FILLED)), 1)
    steps = total_steps(Training(), epoch)
    assert found.tokens / (batch * FILLED) == pytest.approx(steps, rel=0.05)


def test_the_rate_follows_the_width_of_a_named_size():
    rates = {
        size: plan({"model": {"name": "transformer", "size": size}}).settings["training"]["learning_rate"]
        for size in ("tiny", "small", "base")
    }
    assert rates["tiny"] > rates["small"] > rates["base"]


def test_sentences_without_spaces_are_judged_by_bleu():
    japanese = [(f"This is pen number {n}.", f"これは{n}番目のペンです。") for n in range(400)]
    assert fit_to_text({}, japanese)[0]["training"]["best"] == "bleu"


def test_the_text_of_a_plan_counts_target_tokens():
    work = Workload(20_000, 250_000, target_tokens=50_000)  # labels: the sources have five times the tokens
    found = make_plan(minutes(5), work, lambda model, tokens: 10_000)
    assert found.tokens_per_second == 10_000 and "at 2,000 target tokens/s" in found.text
    assert f"about {found.tokens / 5:,.0f} target tokens" in found.text


@pytest.mark.parametrize("budget", [{}, {"steps": 10}, {"epochs": 3}, {"minutes": 5}])
def test_a_batch_size_in_sentences_is_kept_and_no_tokens_are_chosen(budget: dict[str, Any]):
    machine = Machine()
    work = Workload(20_000, 250_000)
    found = make_plan({"training": {"batch_size": 64, **budget}}, work, machine)
    training = found.settings["training"]
    assert training["batch_size"] == 64 and "batch_tokens" not in training
    assert "64 sentences" in found.text and all(tokens is None for _, tokens in machine.asked)
    near = make_plan({"training": {"batch_tokens": round(64 * 12.5 / 0.9), **budget}}, work, Machine())
    assert training["learning_rate"] == near.settings["training"]["learning_rate"]
