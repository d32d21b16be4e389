"""Loading a run: the choice of checkpoint, damaged files, and errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.decoding import Greedy
from regard.errors import ArgumentError, DataError, UnknownName
from regard.runs.devices import choose_device
from regard.runs.run_folder import write_config
from regard.tasks.task_table import TASKS
from regard.tasks.translation import TranslationRun, load_translator
from tests.reading import PACKAGE, ROOT, settings

MOST_MODULES = 150
"""Maximum number of modules of Regard that `regard translate --text` imports; a new one needs a reason."""


def test_loaded_run_has_its_settings_and_translates(finished: Path):
    run = regard.load(finished, device="cpu", search=Greedy())
    assert run.folder == finished and run.settings.model.name == "luong" and run.notes == ()
    assert run.checkpoint.step in (2, 4)
    assert not run.model.training
    assert run.translate("고양이").text == load_translator(finished, search=Greedy()).translate("고양이").text


def test_a_missing_run_folder_is_answered_with_a_similar_one(tmp_path: Path):
    (tmp_path / "첫번째").mkdir()
    with pytest.raises(DataError, match=r"no such folder(.|\n)*did you mean .*첫번째"):
        regard.load(tmp_path / "첫번쩨")


def test_named_task_is_that_of_the_run(finished: Path):
    assert isinstance(regard.load(finished, device="cpu", task="translation"), TranslationRun)
    for other in ("language", "no-such-task"):
        with pytest.raises(ArgumentError, match=rf"'translation', not '{other}'") as caught:
            regard.load(finished, task=other)
        assert "task='translation'" in caught.value.message.hint


def test_every_task_is_in_the_code_that_mypy_checks():
    """mypy checks tests/typed_use.py as part of `make test`."""
    checked = settings()["tool"]["mypy"]
    assert checked["strict"] and "tests.typed_use" in checked["modules"]
    text = (ROOT / "tests" / "typed_use.py").read_text(encoding="utf-8")
    assert set(TASKS) == set(re.findall(r'task="(\w+)"', text))


def test_loading_samples_no_weights_on_the_meta_device(finished: Path):
    class Sampled(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "normal_" in str(function):
                devices.append(args[0].device.type)
            return function(*args, **(kwargs or {}))

    devices: list[str] = []
    with Sampled():
        run = load_translator(finished, search=Greedy())
    assert devices and set(devices) == {"cpu"} and run.translate("고양이").text


def test_repr_of_a_run(finished: Path):
    run = load_translator(finished, checkpoint="4", search=Greedy())
    assert repr(run).startswith(f"TranslationRun('{finished}', step=4, model='luong', search=Greedy(")


@pytest.mark.parametrize(("which", "step"), [("latest", 4), ("2", 2), ("4", 4), (2, 2)])
def test_checkpoint_can_be_chosen(finished: Path, which: str | int, step: int):
    assert load_translator(finished, checkpoint=which).checkpoint.step == step


@pytest.mark.parametrize("which", ["3", "last", ""])
def test_unknown_checkpoint_raises_and_lists_known_ones(finished: Path, which: str):
    with pytest.raises(UnknownName, match="known: "):
        load_translator(finished, checkpoint=which)


@pytest.mark.parametrize("which", [None, True, 2.0])
def test_checkpoint_of_another_type_raises(finished: Path, which: object):
    with pytest.raises(ArgumentError, match="checkpoint"):
        load_translator(finished, checkpoint=which)


def test_damaged_checkpoint_is_skipped_with_a_note(run_copy: Path):
    for path in (run_copy / "step-000004").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01"[: 1 + (path.read_bytes()[-1] == 0)])
    (run_copy / "best").write_text("step-000004\n")
    run = load_translator(run_copy)
    assert run.checkpoint.step == 2
    assert any("step-000004" in note for note in run.notes)


def test_damaged_optimizer_state_is_ignored_for_translation(run_copy: Path):
    path = run_copy / "step-000004" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    (run_copy / "best").write_text("step-000004\n")
    for which in ("best", "latest", "4"):
        run = load_translator(run_copy, checkpoint=which)
        assert run.checkpoint.step == 4 and run.notes == ()


def test_missing_folder_config_or_checkpoint_raises(run_copy: Path, tmp_path: Path):
    with pytest.raises(ArgumentError, match="bytes"):
        regard.load(bytes(run_copy))  # type: ignore[call-overload]
    with pytest.raises(
        DataError, match=r"(?s)config\.toml: this is a file.*hint: give its folder: "
    ) as caught:
        regard.load(run_copy / "config.toml")
    assert str(caught.value).endswith(str(run_copy))
    with pytest.raises(DataError, match="nowhere: "):
        load_translator(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"config\.toml"):
        load_translator(tmp_path)
    for path in (*run_copy.glob("step-*"),):
        shutil.rmtree(path)
    for name in ("latest", "best"):
        (run_copy / name).unlink()
    with pytest.raises(DataError, match=r"no checkpoint"):
        load_translator(run_copy)


def test_a_similar_run_folder_is_suggested(tmp_path: Path):
    (tmp_path / "first").mkdir()
    write_config(tmp_path / "first", {"task": "translation"})
    with pytest.raises(DataError, match=r"did you mean .*first\?"):
        regard.load(tmp_path / "frist")
    for other in (tmp_path / "other", tmp_path / "frist" / "nothing"):
        with pytest.raises(DataError, match="no such folder") as error:
            regard.load(other)
        assert "did you mean" not in str(error.value)


def test_changed_model_settings_raise(run_copy: Path):
    config = load_translator(run_copy).settings.model_dump()
    write_config(run_copy, {**config, "model": {**config["model"], "width": 9}})
    with pytest.raises(DataError, match=r"config\.toml.*\n.*model\.width: 8 -> 9"):
        load_translator(run_copy)
    (run_copy / "manifest.json").unlink()  # as in run folders of earlier versions
    with pytest.raises(DataError, match=r"config\.toml: source\.weight .*\(\d+, 8\).*\(\d+, 9\)"):
        load_translator(run_copy)
    write_config(run_copy, {**config, "task": "no-such-task"})
    with pytest.raises(UnknownName, match=r"known: .*translation"):
        regard.load(run_copy)


def test_devices_by_name():
    assert choose_device("cpu") == "cpu"
    with pytest.raises(UnknownName, match="'cuda'"):
        choose_device("cudo")
    with pytest.raises(ArgumentError, match=r"1 .*counted from 0"):
        choose_device("cpu:7")


def test_translating_imports_only_what_decoding_needs(finished: Path):
    code = (
        "import sys; from regard.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'regard'))"
    )
    command = [sys.executable, "-c", code, "translate", str(finished), "--text", "가", "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    modules = ran.stdout.splitlines()[-1].split()
    assert "regard.decoding.search" in modules and len(modules) <= MOST_MODULES
    unneeded = ("compare", "data.korean", "evaluation.", "fast.twins", "runs.train_run", "training.loop")
    assert not [name for name in modules if name.removeprefix("regard.").startswith(unneeded)]
