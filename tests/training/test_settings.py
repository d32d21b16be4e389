"""Settings: read, overridden, checked by name and kind, written, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import ArgumentError, DataError, UnknownName
from regard.tasks.translation.translation_settings import TranslationSettings
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

DATA = {"data": {"built_in": "korean"}}


def built(**sections: object) -> TranslationSettings:
    return build(TranslationSettings, {**DATA, **sections}, "here")


def test_what_is_written_is_read_back(tmp_path: Path):
    settings = built(
        training={"learning_rate": 0.5, "minutes": 2.5}, model={"name": "luong", "view": {"name": "local-m"}}
    )
    (tmp_path / "config.toml").write_text(to_toml(settings.model_dump()), encoding="utf-8")
    assert build(TranslationSettings, read_toml(tmp_path / "config.toml"), "there") == settings
    assert settings.model.options == {"view": {"name": "local-m"}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"training": {"learning_rat": 1.0}}, r"\[training\] in here: 'learning_rat'; .* 'learning_rate'"),
        ({"weight_decay": 0.1}, r"'weight_decay'; did you mean 'training\.weight_decay'"),
        ({"rate": 0.1}, r"'rate'; did you mean 'training\.learning_rate'"),
        ({"weight_decy": 0.1}, r"'weight_decy'; did you mean 'training\.weight_decay'"),
        ({"training": {"held_uot": 9}}, r"'held_uot'; did you mean 'data\.held_out'"),
        ({"trainin": {}}, r"here: 'trainin'; did you mean 'training'"),
        ({"evaluation": {"beam_sise": 3}}, r"\[evaluation\].*'beam_sise'; did you mean 'beam_size'"),
        ({"data": {"built_in": "korean", "sorce": "a"}}, r"\[data\].*'sorce'; did you mean 'source'"),
    ],
)
def test_an_unknown_key_names_the_nearest(given: dict, says: str):
    with pytest.raises(UnknownName, match=says):
        built(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"training": {"learning_rate": -1.0}},
            r"here: training.learning_rate is -1.0\nexpected: greater than 0",
        ),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate is nan"),
        ({"training": {"steps": "many"}}, r"training.steps is 'many'\nexpected: a valid integer"),
        ({"training": {"steps": True}}, "training.steps is True"),
        ({"training": {"label_smoothing": 1.0}}, "less than 1"),
        ({"training": {"schedule": "linear"}}, "'constant', 'cosine' or 'inverse-root'"),
        ({"training": {"keep": 1}}, "greater than or equal to 2"),
        (
            {"training": {"steps": 5, "minutes": 2.0}},
            r"\[training\].*\nexpected: one of steps",
        ),
        (
            {"data": {"source": ["a"]}},
            r"here: \[data\]: target is missing .*--target.*\nexpected: source and target",
        ),
        (
            {"data": {"source": ["a"], "target": ["b"], "tsv": ["c"]}},
            r"2 formats: source and target, and tsv\nexpected: one of: source and target, tsv, jsonl",
        ),
        ({"data": {"tsv": ["c"], "valid_target": ["b"]}}, "valid_source is missing .*--valid-source"),
        ({"data": {"max_length": 9}}, r"no data are .*\nexpected: one of"),
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
def test_a_wrong_value_is_shown_with_what_was_expected(given: dict, says: str):
    with pytest.raises(ArgumentError, match=says):
        built(**given)


def test_whole_numbers_may_stand_for_others():
    assert built(training={"minutes": 3, "learning_rate": 1}).training.minutes == 3.0


def test_overriding_reads_toml_where_it_can():
    found = override(["a.b=1", "a.c=[1, 2]", "a.d=yes or no", "a.e='1'", "f=true", "a.g="])
    assert found == {"a": {"b": 1, "c": [1, 2], "d": "yes or no", "e": "1", "g": ""}, "f": True}
    for wrong in ("a.b", "=1", "a..b=1"):
        with pytest.raises(ArgumentError, match="not a setting"):
            override([wrong])
    with pytest.raises(ArgumentError, match="has a value already"):
        override(["a=1", "a.b=2"])


def test_a_later_length_goes_before_an_earlier_one():
    recipe = {"training": {"steps": 100, "learning_rate": 0.1}}
    said = {"training": {"minutes": 5.0, "steps": None}}
    assert merged(without_alternatives(recipe, said), said) == {
        "training": {"learning_rate": 0.1, "minutes": 5.0}
    }
    assert without_alternatives(recipe, {"training": {"learning_rate": 1.0, "minutes": None}}) == recipe
    assert without_alternatives({}, said) == {"training": {}}


def test_differences_name_what_was_and_what_is():
    before, after = {"a": {"b": 1, "c": "x"}, "d": 1}, {"a": {"b": 1, "c": "y", "e": {"f": 2}}}
    assert differences(before, after) == ["a.c: 'x' -> 'y'", "a.e.f: not set -> 2", "d: 1 -> not set"]
    assert differences(before, before) == []


def test_files_that_are_no_toml(tmp_path: Path):
    with pytest.raises(DataError, match="there is no such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_text("rate 5\n")
    with pytest.raises(DataError, match=r"line 1.*\nhint: .*TOML"):
        read_toml(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_bytes(b"a = '\xff'\n")
    with pytest.raises(DataError, match="not UTF-8 at byte 6"):
        read_toml(tmp_path / "b.toml")


def test_settings_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="frozen"):
        Training().rate = 1.0  # type: ignore[misc]
