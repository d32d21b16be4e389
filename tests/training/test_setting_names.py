"""Names of settings: old ones load as the new ones, and those of other toolkits are answered with ours."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from regard.errors import ArgumentError, UnknownName
from regard.layers.recurrent import Recurrence
from regard.models import MODELS
from regard.models.transformer import Size
from regard.tasks.translation.settings import (
    Data,
    Evaluating,
    TranslationSettings,
    TranslationTraining,
)
from regard.training.setting_names import ANSWERS, OLD_NAMES, PEER_NAMES, current_names, misplaced
from regard.training.settings import Training, build
from regard.training.settings_toml import override, read_toml, to_toml

SECTIONS = {"training": TranslationTraining, "data": Data, "evaluation": Evaluating}
VALUES: dict[str, Any] = {
    "training.tokens": 77,
    "training.accumulate": 3,
    "training.warm_up": 5,
    "data.source_size": 90,
    "data.target_size": 91,
    "data.longest": 12,
    "data.odd": {"invalid": "skip"},
    "evaluation.beam": 2,
}
"""Values of the old names that are not 0.25."""


def nested(name: str, value: Any) -> dict[str, Any]:
    section, _, key = name.partition(".")
    return {section: {key: value}} if key else {name: value}


def built(settings: dict[str, Any]) -> TranslationSettings:
    data = {"built_in": "korean", **settings.get("data", {})}
    return build(TranslationSettings, {**settings, "data": data}, "here")


def value_of(settings: TranslationSettings, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(settings, section), key)


def test_table_maps_removed_names_to_existing_names():
    assert OLD_NAMES
    for old, new in OLD_NAMES.items():
        (section, before), (same, after) = old.split("."), new.split(".")
        assert section == same and after in SECTIONS[section].model_fields
        assert before not in SECTIONS[section].model_fields


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_sets_the_new_setting(old: str, tmp_path: Path):
    new, value = OLD_NAMES[old], VALUES.get(old, 0.25)
    expected = built(nested(new, value))
    assert value_of(expected, new) == value
    assert built(nested(old, value)) == expected
    (tmp_path / "config.toml").write_text(to_toml(nested(old, value)), encoding="utf-8")
    assert read_toml(tmp_path / "config.toml") == nested(new, value)
    if not isinstance(value, dict):
        assert override([f"{old}={value}"]) == nested(new, value)


@pytest.mark.parametrize("old", OLD_NAMES)
def test_both_names_of_one_setting_are_an_error_that_names_both(old: str, tmp_path: Path):
    new, value = OLD_NAMES[old], VALUES.get(old, 0.25)
    section, key = new.split(".")
    both = {section: {**nested(old, value)[section], key: value}}
    (tmp_path / "recipe.toml").write_text(to_toml(both), encoding="utf-8")
    for attempt in (lambda: built(both), lambda: read_toml(tmp_path / "recipe.toml")):
        with pytest.raises(ArgumentError) as caught:
            attempt()
        assert old in str(caught.value) and new in str(caught.value)
    with pytest.raises(ArgumentError, match="--set"):
        override([f"{old}=1", f"{new}=1"])


def test_a_name_that_is_none_is_not_set():
    assert current_names({"training": {"rate": None, "learning_rate": 0.5}}) == {
        "training": {"learning_rate": 0.5}
    }
    assert current_names({"training": {"rate": 0.5, "learning_rate": None}}) == {
        "training": {"learning_rate": 0.5}
    }


def test_old_names_keep_their_place_and_unknown_sections_are_left_alone():
    settings = {"seed": 1, "training": {"steps": 2, "clip": 0.0, "ema": 0.1}, "model": {"rate": 1}, "data": 5}
    result = current_names(settings)
    assert list(result["training"]) == ["steps", "max_grad_norm", "ema"]
    assert result["model"] == {"rate": 1} and result["data"] == 5 and settings["training"]["clip"] == 0.0


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("training.lr", "training.learning_rate"),
        ("learning_rate", "training.learning_rate"),
        ("optimizer.lr", "training.learning_rate"),
        ("training.max_tokens", "training.batch_tokens"),
        ("batch_tokens", "training.batch_tokens"),
        ("training.per-device-train-batch-size", "training.batch_size"),
        ("training.fp16", "training.precision"),
        ("training.max_epoch", "training.epochs"),
        ("training.max_epochs", "training.epochs"),
        ("training.warmup", "training.warmup_steps"),
        ("training.clip_norm", "training.max_grad_norm"),
        ("training.gradient_accumulation_steps", "training.accumulation_steps"),
        ("label_smoothing", "training.label_smoothing"),
        ("hidden_size", "model.width"),
        ("model.hidden_size", "model.width"),
        ("model.num_layers", "model.layers"),
        ("model.num_heads", "model.heads"),
        ("model.learning_rate", "training.learning_rate"),
        ("model.held_out", "data.held_out"),
        ("training.dropout", "model.dropout"),
        ("data.vocab_size", "data.source_vocab_size"),
        ("training.seed", "seed"),
        ("evaluation.num_beams", "evaluation.beam_size"),
        ("data.max_len", "data.max_length"),
    ],
)
def test_error_for_a_name_of_another_toolkit_contains_our_name(name: str, ours: str):
    (settings,) = (override([f"{name}=1"]),)
    with pytest.raises(UnknownName) as caught:
        checked = built(settings)
        if error := misplaced(TranslationSettings, "model", checked.model.options):
            raise error
    first = str(caught.value).splitlines()[0]
    assert name.split(".")[-1] in first and ours in first


def test_every_answer_names_settings_that_exist():
    for answer in PEER_NAMES:
        names = re.findall(r"\b(training|data|evaluation)\.(\w+)", answer)
        assert all(key in SECTIONS[section].model_fields for section, key in names), answer
        assert names or re.search(r"\b(model\.\w+|seed)\b", answer), answer
    assert len(ANSWERS) == sum(map(len, PEER_NAMES.values())), "each name is in one row"


def test_existing_settings_are_not_in_the_table():
    for section, kind in SECTIONS.items():
        for name in set(kind.model_fields) & set(ANSWERS):
            assert f"{section}.{name}" in ANSWERS[name]
    parts = {each.name for part in (Recurrence, Size) for each in fields(part)}
    for model in MODELS.values():
        options = parts | set([*signature(model).parameters][2:])
        assert misplaced(TranslationSettings, "model", sorted(options)) is None


def test_the_batch_size_is_in_tokens_or_in_sentences():
    assert (Training().batch_tokens, Training().batch_size) == (4096, None)
    counted = built({"training": {"batch_size": 32}})
    assert (counted.training.batch_tokens, counted.training.batch_size) == (None, 32)
    assert build(TranslationSettings, counted.model_dump(), "here") == counted
    assert built({"training": {"batch_tokens": None}}).training.batch_tokens == 4096
    for settings in ({"batch_tokens": 9, "batch_size": 3}, {"tokens": 9, "batch_size": 3}):
        with pytest.raises(ArgumentError) as caught:
            built({"training": settings})
        assert "batch_tokens" in str(caught.value) and "batch_size" in str(caught.value)
