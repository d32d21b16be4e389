"""Load the translator of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from regard.data.korean.corpus import separate_marks
from regard.decoding import Beam, Translator
from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, UnknownName, message
from regard.fast.search import supports_int8
from regard.models import Model, build_model
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_task import StoredRun
from regard.runs.stored_runs import stored_scores
from regard.tasks.translation.alignment_choice import check_choice, read_choice
from regard.tasks.translation.expected_quality import describe_quality
from regard.tasks.translation.guided_alignment import guided_site
from regard.tasks.translation.translation_data import load_tokenizers
from regard.tasks.translation.translation_settings import TranslationSettings

__all__ = [
    "AUTO",
    "PRECISIONS",
    "TranslationRun",
    "check_options",
    "chosen_dtype",
    "fits_float16",
    "translator_of",
]

AUTO, INT8 = "auto", "int8"
FIRST_HALF = (8, 0)
"""The lowest compute capability of NVIDIA GPUs that decode in half precision by default (Ampere)."""

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The values of load(precision=...): the dtype of the weights and of the computation. There is also "auto",
the default, see chosen_dtype(); and "int8", float32 with int8 weights in the steps of a search on a CPU."""


class TranslationRun(LoadedRun, Translator):
    """A Translator that was loaded from a run folder, with the settings and the folder of its run."""

    settings: TranslationSettings

    def prepare(self, line: str) -> str:
        """Return a source sentence in the form in which the model was trained on sentences.

        If the run was trained on the built-in corpus, spaces are inserted around punctuation. Otherwise, the
        line is returned unchanged.
        """
        return line if self.settings.data.built_in is None else separate_marks(line)

    @property
    def quality(self) -> str:
        """A sentence about the model if its validation scores are poor, otherwise ""."""
        return describe_quality(stored_scores(self.checkpoint), self.settings.training.best)

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "search": self.search}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise an error if an option is not `precision` and not an argument of Translator().

    The error suggests the most similar name.
    """
    check_load_keywords(Translator, {name: each for name, each in options.items() if name != "precision"})
    precision = options.get("precision", AUTO)
    if precision not in (AUTO, INT8, *PRECISIONS):
        raise UnknownName("precision", precision, (AUTO, INT8, *PRECISIONS))


def chosen_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype for a value of load(precision=...).

    "auto" is float16 on a GPU from NVIDIA Ampere on, and float32 on other devices. float16 is as fast as
    bfloat16, and three more bits of each number are kept. The result of a search is checked for overflow, see
    decoding.active_rows.

    >>> chosen_dtype("auto", torch.device("cpu"))
    torch.float32
    """
    if precision != AUTO:
        return PRECISIONS.get(precision, torch.float32)
    half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_HALF
    return torch.float16 if half else torch.float32


def fits_float16(model: Model) -> bool:
    """Return whether no weight of a model is too large for float16."""
    largest = [each.detach().abs().max().float() for each in model.parameters() if each.numel()]
    return not largest or bool(torch.stack(largest).max() <= torch.finfo(torch.float16).max)


def translator_of(run: StoredRun, device: str, *, precision: str = AUTO, **options: Any) -> TranslationRun:
    """Load the translator of a run.

    The file alignment.json in the run folder says from which attention weights word alignments are computed.
    Without this file, the attention layer (site) that was trained with guided alignment is used. If there is
    no such site, all cross-attention layers are used.

    run: the run folder with its settings and a checkpoint.
    device: the device of the model, for example "cpu".
    precision: the dtype of the weights and of the computation: a name in PRECISIONS, "auto" or "int8".
    options: further arguments of Translator(), such as search.
    """
    check_options({"precision": precision, **options})
    folder, settings = run.folder, run.settings
    source, target = load_tokenizers(folder, settings.data)
    model = build_model(settings.model.name, source.size, target.size, **settings.model.options)
    model = with_weights(model, run, device)
    dtype = chosen_dtype(precision, next(model.parameters()).device)
    if precision == AUTO and dtype == torch.float16 and not fits_float16(model):
        dtype = torch.bfloat16
    model = model.to(dtype)
    if precision == INT8:
        _use_int8(model)
    choice = read_choice(folder)
    if choice is not None:
        check_choice(model, choice, folder)
    alignment = choice or (guided_site(model) if settings.training.guided_alignment else None)
    options = options if alignment is None else {"alignment": alignment, **options}
    return TranslationRun(model, source, target, **{"search": Beam(), **options}).from_run(run)


def _use_int8(model: Model) -> None:
    """Let a search use int8 weights in its steps; raise ArgumentError if the model or the device cannot."""
    device = next(model.parameters()).device.type
    if device != "cpu" or not supports_int8(model):
        problem = f"a {type(model).__name__} on {device} cannot decode with int8 weights"
        expected = "a Transformer or a bahdanau model on a CPU"
        hint = 'set device="cpu", or use another precision'
        raise ArgumentError(message("precision", problem, expected=expected, hint=hint))
    model.int8_steps = True
