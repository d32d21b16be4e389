"""Algorithms: train a neural Turing machine, an LSTM or a GRU on generated sequences, and load the model.

settings = {"data": {"built_in": "copy"}}
regard.runs.train_run.train_run(AlgorithmsTask, settings, "runs/copy")
regard.load("runs/copy").solve({"vectors": ["10110010", "01101001"]})
"""

from typing import TYPE_CHECKING

from regard.tasks import names_on_use

if TYPE_CHECKING:
    from regard.tasks.algorithms.algorithms_run import AlgorithmsRun
    from regard.tasks.algorithms.algorithms_settings import AlgorithmsSettings
    from regard.tasks.algorithms.algorithms_task import AlgorithmsTask
else:
    __getattr__ = names_on_use(
        __name__,
        AlgorithmsRun=".algorithms_run",
        AlgorithmsSettings=".algorithms_settings",
        AlgorithmsTask=".algorithms_task",
    )

__all__ = ["AlgorithmsRun", "AlgorithmsSettings", "AlgorithmsTask"]
