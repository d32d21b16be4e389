"""Tasks, such as translation, language modelling, text classification and image captioning.

`regard train` trains a model for a task. To add a task, add a folder for it here, and one line to TASKS in
task_table.py. A task of your own can be in your own package; this package has the names that it needs.

A task is a subclass of RunTask (runs/run_task.py). It defines its settings, data, model, loss and metrics.
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.data.batch import BatchRows
    from regard.evaluation.erasure import RowErasure
    from regard.runs.run_commands import ChosenRun, RunReport, RunView
    from regard.runs.run_settings import ModelSettings, RunSettings
    from regard.runs.run_task import RunTask
    from regard.tasks.corpus import Split
    from regard.tasks.file_options import FAITHFULNESS, TEST_FILE
    from regard.training.command_options import CommandOption
    from regard.training.settings import Section, Training
    from regard.training.task import Evaluation, Loss, epoch_generator
    from regard.viewing import Seen, Site
else:
    import_lazily(__name__)

__all__ = [
    "FAITHFULNESS",
    "TEST_FILE",
    "BatchRows",
    "ChosenRun",
    "CommandOption",
    "Evaluation",
    "Loss",
    "ModelSettings",
    "RowErasure",
    "RunReport",
    "RunSettings",
    "RunTask",
    "RunView",
    "Section",
    "Seen",
    "Site",
    "Split",
    "Training",
    "epoch_generator",
]
