"""Language models: train a model on text files, load it from its run folder, generate and score text.

train_run(LanguageTask, {"data": {"train_file": ["a.txt"]}}, "runs/x")
regard.load("runs/x").score("the cat sat")
regard.load("runs/x").generate("the cat", max_new_tokens=20)
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.tasks.language.run import LanguageRun
    from regard.tasks.language.settings import LanguageSettings
    from regard.tasks.language.task import LanguageTask
    from regard.tasks.language.text_result import GeneratedText, ScoredText
else:
    import_lazily(__name__)

__all__ = ["GeneratedText", "LanguageRun", "LanguageSettings", "LanguageTask", "ScoredText"]
