"""Answering: train a memory network to answer questions about stories, and load it from its run folder.

settings = {"data": {"train_file": ["qa1_single-supporting-fact_train.txt"]}}
regard.runs.train_run.train_run(AnsweringTask, settings, "runs/x")
regard.load("runs/x").ask(["Mary went to the garden."], "Where is Mary?")
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.tasks.answering.settings import AnsweringSettings
    from regard.tasks.answering.task import AnsweringRun, AnsweringTask
else:
    import_lazily(__name__)

__all__ = ["AnsweringRun", "AnsweringSettings", "AnsweringTask"]
