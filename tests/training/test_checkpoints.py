"""Checkpoints: they come back as they were saved; damage is seen and said; the last and the best are kept."""

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
    """Tensors and state that belong to one step alone."""
    weights = {"table": torch.arange(6.0).reshape(2, 3) + step, "scale": torch.tensor(version / 8)}
    return {"weights": weights, "optimizer": {"rows": torch.full((3,), step)}}, {"at": [step, version]}


def kept(checkpoint: Checkpoint | None) -> tuple[int, int]:
    """The step and the version that a checkpoint was made with; all that is in it belongs to them."""
    assert checkpoint is not None
    step, version = checkpoint.state["at"]
    assert step == checkpoint.step
    for name, tensors in content(step, version)[0].items():
        same(checkpoint.tensors(name), tensors)
    return step, version


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].equal(tensor), name


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the checkpoints 100 and 200, and 100 the best."""
    checkpoints = Checkpoints(tmp_path / "run")
    for step in (100, 200):
        checkpoints.save(step, *content(step))
    checkpoints.mark_best(100)
    return tmp_path / "run"


def steps(folder: Path) -> list[int]:
    return [each.step for each in Checkpoints(folder).all()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "new" / "run")
    assert checkpoints.latest() is None and checkpoints.best() is None and checkpoints.all() == []
    made = checkpoints.save(7, *content(7))
    assert (made.step, made.path) == (7, tmp_path / "new" / "run" / "step-000007")
    assert names(made.path) == sorted(FILES) and names(made.path.parent) == ["latest", "step-000007"]
    assert Checkpoints(tmp_path / "new" / "run").latest() == made
    assert kept(made) == (7, 0) and checkpoints.best() is None and checkpoints.notes == []
    made.verify()


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path):
    tensors = {
        str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) if dtype == torch.bool else torch.ones(3).to(dtype)
        for dtype in DTYPES
    }
    tensors |= {"none": torch.empty(0, 4), "one": torch.tensor(3, dtype=torch.int64)}
    tensors |= {"odd": torch.tensor([math.inf, -0.0, 5e-324], dtype=torch.float64)}
    found = Checkpoints(tmp_path).save(0, {"weights": tensors, "nothing": {}}, {})
    same(found.tensors("weights"), tensors)
    assert found.tensors("nothing") == {} and found.state == {}
    weird = torch.tensor([math.nan, -math.nan]).view(torch.int32)
    again = Checkpoints(tmp_path).save(1, {"weights": {"nan": weird.view(torch.float32)}}, {})
    assert again.tensors("weights")["nan"].view(torch.int32).equal(weird)


def test_tied_and_twisted_tensors_are_saved_as_what_they_show(tmp_path: Path):
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
    same(found, {name: tensor.detach() for name, tensor in tensors.items()})
    assert not any(tensor.requires_grad for tensor in found.values())


def test_a_tied_model_loads_what_it_saved(tmp_path: Path):
    def model() -> torch.nn.Module:
        layers = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
        layers[1].weight = layers[0].weight
        return layers

    one, other = model(), model()
    saved = Checkpoints(tmp_path).save(1, {"weights": one.state_dict()}, {})
    other.load_state_dict(saved.tensors("weights"))
    assert other[0].weight.equal(one[0].weight) and other[1].weight is other[0].weight


def test_any_reader_of_safetensors_reads_the_tensors(tmp_path: Path):
    tensors = {"ä": torch.ones(3, dtype=torch.int8), "b": torch.randn(2, 2, dtype=torch.float64)}
    path = Checkpoints(tmp_path).save(1, {"weights": tensors}, {}).path / "weights.safetensors"
    same(safetensors.torch.load(path.read_bytes()), tensors)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_tensors_that_were_read_are_nobodys_file(run: Path):
    found = Checkpoints(run).latest()
    assert found is not None
    tensors = found.tensors("weights")
    tensors["table"].add_(1)
    assert kept(found) == (200, 0)
    shutil.rmtree(found.path)
    assert tensors["table"].equal(content(200)[0]["weights"]["table"] + 1)


@pytest.mark.gpu
def test_tensors_on_a_gpu_come_back_on_the_cpu(tmp_path: Path):
    table = torch.randn(5, 7, device="cuda", dtype=torch.bfloat16)
    found = Checkpoints(tmp_path).save(1, {"weights": {"turned": table.T}}, {}).tensors("weights")
    assert found["turned"].device.type == "cpu" and found["turned"].equal(table.T.cpu())


def test_the_last_are_kept_and_the_best(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in range(100, 700, 100):
        checkpoints.save(step, *content(step))
        if step in (100, 200):
            checkpoints.mark_best(step)
    assert steps(tmp_path) == [200, 400, 500, 600] and kept(checkpoints.best()) == (200, 0)
    checkpoints.mark_best(500)
    assert steps(tmp_path) == [200, 400, 500, 600]
    Checkpoints(tmp_path).save(700, *content(700))
    assert steps(tmp_path) == [500, 600, 700]
    assert checkpoints.notes == [] and names(tmp_path)[:2] == ["best", "latest"]


def test_a_step_saved_again_is_replaced(run: Path):
    checkpoints = Checkpoints(run)
    for version in (0, 1, 2):
        checkpoints.save(200, *content(200, version))
        assert kept(checkpoints.latest()) == (200, version)
    checkpoints.save(100, *content(100, 5))
    assert kept(checkpoints.latest()) == (100, 5) and kept(checkpoints.best()) == (100, 5)
    assert names(run) == ["best", "latest", "step-000100", "step-000200"] and checkpoints.notes == []


def test_what_lies_beyond_the_pointer_is_neither_taken_nor_deleted(run: Path):
    """Someone began again at an earlier step; the later checkpoints are of another history."""
    (run / "latest").write_text("step-000100\n")
    checkpoints = Checkpoints(run)
    assert kept(checkpoints.latest()) == (100, 0)
    for step in (110, 120, 130):
        checkpoints.save(step, *content(step, 1))
    assert steps(run) == [100, 120, 130, 200] and kept(checkpoints.latest()) == (130, 1)
    checkpoints.save(200, *content(200, 1))
    assert steps(run) == [100, 130, 200] and kept(checkpoints.latest()) == (200, 1)


def test_what_others_keep_in_the_folder_is_not_touched(run: Path):
    theirs = {
        "notes.txt",
        ".hidden",
        "step-1",
        "step-0000100",
        "step-best",
        ".step-000100.part",
        ".mine.01234567.part",
    }
    for name in theirs:
        (run / name).mkdir()
        (run / name / "file").write_text(name)
    for step in (300, 400, 500):
        Checkpoints(run).save(step, *content(step))
    assert {path.parent.name for path in run.glob("*/file")} == theirs
    assert steps(run) == [100, 400, 500]


def test_leftovers_of_killed_saves_are_swept(run: Path):
    (run / ".step-000300.0a1b2c3d.part").mkdir()
    (run / ".step-000300.0a1b2c3d.part" / "weights.safetensors").write_bytes(b"half")
    (run / ".step-000200.0a1b2c3d.earlier").mkdir()
    for pointer in ("latest", "best"):
        (run / f".{pointer}.0a1b2c3d.part").write_text("step-0")
    assert kept(Checkpoints(run).latest()) == (200, 0) and steps(run) == [100, 200]
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
def test_a_damaged_checkpoint_is_skipped_with_one_note(name: str, way: str, run: Path):
    if (name, way) == ("manifest.json", "grown"):
        way = "flipped"  # white space after JSON means nothing
    DAMAGES[way](run / "step-000200" / name)
    checkpoints = Checkpoints(run)
    assert kept(checkpoints.latest()) == (100, 0)
    (note,) = checkpoints.notes
    assert note.startswith(f"{run / 'step-000200'}: ") and name in note
    assert note.endswith(str(run / "step-000100"))
    with pytest.raises(DataError, match=f"step-000200: {name} "):
        checkpoints.all()[1].verify()
    checkpoints.save(200, *content(200, 1))
    assert kept(checkpoints.latest()) == (200, 1) and len(checkpoints.notes) == 1


@pytest.mark.parametrize("way", DAMAGES)
def test_only_the_tensor_files_that_are_needed_are_verified(way: str, run: Path):
    Checkpoints(run).mark_best(200)
    DAMAGES[way](run / "step-000200" / "optimizer.safetensors")
    checkpoints = Checkpoints(run)
    for checkpoint in (checkpoints.best(["weights"]), checkpoints.latest(["weights"])):
        assert checkpoint is not None and checkpoint.step == 200
    assert checkpoints.notes == []
    assert kept(checkpoints.latest()) == (100, 0) and len(checkpoints.notes) == 1


def test_a_damaged_best_checkpoint_gives_one_note(run: Path):
    Checkpoints(run).mark_best(200)
    flip(run / "step-000200" / "weights.safetensors")
    checkpoints = Checkpoints(run)
    assert kept(checkpoints.best(["weights"])) == (100, 0)
    (note,) = checkpoints.notes
    assert note.count("step-000200") == 1 and note.endswith(str(run / "step-000100"))


def test_no_flipped_bit_goes_unseen(run: Path):
    checkpoint, seen = Checkpoints(run).all()[1], 0
    for name in FILES:
        whole = (checkpoint.path / name).read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            (checkpoint.path / name).write_bytes(damaged)
            with pytest.raises(DataError, match="step-000200: "):
                checkpoint.verify()
            seen += 1
        (checkpoint.path / name).write_bytes(whole)
    checkpoint.verify()
    assert seen > 500


def test_the_error_says_what_is_wrong_with_the_file(run: Path):
    checkpoint = Checkpoints(run).all()[1]
    DAMAGES["cut"](checkpoint.path / "state.json")
    with pytest.raises(DataError, match=r"state.json has \d+ bytes"):
        checkpoint.verify()
    DAMAGES["missing"](checkpoint.path / "weights.safetensors")
    with pytest.raises(DataError, match=r"weights.safetensors is missing"):
        checkpoint.verify()
    with pytest.raises(DataError, match=r"weights.safetensors: cannot be read"):
        checkpoint.tensors("weights")
    manifest = json.loads((checkpoint.path / "manifest.json").read_text())
    (checkpoint.path / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(DataError, match=r"manifest.json .*version 2.* 1"):
        checkpoint.verify()
    for nonsense in ("[]", "{}", "null", '{"files": 1}', "[" * 10_000, '{"files": {"a": {"size": 1e999}}}'):
        (checkpoint.path / "manifest.json").write_text(nonsense)
        with pytest.raises(DataError, match=r"manifest.json is damaged"):
            checkpoint.verify()


@pytest.mark.parametrize("name", ["../step-000100/state.json", "/dev/zero", "\0", "", "weights.pt"])
def test_a_manifest_names_files_of_its_folder_alone(name: str, run: Path):
    checkpoint = Checkpoints(run).all()[1]
    manifest = json.loads((checkpoint.path / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["state.json"]
    (checkpoint.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest.json .*this checkpoint"):
        checkpoint.verify()


def test_a_checkpoint_under_a_wrong_name_is_not_taken(run: Path):
    shutil.copytree(run / "step-000200", run / "step-000300")
    (run / "latest").write_text("step-000300")
    checkpoints = Checkpoints(run)
    assert kept(checkpoints.latest()) == (200, 0)
    assert "step-000300: manifest.json" in checkpoints.notes[0]


def test_checkpoints_of_which_none_is_whole_are_all_named(run: Path):
    flip(run / "step-000100" / "weights.safetensors")
    (run / "step-000200" / "manifest.json").unlink()
    for ask in (Checkpoints(run).latest, Checkpoints(run).best):
        with pytest.raises(DataError, match="all checkpoints") as caught:
            ask()
        assert "step-000100: weights.safetensors" in str(caught.value)
        assert "step-000200: manifest.json is missing" in str(caught.value)
        assert "another folder" in str(caught.value)


def test_a_pointer_to_checkpoints_that_are_gone_is_no_beginning(run: Path):
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
def test_a_pointer_that_names_nothing_is_said(pointer: str, text: str, run: Path):
    (run / pointer).write_bytes(text.encode("latin-1"))
    checkpoints = Checkpoints(run)
    found = checkpoints.latest() if pointer == "latest" else checkpoints.best()
    assert kept(found) == (200, 0)
    assert len(checkpoints.notes) == 1 and str(run / pointer) in checkpoints.notes[0]
    assert kept(checkpoints.latest()) == (200, 0) and len(checkpoints.notes) == 1
    for step in (300, 400, 500):
        checkpoints.save(step, *content(step))
    assert kept(Checkpoints(run).latest()) == (500, 0)
    best_is_known = pointer == "latest"
    assert (100 in steps(run)) == (best_is_known or not text.startswith("step-000900"))


def test_a_pointer_that_is_missing_is_said(run: Path):
    (run / "latest").unlink()
    checkpoints = Checkpoints(run)
    assert kept(checkpoints.latest()) == (200, 0)
    (note,) = checkpoints.notes
    assert note.startswith(f"{run / 'latest'} is missing") and str(run / "step-000200") in note


def test_damaged_ones_do_not_count_as_kept(run: Path):
    flip(run / "step-000200" / "weights.safetensors")
    (run / "best").unlink()
    checkpoints = Checkpoints(run)
    checkpoints.latest()
    checkpoints.save(250, *content(250))
    assert steps(run) == [100, 200, 250]
    checkpoints.mark_best(250)
    os.truncate(checkpoints.save(300, *content(300)).path / "state.json", 1)
    checkpoints.save(350, *content(350))
    assert steps(run) == [250, 300, 350] and kept(Checkpoints(run).latest()) == (350, 0)
    os.truncate(run / "step-000250" / "state.json", 1)
    checkpoints.save(360, *content(360))
    assert steps(run) == [250, 350, 360]


def test_only_a_checkpoint_can_be_the_best(run: Path):
    with pytest.raises(DataError, match=r"no checkpoint of step 300\nexpected: 100, 200"):
        Checkpoints(run).mark_best(300)
    assert kept(Checkpoints(run).best()) == (100, 0)


def test_what_cannot_be_saved_is_refused_before_anything_is_written(run: Path):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}

    def refused(match: str, tensors: object, state: object = None, step: object = 300) -> None:
        with pytest.raises(ArgumentError, match=match):
            Checkpoints(run).save(step, tensors, state or {})  # type: ignore[arg-type]

    refused("step is -1", {}, step=-1)
    refused("step is True", {}, step=True)
    refused("'../weights'", {"../weights": {}})
    refused(r"save\(\), weights: 'a' has type float", {"weights": {"a": 1.0}})
    refused("is of dtype torch.complex64", {"weights": {"a": torch.ones(1, dtype=torch.complex64)}})
    refused("of layout torch.sparse_coo", {"weights": {"a": torch.ones(2).to_sparse()}})
    refused("without content", {"weights": {"a": torch.ones(2, device="meta")}})
    refused("'__metadata__'", {"weights": {"__metadata__": torch.ones(2)}})
    refused(r"state\['rate'\]: Object of type Tensor", {}, {"rate": torch.ones(1)})
    with pytest.raises(ArgumentError, match="keep is 1"):
        Checkpoints(run, keep=1)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_an_unknown_name_of_tensors_lists_the_known(run: Path):
    with pytest.raises(UnknownName, match=r"did you mean 'weights'\?\nknown: optimizer, weights"):
        Checkpoints(run).all()[0].tensors("weight")


def test_a_file_in_the_way_stays(run: Path):
    (run / "step-000300").write_text("mine")
    with pytest.raises(DataError, match=r"step-000300: a file"):
        Checkpoints(run).save(300, *content(300))
    assert (run / "step-000300").read_text() == "mine" and kept(Checkpoints(run).latest()) == (200, 0)
    with pytest.raises(DataError, match=r"latest: this run folder cannot be read: Not a directory"):
        Checkpoints(run / "latest").latest()


def test_a_link_to_a_checkpoint_is_not_read_and_is_deleted_without_its_target(run: Path, tmp_path: Path):
    os.rename(run / "step-000200", tmp_path / "elsewhere")
    (run / "step-000200").symlink_to(tmp_path / "elsewhere")
    checkpoints = Checkpoints(run)
    assert kept(checkpoints.latest()) == (100, 0)
    assert any("step-000200: is a symbolic link" in note for note in checkpoints.notes)
    for step in (200, 300, 400):
        Checkpoints(run).save(step, *content(step, 1))
    assert steps(run) == [100, 300, 400]
    assert names(tmp_path / "elsewhere") == sorted(FILES)
