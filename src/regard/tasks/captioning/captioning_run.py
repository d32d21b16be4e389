"""Load the image captioner of a run folder."""

from __future__ import annotations

from typing import Any

from regard.decoding.input_checks import check_load_keywords
from regard.errors import UnknownName
from regard.models.captioner import Captioner
from regard.options.attention_options import check_flags, model_arguments
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import StoredRun
from regard.tasks.captioning.captioning_data import load_caption_tokenizer
from regard.tasks.captioning.captioning_settings import CaptioningSettings
from regard.tasks.captioning.image_captioner import ImageCaptioner

__all__ = ["CaptioningRun", "build_captioner", "captioner_of"]

MODELS = {"captioner": Captioner}
"""The classes of the models for captioning, by name (the setting model.name)."""


class CaptioningRun(LoadedRun, ImageCaptioner):
    """An ImageCaptioner loaded from a run folder, with the settings and the checkpoint of the run."""

    settings: CaptioningSettings


def build_captioner(model: ModelSettings, vocabulary_size: int) -> Captioner:
    """Build a captioning model with untrained weights.

    model: the model settings, with the name of the model and its options.
    vocabulary_size: number of tokens.
    """
    if model.name not in MODELS:
        raise UnknownName("model", model.name, MODELS)
    known = model_arguments(MODELS[model.name], 1)
    check_flags(model.name, model.options, known)
    for option in model.options:
        if option not in known:
            raise UnknownName(f"option of {model.name}", option, known)
    return MODELS[model.name](vocabulary_size, **model.options)


def captioner_of(run: StoredRun, device: str, **options: Any) -> CaptioningRun:
    """Load the trained captioner of a run.

    run: the run folder with its settings and a checkpoint.
    device: the device of the model, for example "cpu".
    options: keyword arguments of ImageCaptioner() that replace the settings of the run.
    """
    check_load_keywords(ImageCaptioner, options)
    settings = run.settings
    tokenizer = load_caption_tokenizer(run.folder, settings.data)
    model = with_weights(build_captioner(settings.model, tokenizer.size), run, device)
    data = settings.data
    defaults = {
        "image_size": data.size,
        "crop_margin": data.crop_margin,
        "max_length": data.max_length + 1,
    }
    return CaptioningRun(model, tokenizer, **{**defaults, **options}).from_run(run)
