"""Loading: which weights, of which run, and what is said when they are not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import regard
from regard.decoding import Greedy
from regard.errors import ArgumentError, DataError, UnknownName
from regard.runs.devices import choose_device
from regard.runs.run_folder import write_config
from regard.tasks.translation import load_translator


def test_a_run_is_loaded_as_it_was_trained(finished: Path):
    run = regard.load(finished, device="cpu", search=Greedy())
    assert run.folder == finished and run.settings.model.name == "luong" and run.notes == ()
    assert run.checkpoint.step in (2, 4)
    assert not run.model.training
    assert run.translate("고양이").text == load_translator(finished, search=Greedy()).translate("고양이").text


def test_a_run_says_what_it_is(finished: Path):
    run = load_translator(finished, checkpoint="4", search=Greedy())
    assert repr(run).startswith(f"TranslationRun('{finished}', step=4, model='luong', search=Greedy(")


@pytest.mark.parametrize(("which", "step"), [("latest", 4), ("2", 2), ("4", 4)])
def test_any_checkpoint_can_be_named(finished: Path, which: str, step: int):
    assert load_translator(finished, checkpoint=which).checkpoint.step == step


@pytest.mark.parametrize("which", ["3", "last", ""])
def test_one_that_is_not_there_is_told_of(finished: Path, which: str):
    with pytest.raises(UnknownName, match="known: "):
        load_translator(finished, checkpoint=which)


def test_a_damaged_one_is_passed_over_and_that_is_noted(begun: Path):
    for path in (begun / "step-000004").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01"[: 1 + (path.read_bytes()[-1] == 0)])
    (begun / "best").write_text("step-000004\n")
    run = load_translator(begun)
    assert run.checkpoint.step == 2
    assert any("step-000004" in note for note in run.notes)


def test_a_damaged_optimizer_state_does_not_matter_for_translation(begun: Path):
    path = begun / "step-000004" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    (begun / "best").write_text("step-000004\n")
    for which in ("best", "latest", "4"):
        run = load_translator(begun, checkpoint=which)
        assert run.checkpoint.step == 4 and run.notes == ()


def test_no_run_and_no_checkpoint(begun: Path, tmp_path: Path):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        load_translator(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"config\.toml"):
        load_translator(tmp_path)
    for path in (*begun.glob("step-*"),):
        shutil.rmtree(path)
    for name in ("latest", "best"):
        (begun / name).unlink()
    with pytest.raises(DataError, match=r"no checkpoint yet\nhint: "):
        load_translator(begun)


def test_a_configuration_that_is_another_is_told_of(begun: Path):
    config = load_translator(begun).settings.model_dump()
    write_config(begun, {**config, "model": {**config["model"], "width": 9}})
    with pytest.raises(DataError, match=r"config\.toml.*\n.*model\.width: 8 -> 9"):
        load_translator(begun)
    (begun / "manifest.json").unlink()  # as in run folders of earlier versions
    with pytest.raises(DataError, match=r"config\.toml: source\.weight has shape \(\d+, 8\).*\(\d+, 9\)"):
        load_translator(begun)
    write_config(begun, {**config, "task": "captioning"})
    with pytest.raises(UnknownName, match="known: translation"):
        regard.load(begun)


def test_devices_by_name():
    assert choose_device("cpu") == "cpu"
    with pytest.raises(UnknownName, match="did you mean 'cuda'"):
        choose_device("cudo")
    with pytest.raises(ArgumentError, match=r"1 .*counted from 0"):
        choose_device("cpu:7")
