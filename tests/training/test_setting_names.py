"""Names of settings of other toolkits are answered with ours."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature
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
from regard.training.settings import ANSWERS, PEER_NAMES, Training, build, misplaced, override

SECTIONS = {"training": TranslationTraining, "data": Data, "evaluation": Evaluating}


def built(settings: dict[str, Any]) -> TranslationSettings:
    data = {"built_in": "korean", **settings.get("data", {})}
    return build(TranslationSettings, {**settings, "data": data}, "here")


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
    assert len(ANSWERS) == sum(len(names.split()) for names in PEER_NAMES.values()), "each name is in one row"


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
    with pytest.raises(ArgumentError) as caught:
        built({"training": {"batch_tokens": 9, "batch_size": 3}})
    assert "batch_tokens" in str(caught.value) and "batch_size" in str(caught.value)
