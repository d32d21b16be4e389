"""Run manifest: changed tokenizers and settings are detected, harmless edits and old folders are accepted."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import main
from regard.decoding import Greedy
from regard.errors import DataError
from regard.runs.run_folder import MANIFEST, config_of, write_config
from regard.tasks.translation import load_translator
from regard.training.settings import merged
from tests.conftest import seed
from tests.facts import facts
from tests.tasks.small import settings, train
from tests.training.toys import bits

TOKENIZERS = ("source.tokenizer", "target.tokenizer")


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def edit(folder: Path, changed: dict[str, Any]) -> None:
    """Change config.toml as a user would with an editor, without updating the manifest."""
    write_config(folder, merged(config_of(folder), changed))


def test_every_flipped_bit_of_a_tokenizer_is_detected(run_copy: Path):
    chance = random.Random(seed())
    for name in TOKENIZERS:
        whole = (run_copy / name).read_bytes()
        for _ in range(40):
            flip(run_copy / name, chance.randrange(len(whole)), chance.randrange(8))
            with pytest.raises(DataError, match=rf"{name}.*SHA-256"):
                load_translator(run_copy)
            (run_copy / name).write_bytes(whole)
    load_translator(run_copy)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_damaged_tokenizer_is_detected_by_every_command(run_copy: Path, tmp_path: Path, capsys, name: str):
    flip(run_copy / name, (run_copy / name).stat().st_size // 2)
    text = tmp_path / "text"
    text.write_text("a\n")
    before = bits(run_copy)
    pairs = ["--source", str(text), "--target", str(text)]
    commands = {
        "translate": [str(run_copy), "--text", "a"],
        "evaluate": [str(run_copy), *pairs],
        "average": [str(run_copy), "--last", "2", "--output", str(tmp_path / "mean")],
        "export": [str(run_copy), "--to", "safetensors", "--output", str(tmp_path / "out")],
        "train": ["--output", str(run_copy), "--resume"],
    }
    for command, arguments in commands.items():
        with pytest.raises(SystemExit) as caught:
            main([command, *arguments])
        assert caught.value.code == 2 and name in capsys.readouterr().err, command
    with pytest.raises(DataError, match=name):
        train({}, run_copy, resume=True, change=True)
    with pytest.raises(DataError, match=name):
        train({"data": config_of(run_copy)["data"]}, tmp_path / "tuned", init_from=run_copy)
    assert bits(run_copy) == before and not (tmp_path / "mean").exists()
    with pytest.raises(SystemExit):
        main(["show", str(run_copy), "--json"])
    assert any(name in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_tokenizer_of_another_size_is_detected_without_being_read(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    os.truncate(run_copy / TOKENIZERS[0], 2**40)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("a terabyte is read"))
    with pytest.raises(DataError, match=rf"{TOKENIZERS[0]}.*1,099,511,627,776"):
        load_translator(run_copy)


def test_missing_tokenizer_raises(run_copy: Path):
    (run_copy / "target.tokenizer").unlink()
    with pytest.raises(DataError, match=facts("target.tokenizer", "missing")):
        load_translator(run_copy)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": {"dropout": 0.5}}, r"model\.dropout: 0\.0 -> 0\.5"),
        ({"model": {"score": "dot"}}, r"model\.score: not set -> 'dot'"),
        ({"data": {"lowercase": True}}, r"data\.lowercase: False -> True"),
        ({"training": {"guided_alignment": 0.1}}, r"training\.guided_alignment: 0\.0 -> 0\.1"),
        ({"evaluation": {"tokenize": "char"}}, r"evaluation\.tokenize: '13a' -> 'char'"),
    ],
)
def test_error_of_a_changed_setting_has_both_values(run_copy: Path, changed: dict[str, Any], message: str):
    edit(run_copy, changed)
    for attempt in (lambda: load_translator(run_copy), lambda: train({}, run_copy, resume=True)):
        with pytest.raises(DataError, match=rf"config\.toml.*\n.*{message}"):
            attempt()


def test_changed_number_of_heads_raises(tmp_path: Path, data: dict[str, list[str]]):
    """The shapes of the weights do not depend on the number of heads, so only the manifest can tell."""
    chosen = settings(data, training={"steps": 1})
    chosen["model"] = {"name": "transformer", "width": 8, "heads": 2, "layers": 1}
    train(chosen, tmp_path / "run")
    load_translator(tmp_path / "run")
    edit(tmp_path / "run", {"model": {"heads": 4}})
    with pytest.raises(DataError, match=facts("model.heads", "2 -> 4")):
        load_translator(tmp_path / "run")


def test_harmless_edits_are_accepted(run_copy: Path):
    expected = load_translator(run_copy, search=Greedy()).translate("고양이")
    config = config_of(run_copy)
    turned = {name: config[name] for name in reversed(config)}
    write_config(run_copy, turned)
    path = run_copy / "config.toml"
    path.write_text("# a comment\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    translation = load_translator(run_copy, search=Greedy()).translate("고양이")
    assert (translation.text, translation.score) == (expected.text, expected.score)
    assert train({}, run_copy, resume=True).progress.ended


def test_edited_training_setting_needs_change_to_resume(run_copy: Path):
    edit(run_copy, {"training": {"log_every": 7}})
    load_translator(run_copy)
    with pytest.raises(DataError, match=facts("training.log_every", "-> 7")):
        train({}, run_copy, resume=True)
    train({}, run_copy, resume=True, change=True)
    train({}, run_copy, resume=True)


def test_change_updates_the_manifest(run_copy: Path):
    train({"evaluation": {"tokenize": "char"}}, run_copy, resume=True, change=True)
    assert load_translator(run_copy).settings.evaluation.tokenize == "char"
    edit(run_copy, {"evaluation": {"tokenize": "intl"}})
    with pytest.raises(DataError, match="tokenize"):
        load_translator(run_copy)
    train({}, run_copy, resume=True, change=True)
    assert load_translator(run_copy).settings.evaluation.tokenize == "intl"


def test_run_without_a_manifest_loads_and_gets_one_when_resumed(run_copy: Path, data: Any):
    expected = json.loads((run_copy / MANIFEST).read_bytes())
    (run_copy / MANIFEST).unlink()
    text = load_translator(run_copy, search=Greedy()).translate("고양이").text
    before = bits(run_copy)
    train({}, run_copy, resume=True)
    assert bits(run_copy) == before and json.loads((run_copy / MANIFEST).read_bytes()) == expected
    assert load_translator(run_copy, search=Greedy()).translate("고양이").text == text


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", b'{"sha256": ""}', b"[" * 100_000, b"\xff"])
def test_damaged_manifest_raises(run_copy: Path, content: bytes):
    (run_copy / MANIFEST).write_bytes(content)
    with pytest.raises(DataError, match=MANIFEST):
        regard.load(run_copy)


def test_flipped_bits_of_a_manifest_are_detected_or_harmless(run_copy: Path):
    chance = random.Random(seed())
    whole = (run_copy / MANIFEST).read_bytes()
    content = json.loads(whole)
    for _ in range(40):
        (run_copy / MANIFEST).write_bytes(whole)
        flip(run_copy / MANIFEST, chance.randrange(len(whole)), chance.randrange(8))
        try:
            load_translator(run_copy)
        except DataError:
            continue
        assert json.loads((run_copy / MANIFEST).read_bytes()) == content  # the flip changed white space


def test_run_killed_between_writing_config_and_manifest_loads(run_copy: Path, monkeypatch):
    real, calls = os.replace, []

    def kill(source: Any, target: Any) -> None:
        calls.append(Path(target).name)
        if calls[-1] == MANIFEST:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", kill)
        train({"evaluation": {"tokenize": "char"}}, run_copy, resume=True, change=True)
    assert "config.toml" in calls and not (run_copy / MANIFEST).exists()
    assert load_translator(run_copy).settings.evaluation.tokenize == "char"
    train({}, run_copy, resume=True)
    assert (run_copy / MANIFEST).exists()


def test_file_removed_during_training_raises(tmp_path: Path, data: Any, monkeypatch):
    real, path = regard.tasks.translation.TranslationTask.evaluate, tmp_path / "run" / "source.tokenizer"

    def evaluate(self: Any, stopping: Any) -> Any:
        path.unlink(missing_ok=True)
        return real(self, stopping)

    monkeypatch.setattr("regard.tasks.translation.TranslationTask.evaluate", evaluate)
    with pytest.raises(DataError, match=facts(path.name)):
        train(settings(data), tmp_path / "run")
