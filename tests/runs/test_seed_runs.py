"""Several seeds in one run: equal to single runs, exact resume, a seed that fails, loading, and bad input."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import regard
from regard.errors import ArgumentError, RegardError, UnknownName
from regard.evaluation.confidence import interval
from regard.files.folder_lock import locked
from regard.runs.prepare_run import Machine, PreparedRun
from regard.runs.run_facts import seed_facts_of
from regard.runs.run_folder import failures_of
from regard.runs.seed_runs import Ended, Training, TrainingProcesses, seed_jobs, step_of
from regard.runs.train_run import train_run
from regard.tasks.classification import ClassificationTask
from regard.tasks.language.task import LanguageTask
from regard.training.checkpoints.checkpoints import Checkpoints
from regard.training.interrupts import Interruption
from regard.training.logs.log import Log
from regard.training.loop import Trainer
from regard.training.settings import merged, to_toml
from tests.tasks.own_task import LineTask

SEEDS = [3, 5, 4]
WORDS = ("a", "film", "the", "with", "actors", "in", "it", "story", "good", "bad")
SMALL_TRANSFORMER = {"name": "transformer", "width": 8, "heads": 2, "layers": 1, "dropout": 0.0}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Texts of 1 to 9 words, so that the batches of two seeds have different shapes."""
    draw, path = random.Random(1), tmp_path_factory.mktemp("data") / "reviews.tsv"
    rows = [(("pos", "neg")[n % 2], " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))) for n in range(60)]
    path.write_text("".join(f"{label}\t{text} {n}\n" for n, (label, text) in enumerate(rows)), "utf-8")
    return str(path)


def small(path: str, **sections: Any) -> dict[str, Any]:
    """Return the settings of a run that trains in a fraction of a second."""
    training = {"steps": 8, "batch_size": 7, "learning_rate": 0.02, "warmup_steps": 2, "evaluate_every": 4}
    usual = {
        "data": {"train_file": [path], "tokenizer": "word", "vocab_size": 20},
        "model": {"name": "lstm", "width": 6, "dropout": 0.3},
        "training": {**training, "log_every": 2, "weight_decay": 0.1},
        "evaluation": {"samples": 0},
    }
    return merged(usual, sections)


def train(settings: dict[str, Any], folder: Path, task: Any = ClassificationTask, **options: Any) -> Any:
    quiet = {"machine": Machine("cpu", 1), "console": Console(quiet=True)}
    return train_run(task, settings, folder, **{**quiet, **options})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, reviews: str) -> Path:
    """A run of three seeds that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(resumable(reviews), folder)
    return folder


def resumable(path: str) -> dict[str, Any]:
    return {**small(path, training={"save_every": 3, "ema": 0.9}), "seeds": SEEDS}


def latest(folder: Path) -> int:
    return Checkpoints(folder).latest().step


def weights(folder: Path, name: str = "weights") -> dict[str, torch.Tensor]:
    return Checkpoints(folder).latest().tensors(name)


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of log.jsonl of one kind, without times and sizes."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    other = ("time", "memory", "tokens_per_second")
    return [
        {name: value for name, value in record.items() if name not in other}
        for record in map(json.loads, lines)
        if record["kind"] == kind
    ]


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (ClassificationTask, {"training": {"label_smoothing": 0.1, "ema": 0.9}}),
    "lstm word dropout": (
        ClassificationTask,
        {"model": {"word_dropout": 0.2}, "training": {"accumulation_steps": 2, "steps": 4}},
    ),
    "transformer": (ClassificationTask, {"model": SMALL_TRANSFORMER}),
    "language lstm": (
        LanguageTask,
        {
            "data": {"layout": "continuous", "window": 5, "streams": 7},
            "model": {"depth": 2},
        },
    ),
    "lstmn": (ClassificationTask, {"model": {"name": "lstmn"}}),
    "language lstmn": (
        LanguageTask,
        {"data": {"layout": "continuous", "window": 5, "streams": 7}, "model": {"name": "lstmn", "tape": 8}},
    ),
    "language gru": (LanguageTask, {"data": {"layout": "documents"}, "model": {"name": "gru"}}),
    "language transformer": (
        LanguageTask,
        {"data": {"layout": "documents"}, "model": SMALL_TRANSFORMER},
    ),
}


LONG = {
    "lstm word dropout",
    "lstmn",
    "language lstm",
    "language lstmn",
    "language gru",
    "language transformer",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in CASES]
)
def test_each_seed_is_as_if_it_was_trained_alone(name: str, tmp_path: Path, reviews: str):
    task, sections = CASES[name]
    settings = small(reviews, **sections)
    train({**settings, "seeds": SEEDS}, tmp_path / "all", task)
    for seed in SEEDS[:2]:
        one, own = tmp_path / f"one-{seed}", tmp_path / "all" / f"seed-{seed}"
        train({**settings, "seed": seed}, one, task)
        alone, together = weights(one), weights(own)
        assert alone.keys() == together.keys()
        assert all(torch.equal(together[key], weight) for key, weight in alone.items())
        for file in ("config.toml", "manifest.json", "data.json", "best", "latest"):
            assert (one / file).read_bytes() == (own / file).read_bytes(), file
        for kind in ("training", "evaluation"):
            for first, second in zip(records(one, kind), records(own, kind), strict=True):
                assert (first["step"], first["loss"]) == (second["step"], second["loss"])


@pytest.mark.slow
def test_seeds_side_by_side_have_the_bits_of_seeds_one_after_another(tmp_path: Path, reviews: str):
    settings = {**small(reviews), "seeds": 2}
    train(settings, tmp_path / "first")
    outcome = train(settings, tmp_path / "second", machine=Machine("cpu", 1, jobs=2))
    assert outcome.progress.step == 8 and not outcome.failed and not outcome.interrupted
    assert_same(tmp_path / "first", tmp_path / "second", [0, 1])
    assert (tmp_path / "second" / "seed-1.log").is_file()


def test_a_seed_that_fails_in_a_process_is_recorded_and_another_error_is_raised(
    tmp_path: Path, reviews: str, monkeypatch: pytest.MonkeyPatch
):
    endings: dict[str, Ended] = {}

    def run(self: TrainingProcesses, trainings: Any, total: int) -> Iterator[Ended]:
        for training in trainings:
            own = tmp_path / training.name.replace(" ", "-")
            assert (own / "config.toml").is_file()
            if own.name == "seed-1":
                record = {"kind": "nonfinite", "step": 5, "text": "step 5: the loss is nan"}
                (own / "log.jsonl").write_text(json.dumps(record))
            yield endings.get(training.name, Ended(training, 0, 1.0))._replace(training=training)

    monkeypatch.setattr(TrainingProcesses, "run", run)
    settings, machine = {**small(reviews), "seeds": 2}, Machine("cpu", 1, jobs=2)
    endings["seed 1"] = Ended(Training("", tmp_path, ()), 1, 1.0, "regard: an error")
    outcome = train(settings, tmp_path, machine=machine)
    assert failures_of(tmp_path) == {1: (5, "step 5: the loss is nan")} and list(outcome.failed) == [1]
    endings["seed 0"] = endings["seed 1"]
    with pytest.raises(RegardError, match="error"):
        train({"data": {}}, tmp_path, machine=machine, resume=True)


def test_a_seed_that_has_ended_needs_no_process(
    tmp_path: Path, reviews: str, monkeypatch: pytest.MonkeyPatch
):
    train({**small(reviews, training={"steps": 1}), "seeds": 2}, tmp_path)
    shutil.rmtree(tmp_path / "seed-1")
    started: list[str] = []

    def run(self: TrainingProcesses, trainings: Any, total: int) -> Iterator[Ended]:
        started.extend(training.name for training in trainings)
        yield from ()

    monkeypatch.setattr(TrainingProcesses, "run", run)
    outcome = train({"data": {}}, tmp_path, machine=Machine("cpu", 1, jobs=2), resume=True)
    assert started == ["seed 1"] and outcome.progress.ended
    train({"data": {}}, tmp_path, resume=True)
    monkeypatch.setattr(
        "regard.runs.seed_runs._prepared", None
    )  # no seed is prepared, neither here nor in a process
    for jobs in (1, 2):
        outcome = train({"data": {}}, tmp_path, machine=Machine("cpu", 1, jobs=jobs), resume=True)
        assert outcome.progress.ended and started == ["seed 1"]


@pytest.mark.parametrize(
    ("jobs", "threads", "steps", "cores", "free", "expected"),
    [
        (None, None, 500, 8, 1 << 40, (3, 2)),
        (None, 4, 500, 8, 1 << 40, (2, 4)),
        (None, None, 500, 8, 0, (3, 2)),
        (None, None, 500, 8, 1 << 20, None),
        (None, None, 500, 1, 1 << 40, None),
        (None, None, 8, 8, 1 << 40, None),
        (2, None, 8, 8, 1, (2, 2)),
        (1, None, 500, 8, 1 << 40, None),
    ],
)
def test_seeds_side_by_side_fit_the_cores_and_the_memory(
    jobs: int | None,
    threads: int | None,
    steps: int,
    cores: int,
    free: int,
    expected: tuple[int, int] | None,
    reviews: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("regard.runs.seed_runs.usable_cores", lambda: cores)
    monkeypatch.setattr("regard.runs.seed_runs.memory", lambda: (free, free))
    monkeypatch.setattr("regard.runs.seed_runs.outline", lambda *arguments: torch.nn.Linear(2, 2))
    settings = {**small(reviews, training={"steps": steps}), "seeds": SEEDS, "task": "classification"}
    checked = ClassificationTask.settings_type.model_validate(settings)
    run = PreparedRun(checked, None, None, (), {})
    found = seed_jobs(ClassificationTask, run, Machine("cpu", threads, jobs), "cpu")
    assert (None if found is None else found[:2]) == expected


@pytest.mark.slow
def test_ctrl_c_stops_all_processes_which_save_their_checkpoints(tmp_path: Path, reviews: str):
    (tmp_path / "recipe.toml").write_text(
        to_toml({**small(reviews, training={"steps": 10**6}), "task": "classification", "seeds": 2})
    )
    command = [sys.executable, "-m", "regard", "train", "--recipe", str(tmp_path / "recipe.toml")]
    command += ["--output", str(tmp_path / "run"), "--threads", "1", "--device", "cpu"]
    process = subprocess.Popen(command, start_new_session=True)
    logs = [tmp_path / "run" / f"seed-{seed}.log" for seed in (0, 1)]
    wait_for(lambda: all(each.is_file() and (step_of(each) or (0, 0))[0] > 4 for each in logs))
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    for seed in (0, 1):
        assert latest(tmp_path / "run" / f"seed-{seed}") > 4
        with locked(tmp_path / "run" / f"seed-{seed}"):  # no process trains there any more
            pass


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
    assert condition()


def test_log_and_facts_have_mean_and_deviation(tmp_path: Path, reviews: str):
    outcome = train({**small(reviews, training={"steps": 4}), "seeds": 2}, tmp_path)
    assert outcome.progress.ended and not outcome.failed
    (record,) = records(tmp_path, "scores")
    scores = {seed: records(tmp_path / f"seed-{seed}", "evaluation")[0] for seed in (0, 1)}
    for name in ("loss", "accuracy"):
        expected = interval(each[name] for each in scores.values())
        found = record["mean"][name], record["deviation"][name]
        assert found == pytest.approx((expected.mean, expected.deviation))
        assert record["interval"][name] is None  # two seeds
        assert record["seeds"]["1"][name] == scores[1][name]
    facts = seed_facts_of(ClassificationTask, tmp_path)
    assert facts.summary["loss"].mean == pytest.approx(record["mean"]["loss"])
    assert facts.written()["seeds"] == [0, 1] and "2 of 2" in facts.status


def test_a_seed_loads_as_an_ordinary_run(tmp_path: Path, reviews: str):
    train({**small(reviews, training={"steps": 2}), "seeds": 2}, tmp_path)
    first = regard.load(tmp_path, seed=1, device="cpu").classify("a good film")
    second = regard.load(tmp_path / "seed-1", device="cpu").classify("a good film")
    assert first.to_dict() == second.to_dict()
    with pytest.raises(ArgumentError) as error:
        regard.load(tmp_path)
    assert "seed-0" in str(error.value)
    with pytest.raises(UnknownName):
        regard.load(tmp_path, seed=7)
    with pytest.raises(ArgumentError):
        regard.load(tmp_path / "seed-1", seed=1)
    with pytest.raises(ArgumentError):  # a run of several seeds has no weights to start from
        train(small(reviews), tmp_path / "other", init_from=tmp_path)
    longer = {"data": {}, "training": {"steps": 3}}
    train(longer, tmp_path / "seed-1", resume=True, change=True)
    assert latest(tmp_path / "seed-1") == 3


def test_run_resumes_with_the_number_of_its_seeds(tmp_path: Path, reviews: str):
    """config.toml has the list [0, 1]; the command that started the run has the number 2."""
    settings = {**small(reviews, training={"steps": 1}), "seeds": 2}
    train(settings, tmp_path)
    assert train(settings, tmp_path, resume=True).progress.step == 1
    with pytest.raises(ArgumentError, match="seeds"):
        train({**settings, "seeds": 3}, tmp_path, resume=True)


@pytest.mark.parametrize("saves", [5, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 8, 11))])
def test_killed_run_resumes_with_the_same_bits(
    tmp_path: Path, whole: Path, reviews: str, saves: int, monkeypatch
):
    """The process is killed after a number of checkpoints, between those of two seeds."""
    original, written = Trainer._write, list[int]()

    def killed(self: Trainer) -> None:
        if len(written) == saves:
            raise KeyboardInterrupt
        written.append(1)
        original(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_write", killed)
        train(resumable(reviews), tmp_path)
    train({"data": {}}, tmp_path, resume=True)
    assert_same(whole, tmp_path)


def assert_same(whole: Path, part: Path, seeds: list[int] = SEEDS) -> None:
    """Assert that two runs have the same checkpoints and the same records, bit for bit."""
    for seed in seeds:
        for name in ("weights", "optimizer", *(["raw"] if seeds is SEEDS else [])):
            first, second = (weights(run / f"seed-{seed}", name) for run in (whole, part))
            assert first.keys() == second.keys()
            assert all(torch.equal(first[key], second[key]) for key in first)
    for kind in ("training", "evaluation", "scores"):
        for place in ("", *(f"seed-{seed}" for seed in seeds)):
            assert records(whole / place, kind) == records(part / place, kind)


@pytest.mark.slow
def test_interrupted_run_begins_no_other_seed_and_resumes(
    tmp_path: Path, whole: Path, reviews: str, monkeypatch
):
    original, request = Log.step, Interruption()

    def interrupting(self: Log, step: int, **values: Any) -> None:
        original(self, step, **values)
        if step == 3 and self._journal.path == tmp_path / "seed-5" / "log.jsonl":
            request.cause = "SIGTERM"

    @contextmanager
    def interruptible() -> Iterator[Interruption]:
        yield request

    with monkeypatch.context() as patch:
        patch.setattr(Log, "step", interrupting)
        patch.setattr("regard.runs.train_run.interruptible", interruptible)
        outcome = train(resumable(reviews), tmp_path)
    assert outcome.interrupted == "SIGTERM"
    assert [latest(tmp_path / f"seed-{seed}") for seed in SEEDS[:2]] == [8, 4]
    assert not (tmp_path / "seed-4").exists()
    train({"data": {}}, tmp_path, resume=True)
    assert_same(whole, tmp_path)


class Breaking(ClassificationTask):
    """Before step 5, the weights of seed 5 become NaN."""

    def batches(self, epoch: int, start: int = 0) -> Any:
        for number, batch in enumerate(super().batches(epoch, start), start):
            if (self.settings.seed, epoch, number) == (5, 0, 4):
                with torch.no_grad():
                    next(self.model.parameters()).fill_(torch.nan)
            yield batch


def test_a_seed_that_becomes_nan_fails_and_the_others_go_on(tmp_path: Path, reviews: str):
    settings = {**small(reviews, training={"save_every": 2}), "seeds": SEEDS}
    outcome = train(settings, tmp_path, Breaking)
    assert list(outcome.failed) == [5] and outcome.progress.step == 8
    assert failures_of(tmp_path)[5][0] == 5
    assert latest(tmp_path / "seed-5") == 4
    assert latest(tmp_path / "seed-3") == latest(tmp_path / "seed-4") == 8
    facts = seed_facts_of(Breaking, tmp_path)
    assert list(facts.failed) == [5] and set(facts.scores) == {3, 4}
    again = train({"data": {}}, tmp_path, Breaking, resume=True)
    assert list(again.failed) == [5] and latest(tmp_path / "seed-5") == 4, "it is not trained again"
    last = train({"data": {}}, tmp_path, resume=True, change=True)
    assert not last.failed and latest(tmp_path / "seed-5") == 8, "--change trains it again"


def test_a_task_of_ones_own(tmp_path: Path):
    path, task = tmp_path / "points.txt", LineTask
    path.write_text("".join(f"{x} {2 * x + 1}\n" for x in range(10)), encoding="utf-8")
    settings = {
        "data": {"points": [str(path)]},
        "training": {"steps": 4, "learning_rate": 0.1, "evaluate_every": 4},
    }
    train({**settings, "seeds": 2}, tmp_path / "all", task)
    for seed in (0, 1):
        train({**settings, "seed": seed}, tmp_path / f"one-{seed}", task)
        for key, weight in weights(tmp_path / f"one-{seed}").items():
            torch.testing.assert_close(weights(tmp_path / "all" / f"seed-{seed}")[key], weight)


def test_settings_of_earlier_versions_load(reviews: str):
    """They stored whether several seeds were trained as one stacked model."""
    settings = {**small(reviews), "task": "classification", "seeds": 2, "stack": True}
    loaded = ClassificationTask.settings_type.model_validate(settings)
    assert loaded.seeds == [0, 1] and "stack" not in loaded.model_dump()


@pytest.mark.parametrize(
    "wrong",
    [
        {"seeds": 0},
        {"seeds": []},
        {"seeds": [1, 2, 1]},
        {"seeds": [-1, 2]},
        {"seeds": 10**9},
        {"seeds": "three"},
        {"seeds": 2, "seed": 3},
        {"seeds": 2, "training": {"minutes": 1.0, "steps": None}},
    ],
)
def test_wrong_seeds_are_errors(wrong: dict[str, Any], tmp_path: Path, reviews: str):
    settings = small(reviews)
    training = {**settings["training"], **wrong.get("training", {})}
    with pytest.raises(ArgumentError) as error:
        train({**settings, **wrong, "training": training}, tmp_path / "run")
    assert "seed" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_one_seed_cannot_become_several_seeds(tmp_path: Path, reviews: str):
    train(small(reviews, training={"steps": 2}), tmp_path)
    with pytest.raises(RegardError, match="seeds"):
        train({"data": {}, "seeds": 2}, tmp_path, resume=True, change=True)
