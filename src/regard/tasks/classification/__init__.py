"""Classification: train a classifier of texts or pairs of texts, and load it from its run folder.

settings = {"data": {"train_file": ["reviews.tsv"]}}
regard.runs.train_run.train_run(ClassificationTask, settings, "runs/x")
regard.load("runs/x").classify("a stirring , funny film")
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.tasks.classification.settings import ClassificationSettings
    from regard.tasks.classification.task import ClassificationRun, ClassificationTask
else:
    import_lazily(__name__)

__all__ = ["ClassificationRun", "ClassificationSettings", "ClassificationTask"]
