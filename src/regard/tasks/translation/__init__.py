"""Translation: train a translator on sentence pairs, and load it from its run folder.

train_translation({"data": {"source": ["a.ko"], "target": ["a.en"]}}, "runs/x")
load_translator("runs/x").translate("나는 고양이로소이다")
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.runs.prepare_run import Machine
    from regard.runs.seed_runs import Outcome
    from regard.tasks.translation.settings import TranslationSettings
    from regard.tasks.translation.task import (
        TranslationRun,
        TranslationTask,
        load_translator,
        train_translation,
    )
else:
    import_lazily(__name__)

__all__ = [
    "Machine",
    "Outcome",
    "TranslationRun",
    "TranslationSettings",
    "TranslationTask",
    "load_translator",
    "train_translation",
]
