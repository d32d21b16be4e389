"""The algorithms task: settings, training, exact resume, loading, solving, and bad input."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from rich.console import Console

import regard
from regard.errors import ArgumentError, DataError, RegardError, UnknownName
from regard.runs.prepare_run import Machine
from regard.runs.run_commands import ChosenRun, ViewOptions
from regard.runs.train_run import train_run
from regard.tasks.algorithms import AlgorithmsRun, AlgorithmsTask
from regard.tasks.algorithms.data import SequenceSource
from regard.tasks.algorithms.settings import AlgorithmsData
from regard.tasks.algorithms.task import sequence_bits
from regard.training.checkpoints.checkpoints import Checkpoints
from tests.facts import facts

SMALL = {
    "data": {"built_in": "copy", "width": 3, "length": [1, 3]},
    "model": {"width": 8, "slots": 8, "slot_width": 4},
    "training": {"steps": 4, "batch_size": 2, "warmup_steps": 1, "save_every": 2, "keep": 5},
    "evaluation": {"sequences": 4},
}
OPTIONS = {"lengths": None, "repeats": None, "sequences": 4, "slots": None}
VIEW = {"length": None, "sequence": None, "slot": None}


def train(folder: Path, resume: bool = False, **sections: Any) -> Path:
    settings = {**SMALL, **{name: _section(name, values) for name, values in sections.items()}}
    console = Console(quiet=True)
    train_run(AlgorithmsTask, settings, folder, machine=Machine("cpu"), console=console, resume=resume)
    return folder


def _section(name: str, values: Any) -> Any:
    """Return a section of SMALL with these values; those that are None are left out."""
    if not isinstance(values, dict):
        return values
    return {key: each for key, each in {**SMALL[name], **values}.items() if each is not None}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("algorithms") / "run")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoints(folder).latest()
    assert checkpoint is not None
    return checkpoint.tensors("weights")


def test_load_and_solve(run: Path):
    solver = regard.load(run, device="cpu")
    assert isinstance(solver, AlgorithmsRun) and "copy" in repr(solver)
    solution = solver.solve({"vectors": ["101", "011"]})
    assert solution.target == ["101", "011"] and len(solution.answer) == 2
    assert solution.read.shape == solution.write.shape == (1, 5, 8)
    assert solution.memory.shape == (6, 8, 4) and numpy.allclose(solution.memory[0], 1e-6)
    assert solution.seen().sites[0].name == "tape.read"
    record = solution.to_dict()
    assert record["wrong_bits"] == solution.wrong_bits and len(record["slots"]["read"][0]) == 5
    plain = solver.solve({"vectors": ["101", "011"]}, look=False)
    assert plain.read is None and plain.bits == pytest.approx(solution.bits, rel=1e-4)
    first, again = (list(solver.generate(2, {"length": 2}, seed=1)) for _ in range(2))
    assert [each.target for each in first] == [each.target for each in again] and len(first) == 2
    assert "bits" in solution._repr_html_() and "<img" in solution._repr_html_()


def test_scores_agree_with_the_solutions(run: Path):
    solver = regard.load(run, device="cpu")
    batch = SequenceSource(solver.settings.data).fixed(3, {"length": 2})
    scored = sequence_bits(solver.model, batch, rows=2)
    solutions = solver.solve_batch(batch, {"length": 2})
    assert scored.bits.tolist() == pytest.approx([each.bits for each in solutions], rel=1e-4)
    assert scored.wrong.tolist() == [each.wrong_bits for each in solutions]


def test_a_longer_tape_and_a_tape_that_is_too_short(run: Path):
    assert next(regard.load(run, slots=20).generate(1, {"length": 15})).read.shape[2] == 20
    with pytest.raises(ArgumentError, match=facts("15 slots", "--slots", 15, "slots")):
        next(regard.load(run).generate(1, {"length": 15}))
    with pytest.raises(ArgumentError, match="9 slots"):
        regard.load(run).solve({"vectors": ["101"] * 9}, "a.jsonl, line 2")
    with pytest.raises(RegardError):
        regard.load(run, slots=1)


def test_resume_is_exact(run: Path, tmp_path: Path):
    copy = shutil.copytree(run, tmp_path / "copy")
    for name in ("step-000004", "latest", "best"):
        place = copy / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    (copy / "latest").write_text("step-000002\n")
    train(copy, resume=True)
    before, after = weights(run), weights(copy)
    assert all(before[name].equal(after[name]) for name in before)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_baselines(tmp_path: Path, name: str):
    folder = train(tmp_path / name, model={"name": name, "width": 8, "slots": None, "slot_width": None})
    solver = regard.load(folder, device="cpu")
    solution = solver.solve({"vectors": ["101"]})
    assert solution.read is None and not solver.has_tape
    with pytest.raises(ArgumentError, match="tape"):
        solution.save(tmp_path / "x.svg")
    viewed = AlgorithmsTask.view_run(ChosenRun(folder, device="cpu"), {**VIEW, "length": 2}, ViewOptions())
    assert "no attention" in str(viewed.picture(ViewOptions())) and not viewed.seen.sites
    with pytest.raises(ArgumentError, match="--slot"):
        AlgorithmsTask.view_run(ChosenRun(folder, device="cpu"), {**VIEW, "slot": 1}, ViewOptions("slot"))
    with pytest.raises(ArgumentError, match="tape"):
        regard.load(folder, slots=9)


def test_evaluate(run: Path, monkeypatch: pytest.MonkeyPatch):
    chosen, shown = ChosenRun(run, device="cpu"), list[int]()

    @contextmanager
    def advancing(name: str, total: int) -> Iterator[Callable[[int], None]]:
        yield shown.append

    monkeypatch.setattr("regard.tasks.algorithms.task.advancing", advancing)
    report = AlgorithmsTask.evaluate_run(chosen, {**OPTIONS, "lengths": "2, 3", "slots": 9})
    assert shown == [1, 2]
    report = AlgorithmsTask.evaluate_run(chosen, OPTIONS)
    assert [each["sizes"] for each in report.values["sizes"]] == ["training lengths", "length 3"]
    assert report.values["notes"] and math.isfinite(report.to_dict()["bits"])
    report = AlgorithmsTask.evaluate_run(chosen, {**OPTIONS, "lengths": "2, 8", "slots": 9})
    assert [each["sizes"] for each in report.values["sizes"]] == ["length 2", "length 8"]
    for options in ({"lengths": "x"}, {"lengths": "9"}, {"lengths": "0"}, {"repeats": 2}):
        with pytest.raises(ArgumentError):
            AlgorithmsTask.evaluate_run(chosen, {**OPTIONS, **options})


def test_bits_longer_only_if_the_tape_is_long_enough(tmp_path: Path):
    for slots, expected in ((8, False), (9, True)):
        folder = train(tmp_path / str(slots), model={"slots": slots}, training={"steps": 1})
        log = (folder / "log.jsonl").read_text(encoding="utf-8")
        assert ("bits_longer" in log) is expected and "bits_longest" in log
        assert log.count(" parameters") == 1


def test_overwrite_without_changes(tmp_path: Path):
    data = {"built_in": "overwrite", "length": [2, 2], "changes": [0, 0]}
    folder = train(tmp_path / "run", data=data, training={"steps": 1})
    (solution,) = regard.load(folder, device="cpu").generate(1, {})
    assert len(solution.inputs) == 2 + 2 * 2 and len(solution.target) == 2


def test_evaluate_n_grams_beside_the_optimal_estimator(tmp_path: Path):
    data = {"built_in": "n-grams", "length": [12, 12], "order": 3, "width": None}
    folder = train(tmp_path / "run", data=data, training={"steps": 1})
    (first, *_) = AlgorithmsTask.evaluate_run(ChosenRun(folder, device="cpu"), OPTIONS).values["sizes"]
    assert 0 < first["optimal_bits"] < first["bits"] + 5


def test_views(run: Path, tmp_path: Path):
    chosen = ChosenRun(run, device="cpu")
    viewed = AlgorithmsTask.view_run(chosen, {**VIEW, "length": 2}, ViewOptions())
    one = (None, "slot", "matrix", "erasure", "gradient")
    for view, frames in (*((each, 1) for each in one), ("player", 5)):
        drawn = viewed.picture(ViewOptions(view, site="tape.read" if view == "matrix" else None))
        assert len(drawn.frames) == frames and str(drawn)
    viewed.write_page(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "data:image/svg+xml" in page and "copy, length 2" in page
    viewed.picture(ViewOptions()).save(tmp_path / "a.svg")
    assert "slots" in (tmp_path / "a.svg").read_text()
    given = {**VIEW, "sequence": '{"vectors": ["101"]}', "slot": 99}
    with pytest.raises(ArgumentError, match="--slot"):
        AlgorithmsTask.view_run(chosen, given, ViewOptions())
    viewed = AlgorithmsTask.view_run(chosen, given, ViewOptions("slot"))
    with pytest.raises(ArgumentError, match="99"):
        viewed.picture(ViewOptions("slot"))
    with pytest.raises(ArgumentError, match="--length"):
        AlgorithmsTask.view_run(chosen, {**given, "length": 3}, ViewOptions("slot"))
    with pytest.raises(DataError, match="--sequence"):
        AlgorithmsTask.view_run(chosen, {**given, "sequence": "[1]"}, ViewOptions("slot"))


@pytest.mark.parametrize(
    ("sections", "error", "text"),
    [
        ({"data": {"built_in": "sort"}}, ArgumentError, "built_in"),
        ({"data": {"repeats": [1, 2]}}, ArgumentError, "repeats"),
        ({"data": {"length": [3, 1]}}, ArgumentError, "3 to 1"),
        ({"data": {"length": [1, 9]}}, ArgumentError, "9 slots"),
        ({"model": {"name": "rnn"}}, UnknownName, "rnn"),
        ({"model": {"size": 3}}, UnknownName, "size"),
        ({"model": {"slots": 2}}, ArgumentError, "slots"),
        ({"training": {"batch_tokens": 64, "batch_size": None}}, ArgumentError, "batch"),
        ({"training": {"best": "bits_longer"}}, ArgumentError, "9 or more"),
        ({"data": {"length": [0, 3]}}, ArgumentError, "length"),
    ],
)
def test_bad_settings(tmp_path: Path, sections: dict[str, Any], error: type[Exception], text: str):
    with pytest.raises(error) as caught:
        train(tmp_path / "run", **sections)
    assert text in str(caught.value) and not (tmp_path / "run" / "latest").exists()


def test_batches_depend_on_seed_and_number_and_sizes_on_the_number_alone():
    source = SequenceSource(AlgorithmsData())
    one, two, again = (source.batch(seed, 7, 3) for seed in (0, 1, 0))
    assert one.inputs.shape == two.inputs.shape and one.inputs.equal(again.inputs)
    assert not one.inputs.equal(two.inputs)
    lengths = {source.batch_sizes(number)["length"] for number in range(400)}
    assert lengths == set(range(1, 21))
    assert sum(map(len, source.mixed(10))) == 10
