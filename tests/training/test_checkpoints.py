"""Checkpoints: loading returns what was saved, the last and the best are kept."""

from __future__ import annotations

import errno
import math
import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from regard.errors import DataError, UnknownName
from regard.files.tensor_file import DTYPES
from regard.training.checkpoints.checkpoints import Checkpoints
from tests.facts import facts
from tests.training.saved_checkpoints import FILES, assert_equal, content, identify, names, saved_run, steps


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return saved_run(tmp_path)


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


def test_marking_a_missing_step_as_best_raises(run: Path):
    with pytest.raises(DataError, match=facts("step 300", "expected", "100, 200")):
        Checkpoints(run).mark_best(300)
    assert identify(Checkpoints(run).best()) == (100, 0)


def test_a_full_disk_leaves_the_best_checkpoint_as_it_was(run: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: Checkpoints, name: str, step: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    steps = [each.step for each in Checkpoints(run).all()]
    monkeypatch.setattr(Checkpoints, "_point", full)
    with pytest.raises(DataError, match=rf"step {steps[0]} ") as caught:
        Checkpoints(run).mark_best(steps[0])
    # The pointer has a few bytes: no number of MB would help.
    assert os.strerror(errno.ENOSPC) in str(caught.value) and " MB" not in str(caught.value)
    assert [each.step for each in Checkpoints(run).all()] == steps


def test_invalid_content_changes_no_checkpoint(run: Path):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for tensors, state in (
        ({}, {"rate": torch.ones(1)}),
        ({"weights": {"a": torch.ones(2).to_sparse()}}, {}),
    ):
        with pytest.raises((TypeError, RuntimeError)):
            Checkpoints(run).save(300, tensors, state)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path != run} == before


def test_unknown_tensor_file_lists_known_names(run: Path):
    with pytest.raises(UnknownName, match=facts("'weights'", "known", "optimizer", "weights")):
        Checkpoints(run).all()[0].tensors("weight")


def test_file_with_the_name_of_a_checkpoint_is_not_overwritten(run: Path):
    (run / "step-000300").write_text("mine")
    with pytest.raises(DataError, match=facts("step-000300", "file")):
        Checkpoints(run).save(300, *content(300))
    assert (run / "step-000300").read_text() == "mine" and identify(Checkpoints(run).latest()) == (200, 0)
    with pytest.raises(DataError, match=facts("latest", os.strerror(errno.ENOTDIR))):
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
