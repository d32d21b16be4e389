"""Measure the training speed of candidate models on the data of a run, and plan the run."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.runs.run_task import RunTask, sizes_of
from regard.tasks.translation.plan import Options, Plan, Workload, make_plan
from regard.tasks.translation.translation_data import Corpus, status
from regard.training.distributed import Processes
from regard.training.settings import build, merged
from regard.training.step_speed import StepTimer

__all__ = ["Trial", "epoch_tokens", "plan_run"]


class Trial:
    """Measures the training speed of models by training them for a few steps on the corpus of a run.

    task: the class of the task, TranslationTask.
    settings: the settings of the run that are known so far.
    corpus: the training data.
    device: the device to train on.
    """

    def __init__(self, task: type[RunTask], settings: Mapping[str, Any], corpus: Corpus, device: str):
        self._task = task
        self._settings, self._corpus, self._device = settings, corpus, torch.device(device)

    def speed(self, options: Options, tokens: int | None) -> float:
        """Measure the training speed of a model in tokens per second.

        Only one side is counted: the source or the target, whichever has more tokens.

        options: the options of the model, for example {"width": 128}.
        tokens: batch size in tokens. None: the batch size in sentences from the settings is used.
        """
        training = {"batch_tokens": tokens, "guided_alignment": 0.0, "learning_rate": 1e-4}
        nested = merged(self._settings, {"model": options, "training": training})
        settings = build(self._task.settings_type, nested, "the settings")
        torch.manual_seed(0)
        model = self._task.build_model(settings.model, sizes_of(self._corpus))
        task = self._task(model, self._corpus, settings, Processes(), self._device.type)
        with TemporaryDirectory() as scratch:
            timer = StepTimer(task, settings.training, self._device, Path(scratch))
            speed = timer.tokens_per_second()
        del timer, task, model
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return speed * epoch_tokens(self._corpus) / target_tokens(self._corpus)


def target_tokens(corpus: Corpus) -> int:
    """Return the number of target tokens of an epoch, including EOS."""
    return int(corpus.train.target_lengths.sum()) + len(corpus.train)


def epoch_tokens(corpus: Corpus) -> int:
    """Return the number of source tokens or of target tokens of an epoch, whichever is larger."""
    return max(target_tokens(corpus), int(corpus.train.source_lengths.sum()) + len(corpus.train))


def plan_run(
    task: type[RunTask],
    given: Mapping[str, Any],
    corpus: Corpus,
    device: str,
    processes: Processes,
    *,
    timed: bool = False,
) -> Plan:
    """Choose the settings of a run that the user has not set. All processes get the same plan.

    task: the task class.
    given: the settings so far. The section [data] is complete.
    corpus: the training data.
    device: the device to train on, for example "cuda".
    processes: the processes of distributed training.
    timed: whether to measure the training speed if the length of the run is set in steps or epochs.
    """
    shared: dict[str, Any] = {}
    if processes.first:
        trial = Trial(task, given, corpus, device)
        kind, targets = torch.device(device).type, target_tokens(corpus)
        work = Workload(len(corpus.train), epoch_tokens(corpus), kind, processes.world, targets)
        with status("measuring the speed of this machine"):
            plan = make_plan(given, work, trial.speed)
            if timed and plan.tokens_per_second is None:
                settings = plan.settings
                speed = trial.speed(settings["model"], settings["training"].get("batch_tokens"))
                plan = replace(plan, tokens_per_second=speed)
        shared = asdict(plan)
    return Plan(**processes.share(shared))
