"""Language models: train a model on text files, load it from its run folder, generate and score text.

train_run(LanguageTask, {"data": {"train_file": ["a.txt"]}}, "runs/x")
regard.load("runs/x").score("the cat sat")
regard.load("runs/x").generate("the cat", max_new_tokens=20)
"""

from typing import TYPE_CHECKING

from regard.tasks import names_on_use

if TYPE_CHECKING:
    from regard.tasks.language.generated_text import GeneratedText
    from regard.tasks.language.language_run import LanguageRun
    from regard.tasks.language.language_settings import LanguageSettings
    from regard.tasks.language.language_task import LanguageTask
    from regard.tasks.language.scored_text import ScoredText
else:
    __getattr__ = names_on_use(
        __name__,
        GeneratedText=".generated_text",
        LanguageRun=".language_run",
        LanguageSettings=".language_settings",
        LanguageTask=".language_task",
        ScoredText=".scored_text",
    )

__all__ = ["GeneratedText", "LanguageRun", "LanguageSettings", "LanguageTask", "ScoredText"]
