"""build_task(): the task of a run folder, as the trainer gets it."""

from __future__ import annotations

from pathlib import Path

from regard.runs.prepare_run import build_from
from regard.runs.run_folder import fingerprints_of
from regard.runs.run_task import RunTask
from regard.runs.stored_runs import checked_settings
from regard.training.distributed import Processes


def build_task(task: type[RunTask], folder: Path, device: str = "cpu") -> RunTask:
    """Build the task of a run with its data and an untrained model.

    device: on "cuda", batches are padded for CUDA graphs.
    """
    settings = checked_settings(task, folder)
    corpus = task.encode_data(task.read_data(settings, fingerprints_of(folder)), settings, folder)
    return task(build_from(task, settings, corpus), corpus, settings, Processes(), device)
