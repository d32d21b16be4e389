"""Load the translator of a run folder."""

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

    folder: the run folder. settings: its settings. checkpoint: the checkpoint of the weights. notes: messages
    about checkpoints that were skipped because they are damaged.
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
    """Return the settings of a run; raise DataError if they or its tokenizers changed since training.

    fixed: prefixes of the settings to check, by default those that outputs depend on; None for all.
    """

    def checked(config: Mapping[str, Any]) -> dict[str, Any]:
        return build(TranslationSettings, config, str(folder / "config.toml")).model_dump()

    config = config_of(folder)
    check_manifest(folder, TOKENIZERS, config, checked, fixed)
    return build(TranslationSettings, config, str(folder / "config.toml"))


def find_checkpoint(folder: Path, which: str = "best") -> tuple[Checkpoint, tuple[str, ...]]:
    """Return a checkpoint of a run, and messages about damaged checkpoints that were skipped.

    which: "best" (the latest, if there was no evaluation yet), "latest", or the number of a step.
    """
    checkpoints = Checkpoints(folder)
    if which.isdigit():
        steps = {str(each.step): each for each in checkpoints.all()}
        if which not in steps:
            raise UnknownName("step", which, steps)
        checkpoint: Checkpoint | None = steps[which]
        steps[which].verify(WEIGHTS)
    elif which in ("best", "latest"):
        checkpoint = checkpoints.best(WEIGHTS) if which == "best" else None
        checkpoint = checkpoint or checkpoints.latest(WEIGHTS)
    else:
        raise UnknownName("checkpoint", which, ("best", "latest", "the number of a step"))
    if checkpoint is None:
        problem, hint = "this run has no checkpoint yet", "train it until the first checkpoint is saved"
        raise DataError(message(str(folder), problem, hint=hint))
    return checkpoint, tuple(checkpoints.notes)


def load_translator(
    folder: str | Path, *, checkpoint: str = "best", device: str = "auto", **options: Any
) -> TranslationRun:
    """Load the translator of a run.

    It aligns by the attention saved in alignment.json, else by the guided site, else by all cross-attention.
    checkpoint: "best", "latest" or the number of a step. options: those of Translator, such as search.
    """
    folder = Path(folder)
    parameters = inspect.signature(Translator).parameters.values()
    keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    check_keywords("load()", options, [*keywords, "checkpoint", "device"])
    settings = checked_settings(folder)
    loaded, notes = find_checkpoint(folder, checkpoint)
    source, target = load_tokenizers(folder, settings.data)
    check_weights(loaded, settings.model, (source.size, target.size))
    model = build_model(settings.model.name, source.size, target.size, **settings.model.options)
    model.load_state_dict(loaded.tensors("weights"))
    model.to(torch.device(choose_device(device))).eval()
    choice = read_choice(folder)
    if choice is not None:
        check_choice(model, choice, folder)
    alignment = choice or (guided_site(model) if settings.training.guided_alignment else None)
    options = options if alignment is None else {"alignment": alignment, **options}
    run = TranslationRun(model, source, target, **{"search": Beam(), **options})
    run.folder, run.settings, run.checkpoint, run.notes = folder, settings, loaded, notes
    return run
