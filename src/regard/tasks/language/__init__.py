"""Language models: train one on text files, and load it from its run folder.

train_run(LanguageTask, {"data": {"train_file": ["a.txt"]}}, "runs/x")
regard.load("runs/x").score("the cat sat")
"""

from regard.tasks.language.language_run import LanguageRun
from regard.tasks.language.language_settings import LanguageSettings
from regard.tasks.language.language_task import LanguageTask
from regard.tasks.language.scored_text import ScoredText

__all__ = ["LanguageRun", "LanguageSettings", "LanguageTask", "ScoredText"]
