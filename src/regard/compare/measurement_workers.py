"""Measure the trained runs of a comparison in several processes.

Each process gets a list of runs as JSON on its standard input, and stores their measurements in the cache.
The studies then read them from there.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.compare.comparison_options import Options
from regard.compare.run_cache import RunCache, TrainedRun
from regard.compare.study import Study
from regard.compare.study_context import StudyContext
from regard.errors import RegardError

__all__ = ["measure_in_processes"]

EVERY = 15.0
"""Seconds between two lines of progress."""


def measure_in_processes(studies: Sequence[Study], context: StudyContext) -> None:
    """Measure the finished runs of some studies in options.jobs processes.

    A measurement that fails here is made again by its study, which reports the error.
    """
    tasks = _tasks(studies, context)
    jobs = min(context.options.jobs, len(tasks))
    if jobs < 2:
        return
    context.say(f"measuring {len(tasks)} trained runs in {jobs} processes ...")
    workers = [
        _start(context, [task for run in tasks[number::jobs] for task in run]) for number in range(jobs)
    ]
    began = time.monotonic()
    reported = began
    try:
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.2)
            if time.monotonic() - reported > EVERY:
                reported = time.monotonic()
                going = sum(worker.poll() is None for worker in workers)
                context.say(f"measuring: {going} processes are running, {reported - began:.0f} s")
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.terminate()
            worker.wait()


def _tasks(studies: Sequence[Study], context: StudyContext) -> list[list[dict[str, Any]]]:
    """Return, for each run folder, its tasks: the study, label, seed, folder and seconds of a finished run.

    The tasks of a folder go to one process, which reads shared measurements from the cache. The folders with
    the most tasks come first.
    """
    tasks: dict[str, list[dict[str, Any]]] = {}
    for study in studies:
        if study.measure_run is None:
            continue
        for run in context.finished(study.runs(context.options)):
            task = {"study": study.name, **dataclasses.asdict(run), "folder": str(run.folder)}
            tasks.setdefault(task["folder"], []).append(task)
    return sorted(tasks.values(), key=len, reverse=True)


def _start(context: StudyContext, tasks: Sequence[dict[str, Any]]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "regard.compare.measurement_workers"]
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **streams)
    work = {
        "options": dataclasses.asdict(context.options),
        "cache": str(context.cache.folder),
        "tasks": tasks,
    }
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(work).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass  # the process has failed; its runs are measured later
    return process


def work_on(work: dict[str, Any]) -> None:
    """Make the measurements of a list of runs."""
    from regard.compare.studies import STUDIES

    options = dict(work["options"])
    for name in ("models", "seeds", "bins", "widths"):
        options[name] = tuple(options[name])
    chosen = Options(**options)
    context = StudyContext(
        chosen, RunCache(Path(work["cache"]), chosen, lambda text: None), lambda text: None
    )
    for task in work["tasks"]:
        run = TrainedRun(task["label"], task["seed"], Path(task["folder"]), task["seconds"])
        measure = STUDIES[task["study"]].measure_run
        assert measure is not None
        try:
            measure(context, run)
        except RegardError:
            continue  # the study makes this measurement again, and reports the error


if __name__ == "__main__":
    work_on(json.loads(sys.stdin.buffer.read()))
