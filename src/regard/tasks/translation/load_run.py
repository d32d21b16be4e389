"""Load the translator of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.data.korean.corpus import separate_marks
from regard.decoding import Beam, Translator
from regard.decoding.input_checks import check_load_keywords
from regard.models import build_model
from regard.runs.devices import choose_device
from regard.runs.run_task import StoredRun
from regard.tasks.translation.alignment_choice import check_choice, read_choice
from regard.tasks.translation.guided_alignment import guided_site
from regard.tasks.translation.translation_data import load_tokenizers
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.checkpoints.checkpoints import Checkpoint

__all__ = ["TranslationRun", "check_options", "translator_of"]


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


def check_options(options: Mapping[str, Any]) -> None:
    """Raise if an option is not one of Translator's; the error suggests the nearest."""
    check_load_keywords(Translator, options)


def translator_of(run: StoredRun, device: str, **options: Any) -> TranslationRun:
    """Load the translator of a run.

    It aligns by the attention saved in alignment.json, else by the guided site, else by all cross-attention.
    options: those of Translator, such as search.
    """
    folder, settings = run.folder, run.settings
    source, target = load_tokenizers(folder, settings.data)
    model = build_model(settings.model.name, source.size, target.size, **settings.model.options)
    model.load_state_dict(run.checkpoint.model_weights())
    model.to(torch.device(choose_device(device))).eval()
    choice = read_choice(folder)
    if choice is not None:
        check_choice(model, choice, folder)
    alignment = choice or (guided_site(model) if settings.training.guided_alignment else None)
    options = options if alignment is None else {"alignment": alignment, **options}
    translator = TranslationRun(model, source, target, **{"search": Beam(), **options})
    translator.folder, translator.settings = folder, settings
    translator.checkpoint, translator.notes = run.checkpoint, run.notes
    return translator
