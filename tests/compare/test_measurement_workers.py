"""Measurements in several processes: what a process gets, does, and leaves in the cache."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace

import pytest

from regard.compare.comparison_options import Options
from regard.compare.measurement_workers import measure_in_processes, work_on
from regard.compare.run_cache import RunCache
from regard.compare.studies import STUDIES
from regard.compare.study import PlannedRun, Study
from regard.compare.study_context import StudyContext
from regard.errors import DataError


def measure_run(context, run):
    """Store a measurement; fail for one of the runs."""
    if run.seed == 1:
        raise DataError("damaged")
    return context.cache.measured(run, "length", context.options.widths, lambda: {"label": run.label})


def runs(options):
    return [PlannedRun("a", seed, {"model": {"name": "luong"}, "data": {}}) for seed in options.seeds]


@pytest.fixture
def study(monkeypatch) -> Study:
    made = Study("length", "", (), runs, lambda context: None, measure_run)
    monkeypatch.setitem(STUDIES, "length", made)
    return made


def test_work_survives_json_and_a_failed_measurement(study, tmp_path):
    options = Options(seeds=(0, 1, 2), widths=(8, 16), jobs=3, device="cpu")
    tasks = []
    for seed in options.seeds:
        folder = tmp_path / str(seed) / "run"
        tasks.append({"study": "length", "label": "a", "seed": seed, "folder": str(folder), "seconds": 1.0})
    work_on(json.loads(json.dumps({"options": asdict(options), "cache": str(tmp_path), "tasks": tasks})))
    stored = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/length-*.json")}
    assert sorted(stored) == ["0", "2"]
    assert stored["0"]["result"] == {"label": "a"} and stored["0"]["parameters"] == [8, 16]


def test_processes_get_all_finished_runs_and_a_broken_process_is_survived(study, tmp_path, monkeypatch):
    options = Options(seeds=(0, 2), jobs=2, device="cpu")
    cache = RunCache(tmp_path, options, lambda text: None)
    for run in runs(options):
        cache.place(run).mkdir()
        (cache.place(run) / "finished.json").write_text('{"seconds": 2.0}')
    said: list[str] = []
    monkeypatch.setattr(sys, "executable", "false")
    measure_in_processes([study], StudyContext(options, cache, said.append))
    assert "2 trained runs in 2 processes" in said[0]
    alone = StudyContext(replace(options, jobs=1), cache, said.append)
    measure_in_processes([study], alone)
    assert len(said) == 1  # one process: the studies measure
