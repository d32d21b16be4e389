"""Load the image captioner of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.decoding.input_checks import check_load_keywords
from regard.decoding.search_options import build_search
from regard.errors import ArgumentError, UnknownName, message, shown
from regard.models.captioner import Captioner
from regard.options.attention_options import check_flags, model_arguments
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import RunTask, StoredRun
from regard.tasks.captioning.caption_result import Caption
from regard.tasks.captioning.data import load_caption_tokenizer
from regard.tasks.captioning.image_captioner import ImageCaptioner
from regard.tasks.captioning.settings import CaptioningSettings
from regard.training.command_options import CommandOption

__all__ = [
    "CaptioningRun",
    "VIEW_OPTIONS",
    "build_captioner",
    "captioner_of",
    "view_captioning",
]

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


IMAGE = "image"

VIEW_OPTIONS: tuple[CommandOption | str, ...] = (
    CommandOption("--image", "Captioning: the image file to caption.", "FILE"),
    "beam_size",
    "length_penalty",
    "greedy",
    "max_length",
)
"""The options of `regard view` for captioning. All tasks also have the drawing options. A str is the name of
an option that several commands share."""


def view_captioning(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> RunView:
    """Caption one image, record the attention of each word, and measure its faithfulness.

    task: the task class.
    run: the run folder and the checkpoint to load.
    options: the values of VIEW_OPTIONS.
    drawing: the drawing options, which are not used here.
    """
    if not options["image"]:
        raise ArgumentError(message("regard view", "no image is given", hint="--image FILE"))
    search = build_search(
        options["beam_size"],
        options["length_penalty"],
        greedy=options["greedy"],
        max_length=options["max_length"],
    )
    captioner: CaptioningRun = run.load(task, search=search)
    if captioner.model.select is None:
        problem = "this captioner has no attention: model.select is none"
        hint = "choose a run of a captioner with soft or hard attention"
        raise ArgumentError(message(shown(run.folder), problem, hint=hint))
    caption: Caption = captioner.caption(options["image"])
    if not caption.words:
        raise ArgumentError(message(shown(options["image"]), "the model writes a caption without words"))
    erasure = captioner.erase_regions([caption])
    note = erasure.summary()
    attention = caption.image_attention().noted(note)
    own = {IMAGE: attention.picture, "player": attention.animation}  # the player is an animation by words
    return RunView(caption.seen().noted(note), default_view=IMAGE, own=own, page=attention.save)
