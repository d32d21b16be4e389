"""Algorithms: train a neural Turing machine, an LSTM or a GRU on generated sequences, and load the model.

settings = {"data": {"built_in": "copy"}}
regard.runs.train_run.train_run(AlgorithmsTask, settings, "runs/copy")
regard.load("runs/copy").solve({"vectors": ["10110010", "01101001"]})
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.tasks.algorithms.settings import AlgorithmsSettings
    from regard.tasks.algorithms.task import AlgorithmsRun, AlgorithmsTask
else:
    import_lazily(__name__)

__all__ = ["AlgorithmsRun", "AlgorithmsSettings", "AlgorithmsTask"]
