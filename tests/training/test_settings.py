"""Settings: reading, overriding, checking of names and types, writing, and comparing."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import ArgumentError, DataError, UnknownName
from regard.tasks.translation.settings import TranslationSettings
from regard.training.settings import (
    Training,
    build,
    differences,
    merged,
    override,
    read_toml,
    to_toml,
    without_alternatives,
)
from tests.facts import facts

DATA = {"data": {"built_in": "korean"}}


def built(**sections: object) -> TranslationSettings:
    return build(TranslationSettings, {**DATA, **sections}, "here")


def test_defaults_are_those_of_the_documentation():
    """A run repeats with the settings that its user has given only if the others stay as they are."""
    defaults = Training(steps=1).model_dump()
    assert {"learning_rate": 1e-3, "weight_decay": 0.01, "beta2": 0.98, "max_grad_norm": 1.0}.items() <= (
        defaults.items()
    )
    assert {"batch_tokens": 4096, "warmup_steps": 200, "keep": 2, "log_every": 50}.items() <= defaults.items()


def test_settings_read_equal_settings_written(tmp_path: Path):
    settings = built(
        training={"learning_rate": 0.5, "minutes": 2.5}, model={"name": "luong", "view": {"name": "local-m"}}
    )
    (tmp_path / "config.toml").write_text(to_toml(settings.model_dump()), encoding="utf-8")
    assert build(TranslationSettings, read_toml(tmp_path / "config.toml"), "there") == settings
    assert settings.model.options == {"view": {"name": "local-m"}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"training": {"learning_rat": 1.0}}, r"\[training\] in here: 'learning_rat'; .* 'learning_rate'"),
        ({"weight_decay": 0.1}, r"'weight_decay'; .*'training\.weight_decay'"),
        ({"weight_decy": 0.1}, r"'weight_decy'; .*'training\.weight_decay'"),
        ({"training": {"held_uot": 9}}, r"'held_uot'; .*'data\.held_out'"),
        ({"trainin": {}}, r"here: 'trainin'; .*'training'"),
        ({"evaluation": {"beam_sise": 3}}, r"\[evaluation\].*'beam_sise'; .*'beam_size'"),
        ({"data": {"built_in": "korean", "sorce": "a"}}, r"\[data\].*'sorce'; .*'source'"),
    ],
)
def test_unknown_setting_raises_and_suggests_the_nearest(sections: dict, message: str):
    with pytest.raises(UnknownName, match=message):
        built(**sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"training": {"learning_rate": -1.0}}, r"here: training.learning_rate is -1.0\nexpected: .*0"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate is nan"),
        ({"training": {"steps": "many"}}, r"training.steps is 'many'\nexpected: .*integer"),
        ({"training": {"steps": True}}, "training.steps is True"),
        ({"training": {"label_smoothing": 1.0}}, "training.label_smoothing is 1.0"),
        ({"training": {"schedule": "linear"}}, "'constant', 'cosine', 'inverse-root' or 'epoch-decay'"),
        ({"training": {"optimizer": "sgd"}}, r"(?s)optimizer is sgd.*learning_rate"),
        ({"training": {"momentum": 0.9}}, r"(?s)momentum is 0.9.*adamw"),
        ({"training": {"decay_factor": 0.5}}, "training.decay_factor is 0.5"),
        ({"training": {"keep": 1}}, "training.keep is 1\nexpected: .*2"),
        (
            {"training": {"steps": 5, "minutes": 2.0}},
            r"\[training\].*\nexpected: one of steps",
        ),
        (
            {"data": {"source": ["a"]}},
            r"here: \[data\]: target .*--target",
        ),
        (
            {"data": {"source": ["a"], "target": ["b"], "tsv": ["c"]}},
            r"2 formats.*\nexpected: .*source and target, tsv, jsonl",
        ),
        ({"data": {"tsv": ["c"], "valid_target": ["b"]}}, "valid_source .*--valid-source"),
        ({"data": {"max_length": 9}}, r"no data .*\nexpected: .*source and target"),
        ({"data": {"built_in": "latin"}}, "'korean'"),
        ({"seed": -1}, "seed is -1"),
        (
            {"data": {"tsv": ["a"], "columns": "2,1"}},
            r"here: data\.columns is '2,1'\nexpected: a list\nhint: data\.columns=\[2,1\]",
        ),
        ({"data": {"tsv": ["a"], "columns": "ko,en"}}, r'hint: data\.columns=\["ko","en"\]'),
        ({"training": {"capture": "maybe"}}, "training.capture is 'maybe'\nexpected: True, False or 'auto'"),
    ],
)
def test_invalid_value_raises_with_its_name_and_what_was_expected(sections: dict, message: str):
    with pytest.raises(ArgumentError, match=message):
        built(**sections)


def test_integers_are_accepted_as_floats():
    assert built(training={"minutes": 3, "learning_rate": 1}).training.minutes == 3.0


def test_override_parses_values_as_toml_or_text():
    sections = override(["a.b=1", "a.c=[1, 2]", "a.d=yes or no", "a.e='1'", "f=true", "a.g="])
    assert sections == {"a": {"b": 1, "c": [1, 2], "d": "yes or no", "e": "1", "g": ""}, "f": True}
    for wrong in ("a.b", "=1", "a..b=1"):
        with pytest.raises(ArgumentError, match="setting"):
            override([wrong])
    with pytest.raises(ArgumentError, match="already"):
        override(["a=1", "a.b=2"])


def test_length_on_the_command_line_replaces_that_of_the_recipe():
    recipe = {"training": {"steps": 100, "learning_rate": 0.1}}
    overrides = {"training": {"minutes": 5.0, "steps": None}}
    assert merged(without_alternatives(recipe, overrides), overrides) == {
        "training": {"learning_rate": 0.1, "minutes": 5.0}
    }
    assert without_alternatives(recipe, {"training": {"learning_rate": 1.0, "minutes": None}}) == recipe
    assert without_alternatives({}, overrides) == {"training": {}}


def test_differences_have_both_values():
    before, after = {"a": {"b": 1, "c": "x"}, "d": 1}, {"a": {"b": 1, "c": "y", "e": {"f": 2}}}
    assert differences(before, after) == ["a.c: 'x' -> 'y'", "a.e.f: not set -> 2", "d: 1 -> not set"]
    assert differences(before, before) == []


def test_files_that_are_not_toml_raise(tmp_path: Path):
    with pytest.raises(DataError, match=r"none\.toml"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_text("rate 5\n")
    with pytest.raises(DataError, match=facts("line 1", "hint", "TOML")):
        read_toml(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_bytes(b"a = '\xff'\n")
    with pytest.raises(DataError, match=facts("UTF-8", "byte 6")):
        read_toml(tmp_path / "b.toml")


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Training().rate = 1.0  # type: ignore[misc]
