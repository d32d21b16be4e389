"""Load the model of an algorithms run from its run folder."""

from __future__ import annotations

from typing import Any

from regard.decoding.input_checks import check_load_keywords
from regard.named_models.sequence_models import build_sequence_model
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_task import StoredRun
from regard.tasks.algorithms.algorithms_settings import AlgorithmsSettings
from regard.tasks.algorithms.sequence_solver import SequenceSolver

__all__ = ["AlgorithmsRun", "solver_of"]


class AlgorithmsRun(LoadedRun, SequenceSolver):
    """A SequenceSolver that was loaded from a run folder, with the settings and the folder of its run."""

    settings: AlgorithmsSettings

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "task": self.task.name}


def solver_of(run: StoredRun, device: str, **options: Any) -> AlgorithmsRun:
    """Load the model of an algorithms run.

    run: the run folder, with its settings and the chosen checkpoint.
    device: where the model runs.
    options: further arguments of SequenceSolver, such as slots.
    """
    check_load_keywords(SequenceSolver, options)
    settings = run.settings
    task = settings.data.task()
    model = build_sequence_model(
        settings.model.name, task.input_size, task.target_size, **settings.model.options
    )
    return AlgorithmsRun(with_weights(model, run, device), task, **options).from_run(run)
