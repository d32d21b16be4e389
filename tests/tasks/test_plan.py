"""Planning: settings chosen from the data, the budget and the speed; settings of the user are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.data import korean_english
from regard.models import MODELS, build_model
from regard.runs.run_task import Plan
from regard.tasks.translation.plan import FILLED, Workload, fill_data, fit_to_text, make_plan
from regard.training.progress import total_steps
from regard.training.settings import Training
from tests.facts import mentions

TOKENS = 12
"""Target tokens of a pair in these tests."""


class Machine:
    """A fake timer whose speed falls with the width of a model; `timed` has the models it was called with."""

    def __init__(self, speed: float = 1.1e6):
        self.speed, self.timed = speed, list[tuple[dict[str, Any], int]]()

    def __call__(self, model: dict[str, Any], tokens: int) -> float:
        self.timed.append((model, tokens))
        return self.speed / model.get("width", 128) / max(model.get("layers", 0), 1)


def plan(settings: dict[str, Any], pairs: int = 20_000, device: str = "cpu", speed: float = 1.1e6) -> Plan:
    return make_plan(settings, Workload(pairs, TOKENS * pairs, device), Machine(speed))


def minutes(count: float, **model: Any) -> dict[str, Any]:
    return {"model": model, "training": {"minutes": count}}


@pytest.mark.parametrize("pairs", [10, 100, 500_000, 5_000_000])
@pytest.mark.parametrize("budget", [{}, {"steps": 10}, {"epochs": 3}, {"minutes": 5}])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_built_from_a_plan(name: str, budget: dict[str, Any], pairs: int):
    chosen = plan({"model": {"name": name}, "training": budget}, pairs).settings
    options = {key: value for key, value in chosen["model"].items() if key != "name"}
    with torch.device("meta"):
        assert build_model(name, 9, 9, **options).target_size == 9
    assert chosen["training"]["learning_rate"] > 0 and chosen["training"]["warmup_steps"] >= 1


def test_more_time_and_a_faster_machine_give_larger_models():
    for name in ("bahdanau", "transformer"):
        sizes = [
            model["width"] * model.get("layers", 1)
            for model in (
                plan(minutes(count, name=name), 168_000).settings["model"] for count in (1, 20, 200)
            )
        ]
        assert sizes == sorted(set(sizes))
        slow, fast = (
            plan(minutes(5, name=name), 168_000, speed=speed).settings["model"] for speed in (1e5, 1e7)
        )
        assert slow["width"] < fast["width"]


def test_few_pairs_give_a_smaller_model_with_dropout():
    few, many = (plan(minutes(60), pairs).settings["model"] for pairs in (1_000, 1_000_000))
    assert few["width"] < many["width"] and few["dropout"] > many["dropout"]
    once = plan(minutes(2), 1_000_000).settings["model"]
    assert once["dropout"] == 0.0


@pytest.mark.parametrize(
    ("pairs", "count", "width", "tokens"),
    [(5_000, 2, 192, 512), (20_000, 2, 128, 512), (20_000, 5, 192, 1024), (168_000, 15, 352, 1024)],
)
def test_plan_is_close_to_settings_tuned_by_hand(pairs: int, count: int, width: int, tokens: int):
    chosen = plan(minutes(count), pairs).settings
    assert abs(chosen["model"]["width"] - width) <= 32 and chosen["training"]["batch_tokens"] == tokens
    assert 3e-3 <= chosen["training"]["learning_rate"] <= 9e-3


def test_weight_decay_is_smaller_for_more_text_and_muon_is_chosen_for_transformers_on_a_cpu():
    few, many = (plan(minutes(5), pairs).settings["training"] for pairs in (5_000, 500_000))
    assert 0.5 >= few["weight_decay"] > 4 * many["weight_decay"] > 0
    chosen = {
        (name, device): make_plan(
            {**minutes(5), "model": {"name": name}}, Workload(20_000, 250_000, device), Machine()
        ).settings["training"]
        for name in ("transformer", "luong")
        for device in ("cpu", "cuda")
    }
    assert {key for key, training in chosen.items() if "optimizer" in training} == {("transformer", "cpu")}
    assert {key for key, training in chosen.items() if "weight_decay" in training} == {("transformer", "cpu")}
    own = {
        "training": {"minutes": 5, "optimizer": "sgd", "learning_rate": 1.0},
        "model": {"name": "transformer"},
    }
    settings = make_plan(own, Workload(20_000, 250_000), Machine()).settings["training"]
    assert settings["optimizer"] == "sgd" and "weight_decay" not in settings


def test_at_most_three_models_are_timed_and_none_without_minutes():
    for settings in ({"training": {"steps": 100}}, {"training": {"epochs": 2}}, {}):
        machine = Machine()
        assert make_plan(settings, Workload(1_000, 12_000), machine).seconds is None
        assert machine.timed == []
    machine = Machine()
    make_plan(minutes(5), Workload(20_000, 250_000), machine)
    assert 1 <= len(machine.timed) <= 3
    machine = Machine(1e9)
    make_plan(minutes(5), Workload(20_000, 250_000, "cuda"), machine)
    assert len(machine.timed) == 1


def test_settings_of_the_user_are_kept():
    settings = {
        "model": {"name": "luong", "width": 7, "dropout": 0.4},
        "training": {"learning_rate": 0.5, "batch_tokens": 333, "warmup_steps": 3, "minutes": 1},
    }
    machine = Machine()
    assert make_plan(settings, Workload(100, 1_200), machine).settings == settings
    assert [options["width"] for options, _ in machine.timed] == [7]


def test_learning_rate_is_lower_with_init_from():
    tuned, fresh = plan({"init_from": "runs/x"}).settings, plan({}).settings
    assert tuned["training"]["learning_rate"] < fresh["training"]["learning_rate"] / 5


def test_more_processes_give_smaller_batches_per_process():
    alone, four = (
        make_plan({"training": {"epochs": 10}}, Workload(50_000, 600_000, "cpu", count), Machine()).settings
        for count in (1, 4)
    )
    assert four["training"]["batch_tokens"] < alone["training"]["batch_tokens"]


def test_fill_data_adds_missing_settings():
    assert fill_data({})["data"] == {}
    assert fill_data({"data": {"tokenizer": "character"}})["data"]["tokenizer"] == "character"
    assert fill_data({"data": {"lowercase": True}})["evaluation"] == {"lowercase": True}
    both = {"data": {"lowercase": True}, "evaluation": {"lowercase": False}}
    assert fill_data(both)["evaluation"] == {"lowercase": False}
    assert fill_data({"training": {"minutes": 2}})["evaluation"]["sentences"] == 200


def test_text_of_a_plan_has_its_choices():
    text = plan(minutes(5)).text
    settings = plan(minutes(5)).settings
    for value in (settings["model"]["width"], f"{settings['training']['batch_tokens']:,}", "5 minutes"):
        assert str(value) in text


def test_tokenizer_and_metric_are_chosen_from_the_text():
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
def test_plan_without_a_budget_counts_the_default_steps(pairs: int):
    work = Workload(pairs, TOKENS * pairs)
    planned = make_plan({}, work, Machine())
    batch = planned.settings["training"]["batch_tokens"]
    epoch = max(round(TOKENS * pairs / (batch * FILLED)), 1)
    steps = total_steps(Training(), epoch)
    assert planned.epochs is not None
    assert planned.epochs * work.tokens / (batch * FILLED) == pytest.approx(steps, rel=0.05)


def test_learning_rate_falls_with_the_size_of_the_model():
    rates = {
        size: plan({"model": {"name": "transformer", "size": size}}).settings["training"]["learning_rate"]
        for size in ("tiny", "small", "base")
    }
    assert rates["tiny"] > rates["small"] > rates["base"]


def test_metric_for_sentences_without_spaces_is_bleu():
    japanese = [(f"This is pen number {n}.", f"これは{n}番目のペンです。") for n in range(400)]
    assert fit_to_text({}, japanese)[0]["training"]["best"] == "bleu"


def test_text_of_a_plan_counts_target_tokens():
    work = Workload(20_000, 250_000, target_tokens=50_000)  # labels: the sources have five times the tokens
    planned = make_plan(minutes(5), work, lambda model, tokens: 10_000)
    assert planned.seconds == pytest.approx(300) and mentions(planned.text, 2_000, "tokens/s")
    assert planned.epochs is not None and mentions(planned.text, f"{planned.epochs * 50_000:,.0f} target")


@pytest.mark.parametrize("budget", [{}, {"steps": 10}, {"epochs": 3}, {"minutes": 5}])
def test_a_batch_size_in_sentences_is_kept_and_no_tokens_are_chosen(budget: dict[str, Any]):
    machine = Machine()
    work = Workload(20_000, 250_000)
    found = make_plan({"training": {"batch_size": 64, **budget}}, work, machine)
    training = found.settings["training"]
    assert training["batch_size"] == 64 and "batch_tokens" not in training
    assert "64 sentences" in found.text and all(tokens is None for _, tokens in machine.timed)
    near = make_plan({"training": {"batch_tokens": round(64 * 12.5 / 0.9), **budget}}, work, Machine())
    assert training["learning_rate"] == near.settings["training"]["learning_rate"]
