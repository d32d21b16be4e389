"""Damaged checkpoints: every damage is detected, named and skipped, and intact checkpoints are used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.errors import DataError
from regard.training.checkpoints.checkpoints import Checkpoints
from tests.facts import facts, mentions
from tests.training.saved_checkpoints import FILES, content, identify, saved_run, steps


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return saved_run(tmp_path)


def flip(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("way", DAMAGES)
def test_damaged_checkpoint_is_skipped_with_one_note(name: str, way: str, run: Path):
    if (name, way) == ("manifest.json", "grown"):
        way = "flipped"  # white space after JSON has no effect
    DAMAGES[way](run / "step-000200" / name)
    checkpoints = Checkpoints(run)
    assert identify(checkpoints.latest()) == (100, 0)
    (note,) = checkpoints.notes
    assert note.startswith(f"{run / 'step-000200'}: ") and name in note
    assert note.endswith(str(run / "step-000100"))
    with pytest.raises(DataError, match=f"step-000200: {name} "):
        checkpoints.all()[1].verify()
    checkpoints.save(200, *content(200, 1))
    assert identify(checkpoints.latest()) == (200, 1) and len(checkpoints.notes) == 1


@pytest.mark.parametrize("way", DAMAGES)
def test_only_requested_tensor_files_are_verified(way: str, run: Path):
    Checkpoints(run).mark_best(200)
    DAMAGES[way](run / "step-000200" / "optimizer.safetensors")
    checkpoints = Checkpoints(run)
    for checkpoint in (checkpoints.best(["weights"]), checkpoints.latest(["weights"])):
        assert checkpoint is not None and checkpoint.step == 200
    assert checkpoints.notes == []
    assert identify(checkpoints.latest()) == (100, 0) and len(checkpoints.notes) == 1


def test_damaged_best_checkpoint_gives_one_note(run: Path):
    Checkpoints(run).mark_best(200)
    flip(run / "step-000200" / "weights.safetensors")
    checkpoints = Checkpoints(run)
    assert identify(checkpoints.best(["weights"])) == (100, 0)
    (note,) = checkpoints.notes
    assert note.count("step-000200") == 1 and note.endswith(str(run / "step-000100"))


def test_every_flipped_bit_is_detected(run: Path):
    checkpoint, flips = Checkpoints(run).all()[1], 0
    for name in FILES:
        whole = (checkpoint.path / name).read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            (checkpoint.path / name).write_bytes(damaged)
            with pytest.raises(DataError, match="step-000200: "):
                checkpoint.verify()
            flips += 1
        (checkpoint.path / name).write_bytes(whole)
    checkpoint.verify()
    assert flips > 500


def test_errors_name_the_file_and_the_damage(run: Path):
    checkpoint = Checkpoints(run).all()[1]
    DAMAGES["cut"](checkpoint.path / "state.json")
    with pytest.raises(DataError, match=r"state.json .*\d+ bytes"):
        checkpoint.verify()
    DAMAGES["missing"](checkpoint.path / "weights.safetensors")
    with pytest.raises(DataError, match=facts("weights.safetensors", "missing")):
        checkpoint.verify()
    with pytest.raises(DataError, match=r"weights.safetensors"):
        checkpoint.tensors("weights")
    manifest = json.loads((checkpoint.path / "manifest.json").read_text())
    (checkpoint.path / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(DataError, match=facts("manifest.json", "version 2", 1)):
        checkpoint.verify()
    for nonsense in ("[]", "{}", "null", '{"files": 1}', "[" * 10_000, '{"files": {"a": {"size": 1e999}}}'):
        (checkpoint.path / "manifest.json").write_text(nonsense)
        with pytest.raises(DataError, match=facts("manifest.json", "damaged")):
            checkpoint.verify()


@pytest.mark.parametrize("name", ["../step-000100/state.json", "/dev/zero", "\0", "", "weights.pt"])
def test_manifest_with_a_path_outside_its_folder_raises(name: str, run: Path):
    checkpoint = Checkpoints(run).all()[1]
    path = checkpoint.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = manifest["files"]["state.json"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=facts(path.name)):
        checkpoint.verify()


def test_renamed_checkpoint_is_skipped(run: Path):
    shutil.copytree(run / "step-000200", run / "step-000300")
    (run / "latest").write_text("step-000300")
    checkpoints = Checkpoints(run)
    assert identify(checkpoints.latest()) == (200, 0)
    assert mentions(checkpoints.notes[0], "step-000300", "manifest.json")


def test_error_names_every_damaged_checkpoint_if_none_is_intact(run: Path):
    flip(run / "step-000100" / "weights.safetensors")
    (run / "step-000200" / "manifest.json").unlink()
    for load in (Checkpoints(run).latest, Checkpoints(run).best):
        with pytest.raises(DataError, match="all") as caught:
            load()
        assert mentions(caught.value, "step-000100:", "weights.safetensors")
        assert mentions(caught.value, "step-000200:", "manifest.json")
        assert "folder" in str(caught.value)


def test_latest_without_checkpoints_raises(run: Path):
    for step in (100, 200):
        shutil.rmtree(run / f"step-000{step}")
    with pytest.raises(DataError, match=facts("`latest`", "checkpoint")):
        Checkpoints(run).latest()
    (run / "latest").unlink()
    assert Checkpoints(run).latest() is None
    with pytest.raises(DataError, match=facts("`best`", "checkpoint")):
        Checkpoints(run).best()


@pytest.mark.parametrize("pointer", ["latest", "best"])
@pytest.mark.parametrize("text", ["", "step-000900\n", "step-1", "../step-000100", "\0\xff", "x" * 1000])
def test_latest_or_best_with_an_invalid_name_gives_one_note(pointer: str, text: str, run: Path):
    (run / pointer).write_bytes(text.encode("latin-1"))
    checkpoints = Checkpoints(run)
    checkpoint = checkpoints.latest() if pointer == "latest" else checkpoints.best()
    assert identify(checkpoint) == (200, 0)
    assert len(checkpoints.notes) == 1 and str(run / pointer) in checkpoints.notes[0]
    assert identify(checkpoints.latest()) == (200, 0) and len(checkpoints.notes) == 1
    for step in (300, 400, 500):
        checkpoints.save(step, *content(step))
    assert identify(Checkpoints(run).latest()) == (500, 0)
    best_is_known = pointer == "latest"
    assert (100 in steps(run)) == (best_is_known or not text.startswith("step-000900"))


def test_missing_latest_gives_one_note(run: Path):
    (run / "latest").unlink()
    checkpoints = Checkpoints(run)
    assert identify(checkpoints.latest()) == (200, 0)
    (note,) = checkpoints.notes
    assert note.startswith(f"{run / 'latest'} ") and str(run / "step-000200") in note


def test_damaged_checkpoints_do_not_count_towards_keep(run: Path):
    flip(run / "step-000200" / "weights.safetensors")
    (run / "best").unlink()
    checkpoints = Checkpoints(run)
    checkpoints.latest()
    checkpoints.save(250, *content(250))
    assert steps(run) == [100, 200, 250]
    checkpoints.mark_best(250)
    os.truncate(checkpoints.save(300, *content(300)).path / "state.json", 1)
    checkpoints.save(350, *content(350))
    assert steps(run) == [250, 300, 350] and identify(Checkpoints(run).latest()) == (350, 0)
    os.truncate(run / "step-000250" / "state.json", 1)
    checkpoints.save(360, *content(360))
    assert steps(run) == [250, 350, 360]
