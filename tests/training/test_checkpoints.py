"""Checkpoints: loading returns what was saved, damage is reported, the last and the best are kept."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from regard.errors import ArgumentError, DataError, UnknownName
from regard.files.tensor_file import DTYPES
from regard.training.checkpoints.checkpoints import Checkpoint, Checkpoints

FILES = ("manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors")


def content(step: int, version: int = 0) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return tensors and state whose values identify the step and the version."""
    weights = {"table": torch.arange(6.0).reshape(2, 3) + step, "scale": torch.tensor(version / 8)}
    return {"weights": weights, "optimizer": {"rows": torch.full((3,), step)}}, {"at": [step, version]}


def identify(checkpoint: Checkpoint | None) -> tuple[int, int]:
    """Return the step and version of a checkpoint; assert that all its tensors have their values."""
    assert checkpoint is not None
    step, version = checkpoint.state["at"]
    assert step == checkpoint.step
    for name, tensors in content(step, version)[0].items():
        assert_equal(checkpoint.tensors(name), tensors)
    return step, version


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].equal(tensor), name


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints 100 and 200; 100 is the best."""
    checkpoints = Checkpoints(tmp_path / "run")
    for step in (100, 200):
        checkpoints.save(step, *content(step))
    checkpoints.mark_best(100)
    return tmp_path / "run"


def steps(folder: Path) -> list[int]:
    return [each.step for each in Checkpoints(folder).all()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_loaded_checkpoint_equals_saved_one(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "new" / "run")
    assert checkpoints.latest() is None and checkpoints.best() is None and checkpoints.all() == []
    checkpoint = checkpoints.save(7, *content(7))
    assert (checkpoint.step, checkpoint.path) == (7, tmp_path / "new" / "run" / "step-000007")
    assert names(checkpoint.path) == sorted(FILES) and names(checkpoint.path.parent) == [
        "latest",
        "step-000007",
    ]
    assert Checkpoints(tmp_path / "new" / "run").latest() == checkpoint
    assert identify(checkpoint) == (7, 0) and checkpoints.best() is None and checkpoints.notes == []
    checkpoint.verify()


def test_every_dtype_and_shape_is_bitwise_identical_after_loading(tmp_path: Path):
    tensors = {
        str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) if dtype == torch.bool else torch.ones(3).to(dtype)
        for dtype in DTYPES
    }
    tensors |= {"none": torch.empty(0, 4), "one": torch.tensor(3, dtype=torch.int64)}
    tensors |= {"odd": torch.tensor([math.inf, -0.0, 5e-324], dtype=torch.float64)}
    found = Checkpoints(tmp_path).save(0, {"weights": tensors, "nothing": {}}, {})
    assert_equal(found.tensors("weights"), tensors)
    assert found.tensors("nothing") == {} and found.state == {}
    weird = torch.tensor([math.nan, -math.nan]).view(torch.int32)
    again = Checkpoints(tmp_path).save(1, {"weights": {"nan": weird.view(torch.float32)}}, {})
    assert again.tensors("weights")["nan"].view(torch.int32).equal(weird)


def test_shared_and_strided_tensors_are_saved_by_value(tmp_path: Path):
    table = torch.nn.Parameter(torch.randn(4, 6))
    tensors = {
        "embedding": table,
        "tied": table,
        "turned": table.T,
        "column": table[:, 1],
        "sparse rows": table[::2, ::3],
        "spread": torch.tensor([1.0]).expand(3, 2),
    }
    found = Checkpoints(tmp_path).save(1, {"weights": tensors}, {}).tensors("weights")
    assert_equal(found, {name: tensor.detach() for name, tensor in tensors.items()})
    assert not any(tensor.requires_grad for tensor in found.values())


def test_model_with_tied_weights_loads_its_checkpoint(tmp_path: Path):
    def model() -> torch.nn.Module:
        layers = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
        layers[1].weight = layers[0].weight
        return layers

    one, other = model(), model()
    saved = Checkpoints(tmp_path).save(1, {"weights": one.state_dict()}, {})
    other.load_state_dict(saved.tensors("weights"))
    assert other[0].weight.equal(one[0].weight) and other[1].weight is other[0].weight


def test_safetensors_library_reads_the_file(tmp_path: Path):
    tensors = {"ä": torch.ones(3, dtype=torch.int8), "b": torch.randn(2, 2, dtype=torch.float64)}
    path = Checkpoints(tmp_path).save(1, {"weights": tensors}, {}).path / "weights.safetensors"
    assert_equal(safetensors.torch.load(path.read_bytes()), tensors)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_loaded_tensors_do_not_share_memory_with_the_file(run: Path):
    found = Checkpoints(run).latest()
    assert found is not None
    tensors = found.tensors("weights")
    tensors["table"].add_(1)
    assert identify(found) == (200, 0)
    shutil.rmtree(found.path)
    assert tensors["table"].equal(content(200)[0]["weights"]["table"] + 1)


@pytest.mark.gpu
def test_tensors_saved_on_a_gpu_are_loaded_on_the_cpu(tmp_path: Path):
    table = torch.randn(5, 7, device="cuda", dtype=torch.bfloat16)
    found = Checkpoints(tmp_path).save(1, {"weights": {"turned": table.T}}, {}).tensors("weights")
    assert found["turned"].device.type == "cpu" and found["turned"].equal(table.T.cpu())


def test_last_checkpoints_and_the_best_are_kept(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in range(100, 700, 100):
        checkpoints.save(step, *content(step))
        if step in (100, 200):
            checkpoints.mark_best(step)
    assert steps(tmp_path) == [200, 400, 500, 600] and identify(checkpoints.best()) == (200, 0)
    checkpoints.mark_best(500)
    assert steps(tmp_path) == [200, 400, 500, 600]
    Checkpoints(tmp_path).save(700, *content(700))
    assert steps(tmp_path) == [500, 600, 700]
    assert checkpoints.notes == [] and names(tmp_path)[:2] == ["best", "latest"]


def test_saving_a_step_again_replaces_it(run: Path):
    checkpoints = Checkpoints(run)
    for version in (0, 1, 2):
        checkpoints.save(200, *content(200, version))
        assert identify(checkpoints.latest()) == (200, version)
    checkpoints.save(100, *content(100, 5))
    assert identify(checkpoints.latest()) == (100, 5) and identify(checkpoints.best()) == (100, 5)
    assert names(run) == ["best", "latest", "step-000100", "step-000200"] and checkpoints.notes == []


def test_checkpoints_after_latest_are_neither_loaded_nor_deleted(run: Path):
    """A run was restarted from an earlier step; the later checkpoints belong to the previous attempt."""
    (run / "latest").write_text("step-000100\n")
    checkpoints = Checkpoints(run)
    assert identify(checkpoints.latest()) == (100, 0)
    for step in (110, 120, 130):
        checkpoints.save(step, *content(step, 1))
    assert steps(run) == [100, 120, 130, 200] and identify(checkpoints.latest()) == (130, 1)
    checkpoints.save(200, *content(200, 1))
    assert steps(run) == [100, 130, 200] and identify(checkpoints.latest()) == (200, 1)


def test_other_files_in_the_run_folder_are_not_touched(run: Path):
    others = {
        "notes.txt",
        ".hidden",
        "step-1",
        "step-0000100",
        "step-best",
        ".step-000100.part",
        ".mine.01234567.part",
    }
    for name in others:
        (run / name).mkdir()
        (run / name / "file").write_text(name)
    for step in (300, 400, 500):
        Checkpoints(run).save(step, *content(step))
    assert {path.parent.name for path in run.glob("*/file")} == others
    assert steps(run) == [100, 400, 500]


def test_partial_files_of_killed_saves_are_deleted(run: Path):
    (run / ".step-000300.0a1b2c3d.part").mkdir()
    (run / ".step-000300.0a1b2c3d.part" / "weights.safetensors").write_bytes(b"half")
    (run / ".step-000200.0a1b2c3d.earlier").mkdir()
    for pointer in ("latest", "best"):
        (run / f".{pointer}.0a1b2c3d.part").write_text("step-0")
    assert identify(Checkpoints(run).latest()) == (200, 0) and steps(run) == [100, 200]
    Checkpoints(run).save(300, *content(300))
    assert names(run) == ["best", "latest", "step-000100", "step-000200", "step-000300"]


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
    with pytest.raises(DataError, match=r"weights.safetensors .*missing"):
        checkpoint.verify()
    with pytest.raises(DataError, match=r"weights.safetensors"):
        checkpoint.tensors("weights")
    manifest = json.loads((checkpoint.path / "manifest.json").read_text())
    (checkpoint.path / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(DataError, match=r"manifest.json .*version 2.* 1"):
        checkpoint.verify()
    for nonsense in ("[]", "{}", "null", '{"files": 1}', "[" * 10_000, '{"files": {"a": {"size": 1e999}}}'):
        (checkpoint.path / "manifest.json").write_text(nonsense)
        with pytest.raises(DataError, match=r"manifest.json .*damaged"):
            checkpoint.verify()


@pytest.mark.parametrize("name", ["../step-000100/state.json", "/dev/zero", "\0", "", "weights.pt"])
def test_manifest_with_a_path_outside_its_folder_raises(name: str, run: Path):
    checkpoint = Checkpoints(run).all()[1]
    manifest = json.loads((checkpoint.path / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["state.json"]
    (checkpoint.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest.json"):
        checkpoint.verify()


def test_renamed_checkpoint_is_skipped(run: Path):
    shutil.copytree(run / "step-000200", run / "step-000300")
    (run / "latest").write_text("step-000300")
    checkpoints = Checkpoints(run)
    assert identify(checkpoints.latest()) == (200, 0)
    assert "step-000300: manifest.json" in checkpoints.notes[0]


def test_error_names_every_damaged_checkpoint_if_none_is_intact(run: Path):
    flip(run / "step-000100" / "weights.safetensors")
    (run / "step-000200" / "manifest.json").unlink()
    for load in (Checkpoints(run).latest, Checkpoints(run).best):
        with pytest.raises(DataError, match="all checkpoints") as caught:
            load()
        assert "step-000100: weights.safetensors" in str(caught.value)
        assert "step-000200: manifest.json" in str(caught.value)
        assert "another folder" in str(caught.value)


def test_latest_without_checkpoints_raises(run: Path):
    for step in (100, 200):
        shutil.rmtree(run / f"step-000{step}")
    with pytest.raises(DataError, match=r"`latest`.*no checkpoint"):
        Checkpoints(run).latest()
    (run / "latest").unlink()
    assert Checkpoints(run).latest() is None
    with pytest.raises(DataError, match=r"`best`.*no checkpoint"):
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


def test_marking_a_missing_step_as_best_raises(run: Path):
    with pytest.raises(DataError, match=r"step 300\nexpected: 100, 200"):
        Checkpoints(run).mark_best(300)
    assert identify(Checkpoints(run).best()) == (100, 0)


def test_invalid_content_raises_before_anything_is_written(run: Path):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}

    def assert_raises(match: str, tensors: object, state: object = None, step: object = 300) -> None:
        with pytest.raises(ArgumentError, match=match):
            Checkpoints(run).save(step, tensors, state or {})  # type: ignore[arg-type]

    assert_raises("step is -1", {}, step=-1)
    assert_raises("step is True", {}, step=True)
    assert_raises("'../weights'", {"../weights": {}})
    assert_raises("'a' .*float", {"weights": {"a": 1.0}})
    assert_raises("torch.complex64", {"weights": {"a": torch.ones(1, dtype=torch.complex64)}})
    assert_raises("torch.sparse_coo", {"weights": {"a": torch.ones(2).to_sparse()}})
    assert_raises("'a'", {"weights": {"a": torch.ones(2, device="meta")}})
    assert_raises("'__metadata__'", {"weights": {"__metadata__": torch.ones(2)}})
    assert_raises(r"state\['rate'\].*Tensor", {}, {"rate": torch.ones(1)})
    with pytest.raises(ArgumentError, match="keep is 1"):
        Checkpoints(run, keep=1)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_unknown_tensor_file_lists_known_names(run: Path):
    with pytest.raises(UnknownName, match=r"'weights'.*\nknown: optimizer, weights"):
        Checkpoints(run).all()[0].tensors("weight")


def test_file_with_the_name_of_a_checkpoint_is_not_overwritten(run: Path):
    (run / "step-000300").write_text("mine")
    with pytest.raises(DataError, match=r"step-000300: a file"):
        Checkpoints(run).save(300, *content(300))
    assert (run / "step-000300").read_text() == "mine" and identify(Checkpoints(run).latest()) == (200, 0)
    with pytest.raises(DataError, match=r"latest: .*Not a directory"):
        Checkpoints(run / "latest").latest()


def test_symbolic_link_to_a_checkpoint_is_skipped_and_deleted_without_its_target(run: Path, tmp_path: Path):
    os.rename(run / "step-000200", tmp_path / "elsewhere")
    (run / "step-000200").symlink_to(tmp_path / "elsewhere")
    checkpoints = Checkpoints(run)
    assert identify(checkpoints.latest()) == (100, 0)
    assert any("step-000200: " in note and "link" in note for note in checkpoints.notes)
    for step in (200, 300, 400):
        Checkpoints(run).save(step, *content(step, 1))
    assert steps(run) == [100, 300, 400]
    assert names(tmp_path / "elsewhere") == sorted(FILES)
