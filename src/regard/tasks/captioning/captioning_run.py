"""Load the image captioner of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.decoding.input_checks import check_load_keywords
from regard.errors import UnknownName
from regard.models.captioner import Captioner
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import StoredRun
from regard.tasks.captioning.captioning_data import load_caption_tokenizer
from regard.tasks.captioning.captioning_settings import CaptioningSettings
from regard.tasks.captioning.image_captioner import ImageCaptioner

__all__ = ["CaptioningRun", "build_captioner", "captioner_of", "check_captioner_options"]

MODELS = {"captioner": Captioner}
"""The models of the task by name."""


class CaptioningRun(LoadedRun, ImageCaptioner):
    """An image captioner with the run that it comes from (see LoadedRun)."""

    settings: CaptioningSettings


def check_captioner_options(options: Mapping[str, Any]) -> None:
    """Raise if ImageCaptioner has no option of this name; the error suggests the most similar name."""
    check_load_keywords(ImageCaptioner, options)


def build_captioner(model: ModelSettings, vocabulary_size: int) -> Captioner:
    """Build the model of a run."""
    if model.name not in MODELS:
        raise UnknownName("model", model.name, MODELS)
    return MODELS[model.name](vocabulary_size, **model.options)


def captioner_of(run: StoredRun, device: str, **options: Any) -> CaptioningRun:
    """Load the captioner of a run. options: the options of ImageCaptioner."""
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
