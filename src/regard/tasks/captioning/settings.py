"""The settings of a captioning run: data, model, training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from regard.errors import ArgumentError, message
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.tasks.file_options import FILE_FORMATS, TOKENS, train_files
from regard.training.command_options import CommandOption
from regard.training.settings import Clash, Part, Section, Training, Weight, Whole

MAX_SIZE = 4096
"""The largest size of an image in pixels: the same as in data/images/image_file.py, which imports torch."""

PIXELS = 64
"""Width and height of a picture of shapes: the same as in data/shapes.py."""

SHAPES = "shapes"
"""Name of the built-in corpus: generated pictures of coloured shapes with captions."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Splits = Annotated[list[str], BeforeValidator(_listed)]


def caption_columns(text: str) -> list[str]:
    """Return the names of the columns of image and captions: the value of --columns, split at commas."""
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or not all(names) or all(map(str.isdecimal, names)):
        expected = "names of the header line: image,caption"
        raise ArgumentError(message("--columns", repr(text), expected=expected))
    return names


class ImageData(Section):
    """The settings [data] of a captioning run: images and caption files, and how they are prepared.

    train_file: caption files to train on: TSV, JSON lines, or JSON in the layout of COCO or Karpathy.
    valid_file: caption files to validate on, in the same formats.
    images: captioning: folder of the images that the caption files name.
    valid_images: a list with the folder of the images of valid_file. Default: the folder in `images`.
    format: "tsv", "jsonl", "coco" or "karpathy". By default, the format is detected from the file.
    encoding: the encoding of TSV and JSON lines files, such as "cp949". Default: UTF-8.
    columns: the columns of image and captions in TSV and CSV files: names in the header line. Default:
        "image", and those whose names begin with "caption".
    split: names of the splits to train on, if the caption file has splits. Default: "train".
    valid_split: names of the splits to validate on. Default: the first of "val", "valid", "validation" and
        "dev" that occurs in the caption file.
    held_out: number of training images to hold out for validation, if there is no validation set. Default:
        1000, but at most one in 20.
    built_in: "shapes": use generated pictures of coloured shapes instead of files.
    pictures: number of training pictures of the built-in corpus. Default: 10,000.
    empty: what to do with a caption without words. "error": stop. "skip": leave out the caption.
    missing: what to do if an image file does not exist. "error": stop. "skip": leave out the image.
    damaged: what to do if an image file cannot be decoded. "error": stop. "skip": leave out the image.
    image_size: width and height in pixels of the images that the model reads. Default: 128, or 64 for the
        built-in corpus.
    crop_margin: images are decoded to image_size + crop_margin pixels in width and height, then cropped to
        image_size. The crop is random in training, and at the centre otherwise.
    flip: whether to mirror half of the images in training. Do not use it if captions contain "left" or
        "right".
    workers: number of threads that decode the images of a batch.
    lowercase: convert captions to lower case.
    tokenizer: "word", "unigram", "bpe" or "character".
    vocab_size: maximum number of tokens of the tokenizer. The default depends on the kind of tokenizer.
    max_length: maximum number of tokens of a caption. Longer captions are truncated.
    """

    train_file: list[str] | None = None
    valid_file: list[str] | None = None
    encoding: str | None = None
    images: Annotated[
        list[str] | None,
        CommandOption(
            "--images", metavar="FOLDER", kind=Path, shown_default="folder of --train-file", parse=_listed
        ),
    ] = None
    valid_images: list[str] | None = None
    format: Literal["tsv", "jsonl", "coco", "karpathy"] | None = None
    columns: Annotated[list[str], Field(min_length=2)] | None = None
    split: Splits | None = None
    valid_split: Splits | None = None
    held_out: Whole | None = None
    built_in: Literal["shapes"] | None = None
    pictures: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    empty: Literal["error", "skip"] = "error"
    missing: Literal["error", "skip"] = "error"
    damaged: Literal["error", "skip"] = "error"
    image_size: Annotated[int, Field(ge=8, le=MAX_SIZE)] | None = None
    crop_margin: Annotated[int, Field(ge=0, le=MAX_SIZE)] = 0
    flip: bool = False
    workers: Annotated[int, Field(ge=0, le=64)] = 2
    lowercase: bool = True
    tokenizer: Literal["word", "unigram", "bpe", "character"] = "word"
    vocab_size: Annotated[int, Field(ge=5, le=1_000_000)] | None = None
    max_length: Annotated[int, Field(ge=1, le=100_000)] = 60

    @model_validator(mode="after")
    def _consistent(self) -> ImageData:
        if bool(self.train_file) == bool(self.built_in):
            problem = "train_file and built_in are both set" if self.built_in else "no training data is set"
            raise Clash(problem, "train_file (--train-file FILE) or built_in (--built-in shapes)")
        if self.built_in:
            named = ("valid_file", "images", "valid_images", "format", "split", "valid_split", "held_out")
            if wrong := [name for name in named if getattr(self, name)]:
                raise Clash(f"built_in cannot be combined with {wrong[0]}", "only one of them")
            if self.crop_margin or self.flip:
                problem = "pictures of shapes cannot be cropped or flipped: captions name places such as left"
                raise Clash(problem, "flip = false and crop_margin = 0")
            if self.image_size not in (None, PIXELS):
                raise Clash(f"image_size is {self.image_size}", f"{PIXELS}, the size of pictures of shapes")
        elif self.pictures is not None:
            raise Clash("pictures is set without built_in", 'built_in = "shapes"')
        if self.held_out is not None and (self.valid_file or self.valid_split):
            raise Clash("held_out cannot be combined with valid_file or valid_split", "only one of them")
        for name in ("images", "valid_images"):
            if len(getattr(self, name) or ()) > 1:
                raise Clash(f"{name} names several folders", "one folder")
        return self

    @property
    def size(self) -> int:
        """Width and height in pixels of the images that the model reads: image_size or its default."""
        return self.image_size or (PIXELS if self.built_in else 128)

    @property
    def stored_size(self) -> int:
        """Width and height in pixels of the decoded images, before they are cropped: size + crop_margin."""
        return self.size + self.crop_margin

    @property
    def augmented(self) -> bool:
        """Whether training images are cropped or flipped at random."""
        return bool(self.crop_margin) or self.flip


class CaptioningModel(ModelSettings):
    """The settings [model] of a captioning run: `name`, which is "captioner", and options of Captioner()."""

    name: str = "captioner"


Metric = Literal["loss", "perplexity", "cider", "bleu", "bleu1", "bleu2", "bleu3", "bleu4", "exact"]


class CaptioningTraining(Training):
    """The settings [training] of a captioning run. For the settings that all tasks have, see Training.

    best: the metric that selects the best checkpoint.
    label_smoothing: weight of the uniform distribution in the target distribution of the loss.
    doubly_stochastic: lambda, the weight of the doubly stochastic penalty (Xu et al. 2015, eq. 14). With it,
        the attention weights of each image location sum to about 1 over the words of a caption. Only for soft
        attention; 0 disables the penalty.
    word_noise: probability of replacing a word that the decoder reads in training by a random word, see
        data.batch.replace_words().
    """

    best: Metric = "cider"
    label_smoothing: Part = 0.0
    doubly_stochastic: Weight = 0.0
    word_noise: Part = 0.0


class CaptioningEvaluation(Section):
    """The settings [evaluation] of a captioning run: how the model is evaluated during training.

    images: maximum number of validation images to caption in one evaluation.
    beam_size: beam size of the search for the captions. 1 is greedy search.
    samples: number of captions to print, each with a reference caption.
    """

    images: Whole = 500
    beam_size: Annotated[int, Field(ge=1, le=5000)] = 1
    samples: Annotated[int, Field(ge=0, le=1000)] = 3


class CaptioningSettings(RunSettings):
    """All settings of a captioning run, as in config.toml.

    >>> settings = CaptioningSettings(data=ImageData(built_in="shapes"))
    >>> settings.model.name, settings.training.best, settings.data.size
    ('captioner', 'cider', 64)
    """

    fixed = ("task", "model", *TOKENS, "data.image_size")
    for_outputs = ("task", "model", "data.lowercase", "data.image_size", "data.crop_margin")
    paths = ("train_file", "valid_file", "images", "valid_images")
    no_data_hint = "--train-file captions.tsv --images FOLDER, or --built-in shapes"
    next_command = "regard caption {run} image.jpg --draw"

    task: Literal["captioning"] = "captioning"
    data: ImageData
    model: CaptioningModel = Field(default_factory=CaptioningModel)
    training: CaptioningTraining = Field(default_factory=CaptioningTraining)
    evaluation: CaptioningEvaluation = Field(default_factory=CaptioningEvaluation)

    @classmethod
    def data_options(cls, options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        data = train_files(options)
        if options.get("columns") is not None:
            data["columns"] = caption_columns(options["columns"])
        return (*FILE_FORMATS, *(f"valid_{each}" for each in FILE_FORMATS), "columns"), data

    def describe_quality(self, scores: Mapping[str, float], corpus: Any = None) -> str:
        return "" if corpus is None else "".join(corpus.split.few_images)

    @classmethod
    def without_folders(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings without paths, and without the file of pretrained weights of the image encoder.

        Checkpoints contain these weights. Without the file, an encoder is frozen only if `frozen` is set.
        """
        whole = super().without_folders(settings)
        model = dict(whole.get("model") or {})
        options = dict(model.get("encoder_options") or {})
        if options.pop("weights", None) is not None:
            if options.get("frozen") is None:
                options["frozen"] = True
            whole["model"] = {**model, "encoder_options": options}
        return whole
