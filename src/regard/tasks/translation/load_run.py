"""Loading: a run folder as a translator."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.korean.corpus import separate_marks
from regard.decoding import Beam, Translator
from regard.decoding.input_checks import check_keywords
from regard.errors import DataError, UnknownName, message
from regard.models import build_model
from regard.runs.devices import choose_device
from regard.runs.run_folder import config_of
from regard.runs.run_manifest import check_manifest
from regard.tasks.translation.alignment_choice import check_choice, read_choice
from regard.tasks.translation.guided_alignment import guided_site
from regard.tasks.translation.model_check import check_weights
from regard.tasks.translation.translation_data import TOKENIZERS, load_tokenizers
from regard.tasks.translation.translation_settings import FOR_OUTPUTS, TranslationSettings
from regard.training.checkpoints.checkpoints import Checkpoint, Checkpoints
from regard.training.settings import build

__all__ = ["TranslationRun", "checked_settings", "find_checkpoint", "load_translator"]

WEIGHTS = ("weights",)
"""The tensor files that inference needs: damage to others, such as the optimizer state, is ignored."""


class TranslationRun(Translator):
    """A translator with the run that it comes from.

    folder: of the run. settings: what it was made with. checkpoint: which weights. notes: what had to be
    passed over to find them.
    """

    folder: Path
    settings: TranslationSettings
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()

    def prepare(self, line: str) -> str:
        """Split punctuation from words, as in the built-in corpus."""
        return line if self.settings.data.built_in is None else separate_marks(line)

    def __repr__(self) -> str:
        named = f"{str(self.folder)!r}, step={self.checkpoint.step}, model={self.settings.model.name!r}"
        return f"{type(self).__name__}({named}, search={self.search!r})"


def checked_settings(folder: Path, fixed: Sequence[str] | None = FOR_OUTPUTS) -> TranslationSettings:
    """The settings of a run; DataError if they or its tokenizers are not those that it was trained with.

    fixed: prefixes of the settings to check, by default those that outputs depend on; None for all.
    """

    def checked(config: Mapping[str, Any]) -> dict[str, Any]:
        return build(TranslationSettings, config, str(folder / "config.toml")).model_dump()

    config = config_of(folder)
    check_manifest(folder, TOKENIZERS, config, checked, fixed)
    return build(TranslationSettings, config, str(folder / "config.toml"))


def find_checkpoint(folder: Path, which: str = "best") -> tuple[Checkpoint, tuple[str, ...]]:
    """A checkpoint of a run: "best", or the latest where none was judged; "latest"; or the number of a step.

    Gives what had to be passed over too, in words.
    """
    checkpoints = Checkpoints(folder)
    if which.isdigit():
        steps = {str(each.step): each for each in checkpoints.all()}
        if which not in steps:
            raise UnknownName("step", which, steps)
        found: Checkpoint | None = steps[which]
        steps[which].verify(WEIGHTS)
    elif which in ("best", "latest"):
        found = checkpoints.best(WEIGHTS) if which == "best" else None
        found = found or checkpoints.latest(WEIGHTS)
    else:
        raise UnknownName("checkpoint", which, ("best", "latest", "the number of a step"))
    if found is None:
        problem, hint = "this run has no checkpoint yet", "let it train until it is first judged"
        raise DataError(message(str(folder), problem, hint=hint))
    return found, tuple(checkpoints.notes)


def load_translator(
    folder: str | Path, *, checkpoint: str = "best", device: str = "auto", **options: Any
) -> TranslationRun:
    """The translator that a run has become.

    Its alignments are read where that was chosen for the run, else where it was guided, else everywhere.
    checkpoint: "best", "latest" or the number of a step. options: those of Translator, such as search.
    """
    folder = Path(folder)
    parameters = inspect.signature(Translator).parameters.values()
    keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    check_keywords("load()", options, [*keywords, "checkpoint", "device"])
    settings = checked_settings(folder)
    found, notes = find_checkpoint(folder, checkpoint)
    source, target = load_tokenizers(folder, settings.data)
    check_weights(found, settings.model, (source.size, target.size))
    model = build_model(settings.model.name, source.size, target.size, **settings.model.options)
    model.load_state_dict(found.tensors("weights"))
    model.to(torch.device(choose_device(device))).eval()
    choice = read_choice(folder)
    if choice is not None:
        check_choice(model, choice, folder)
    chosen = choice or (guided_site(model) if settings.training.guided else None)
    options = options if chosen is None else {"alignment": chosen, **options}
    run = TranslationRun(model, source, target, **{"search": Beam(), **options})
    run.folder, run.settings, run.checkpoint, run.notes = folder, settings, found, notes
    return run
