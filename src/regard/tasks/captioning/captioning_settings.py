"""The settings of a captioning run: data, model, training and evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from regard.data.images.image_file import MAX_SIZE
from regard.data.shapes.scenes import PIXELS
from regard.runs.run_settings import ModelSettings, RunSettings
from regard.training.settings import Clash, Part, Section, Training, Weight, Whole

__all__ = ["CaptioningSettings", "CaptioningTraining", "ImageData", "SHAPES"]

SHAPES = "shapes"
"""The built-in corpus of pictures."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Splits = Annotated[list[str], BeforeValidator(_listed)]


class ImageData(Section):
    """The images and caption files, and how they are prepared.

    train_file, valid_file: caption files: TSV, JSON lines, or JSON in the layout of COCO or Karpathy.
    images: the folder of images; by default, the folder of the caption file.
    valid_images: the folder of the images of valid_file, if it is another one.
    format: tsv, jsonl, coco or karpathy; by default, it follows from the file.
    split, valid_split: the splits to train and to validate on, if the caption file has splits; by default,
        train and val, valid or dev.
    held_out: number of training images to hold out if there is no validation set.
    built_in: "shapes", a generated corpus, instead of files.
    pictures: number of training pictures of the built-in corpus (default: 10,000).
    empty, missing, damaged: what to do with a caption without words, an image file that does not exist, and
        an image file that cannot be decoded: "error", or "skip" to leave it out.
    image_size: width and height in pixels of the images that the model reads.
    crop_margin: number of pixels by which decoded images are wider and higher than image_size; in training, a
        random crop is read.
    flip: mirror half of the images in training; do not use it if captions contain "left" or "right".
    workers: number of threads that prepare batches.
    lowercase: convert captions to lower case.
    tokenizer: word, unigram, bpe or character.
    vocab_size: vocabulary size.
    max_length: maximum number of tokens of a caption; longer ones are truncated.
    """

    train_file: list[str] | None = None
    valid_file: list[str] | None = None
    images: list[str] | None = None
    valid_images: list[str] | None = None
    format: Literal["tsv", "jsonl", "coco", "karpathy"] | None = None
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
            problem = "train_file and built_in are both set" if self.built_in else "no data are given"
            raise Clash(problem, "train_file (--train-file FILE) or built_in (--built-in shapes)")
        if self.built_in:
            named = ("valid_file", "images", "valid_images", "format", "split", "valid_split", "held_out")
            if wrong := [name for name in named if getattr(self, name)]:
                raise Clash(f"built_in is set, and {wrong[0]} too", "only one of them")
            if self.crop_margin or self.flip:
                problem = "pictures of shapes cannot be cropped or flipped: captions contain left and right"
                raise Clash(problem, "flip = false and crop_margin = 0")
            if self.image_size not in (None, PIXELS):
                raise Clash(f"image_size is {self.image_size}", f"{PIXELS}, the size of these pictures")
        elif self.pictures is not None:
            raise Clash("pictures is set without built_in", 'built_in = "shapes"')
        if self.held_out is not None and (self.valid_file or self.valid_split):
            raise Clash("held_out and a validation set are both set", "one of them")
        for name in ("images", "valid_images"):
            if len(getattr(self, name) or ()) > 1:
                raise Clash(f"{name} names several folders", "one folder")
        return self

    @property
    def size(self) -> int:
        """Width and height of the images that the model reads."""
        return self.image_size or (PIXELS if self.built_in else 128)

    @property
    def stored_size(self) -> int:
        """Width and height of the decoded images, before they are cropped."""
        return self.size + self.crop_margin

    @property
    def augmented(self) -> bool:
        """Whether training images are cropped at random or flipped."""
        return bool(self.crop_margin) or self.flip


class CaptioningModel(ModelSettings):
    """The name of the model, "captioner", and the options of models.captioner.Captioner."""

    name: str = "captioner"


Metric = Literal["loss", "perplexity", "cider", "bleu", "bleu1", "bleu2", "bleu3", "bleu4", "exact"]


class CaptioningTraining(Training):
    """Training settings that only captioning has, besides the training settings of all tasks.

    doubly_stochastic: lambda, the weight of the doubly stochastic penalty (Xu et al. 2015, eq. 14), which is
    for soft attention; 0 disables it.
    word_noise: probability that a word that the decoder reads in training is replaced by a random word; see
    data.word_noise.replace_words().
    """

    best: Metric = "cider"
    label_smoothing: Part = 0.0
    doubly_stochastic: Weight = 0.0
    word_noise: Part = 0.0


class CaptioningEvaluation(Section):
    """How a captioner is evaluated during training.

    images: number of validation images that are captioned.
    beam_size: 1 is greedy search.
    samples: number of captions shown.
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

    task: Literal["captioning"] = "captioning"
    data: ImageData
    model: CaptioningModel = Field(default_factory=CaptioningModel)
    training: CaptioningTraining = Field(default_factory=CaptioningTraining)
    evaluation: CaptioningEvaluation = Field(default_factory=CaptioningEvaluation)
