"""The captioning task: data, batches of images and captions, loss, and evaluation with CIDEr-D and BLEU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from regard.data.batch import ImageBatch, replace_words
from regard.data.batching import CaptionBatches, encode_captions
from regard.data.images import Augmentation, CaptionedImages, centre_crop, read_captions
from regard.data.images.caption_files import SUFFIXES, detected_ending
from regard.data.images.image_file import Pixels, decode_files, memory_limit
from regard.data.line_io import advancing
from regard.data.shapes import SPLITS, Scene, render, shapes
from regard.decoding import Beam, Greedy, Search
from regard.decoding.input_checks import check_load_keywords
from regard.decoding.search_options import search_of
from regard.errors import ArgumentError, DataError, Setting, UnknownName, message, printable, shown
from regard.evaluation.attribution import METHODS
from regard.evaluation.bleu import Score
from regard.evaluation.caption_metrics import Pointing, caption_scores, exact_captions, pointing
from regard.image_encoders import ImageEncoder
from regard.models.captioner import NO_ATTENTION, Captioner, doubly_stochastic_penalty
from regard.options.attention_options import check_flags, model_arguments
from regard.roles import CROSS
from regard.runs.run_commands import (
    Changeable,
    ChosenRun,
    RunReport,
    RunView,
    ViewOptions,
    report_changed_data,
    score_table,
)
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import StoredRun, smallest_model
from regard.runs.stored_runs import LoadedRun, with_weights
from regard.tasks.batched_task import BatchedTask, EpochRules, unless_stopped
from regard.tasks.captioning.image_captioner import Caption, ImageCaptioner, set_reading
from regard.tasks.captioning.settings import CaptioningSettings, ImageData, caption_columns
from regard.tasks.corpus import TOKENIZER, Corpus, Split, evenly, text_tokenizer
from regard.tasks.file_options import (
    COLUMNS,
    FAITHFULNESS,
    JSONL,
    PAGE,
    SPLIT,
    TEST_FILE,
    TSV,
    evaluated_files,
)
from regard.tasks.picture_outputs import check_page, write_results
from regard.training.command_options import CommandOption
from regard.training.estimators import (
    Reinforce,
    RowLosses,
    embedding_features,
    sampled_loss,
)
from regard.training.losses import cross_entropy, sequence_losses
from regard.training.settings import build, merged
from regard.training.task import Evaluation, Loss, Stopped
from regard.viewing import Picture
from regard.viewing.picture import noted
from regard.viewing.pictures.picture_files import stacked

PICTURES, VALID_PICTURES, VALID_PART = 10_000, 1000, 10
"""Sizes of the built-in corpus. PICTURES is the default number of training pictures. There is one validation
picture for VALID_PART training pictures, but at most VALID_PICTURES."""

HELD_OUT, HELD_OUT_PART = 1000, 20
"""How many training images are held out if there is no validation set: HELD_OUT, but at most 1 /
HELD_OUT_PART of the images. The setting data.held_out overrides this number."""

VALID_SPLITS = ("val", "valid", "validation", "dev")
"""Possible names of the validation split of a caption file. If a file has several of these splits, the first
name in this list is used."""

FEW_IMAGES = 1000
"""With fewer training images, log messages before and after training say what to expect."""

LISTED = 3
"""Maximum number of image names in a log message about images that were left out."""


@dataclass(frozen=True, eq=False)
class CaptionData:
    """Images with their captions, for training, validation or a test.

    name: where the images come from, for example "captions.tsv".
    names: the file name of each image.
    captions: the captions of each image, one or more.
    pixels: the decoded images.
    scenes: the objects in each picture of the built-in corpus. None for other images.
    places: for error messages: the caption file and line of each image.
    remarks: log messages about images and captions that were left out.
    """

    name: str
    names: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    pixels: Pixels
    scenes: tuple[Scene, ...] | None = None
    places: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def select(self, rows: Sequence[int]) -> CaptionData:
        """Return a copy with only some of the images. rows: the indices of these images, from 0."""
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            captions=tuple(self.captions[row] for row in rows),
            pixels=self.pixels.select(rows),
            scenes=None if self.scenes is None else tuple(self.scenes[row] for row in rows),
            places=tuple(self.places[row] for row in rows) if self.places else (),
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the image names and captions, and of the pixels if the images are in memory."""
        digest = hashlib.blake2b(self.pixels.fingerprint.encode(), digest_size=16)
        for name, captions in zip(self.names, self.captions, strict=True):
            for text in (name, *captions):
                encoded = text.encode("utf-8", "surrogatepass")
                digest.update(b"%d %d " % (len(captions), len(encoded)) + encoded)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class CaptionSplit(Split[CaptionData]):
    """The images of a captioning run with their captions, divided into a training and a validation set."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the log: the numbers of images and captions, and what was left out."""
        held = ", held out from the training images" if self.is_held_out else ""
        captions = sum(map(len, self.train.captions))
        text = f"{len(self.train):,} training images with {captions:,} captions, "
        remarks = dict.fromkeys((*self.train.remarks, *self.valid.remarks))
        return (*remarks, f"{text}{len(self.valid):,} validation images{held}", *self.few_images)

    @property
    def few_images(self) -> tuple[str, ...]:
        """A sentence about few training images. Empty if there are enough, and for the built-in corpus."""
        if len(self.train) >= FEW_IMAGES or self.train.scenes is not None:
            return ()
        return (
            f"few images: {len(self.train):,} to train on. Captions of other images will mostly be wrong; "
            "Flickr8k has 6,000 training images with 5 captions each. More images with captions help, and "
            "longer training does not",
        )


def read_caption_split(data: ImageData) -> CaptionSplit:
    """Read the training and validation captions, and decode their images.

    data: the data settings, with the caption files and image folders, or with the built-in corpus.

    Raises DataError, with the file and line, in three cases: an image is missing, a caption has no words, or
    an image cannot be decoded. With data.missing, data.empty or data.damaged = "skip", such an image or
    caption is left out instead.
    """
    if data.built_in:
        count = data.pictures or PICTURES
        valid_count = min(VALID_PICTURES, max(count // VALID_PART, 1))
        return CaptionSplit(read_shapes("train", count), read_shapes("valid", valid_count))
    assert data.train_file
    split, valid_split = data.split, data.valid_split
    if not (split or valid_split or data.valid_file or data.held_out):
        known = set(_read(data, data.train_file, data.images, None).splits)
        named = next((name for name in VALID_SPLITS if name in known), None)
        if "train" in known and named is not None:
            split, valid_split = ["train"], [named]
    train = read_images(data, data.train_file, data.images, split)
    if data.valid_file or valid_split:
        folder = data.valid_images or data.images
        valid = read_images(data, data.valid_file or data.train_file, folder, valid_split)
        return CaptionSplit(train, valid)
    count = data.held_out or max(min(HELD_OUT, len(train) // HELD_OUT_PART), 1)
    if count >= len(train):
        problem = f"{count:,} images cannot be held out for validation: there are only {len(train):,}"
        raise DataError(message(train.name, problem, hint="set a validation file: --valid-file FILE"))
    # Held-out images are a random sample, because caption files are often sorted by topic.
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
    return CaptionSplit(
        train.select(sorted(order[count:])), train.select(sorted(order[:count])), is_held_out=True
    )


def _read(
    data: ImageData, files: Sequence[str], folder: Sequence[str] | None, split: Sequence[str] | None
) -> CaptionedImages:
    return read_captions(
        list(files),
        folder[0] if folder else None,
        data.format,
        split=list(split) if split else None,
        empty=data.empty,
        missing=data.missing,
        encoding=data.encoding,
        columns=data.columns,
    )


def read_images(
    data: ImageData, files: Sequence[str], folder: Sequence[str] | None, split: Sequence[str] | None
) -> CaptionData:
    """Read caption files, and decode the images that they name.

    data: the data settings, with the image size, and with what to do if an image is missing or damaged.
    files: the caption files.
    folder: a list with the folder of the images, or None for the folder of the caption file.
    split: names of the splits to read, for example ["val"]; None for all.
    """
    images = _read(data, files, folder, split)
    paths = [each.path for each in images]
    size = data.stored_size
    pixels, kept, errors = decode_files(paths, size, damaged=data.damaged, places=images.places)
    remarks = []
    for problem, names in (("have no caption", images.uncaptioned), ("do not exist", images.missing)):
        if names:
            listed = ", ".join(printable(name)[:80] for name in names[:LISTED])
            listed += ", ..." if len(names) > LISTED else ""
            remarks.append(
                f"{shown(images.folder)}: {len(names):,} images {problem} and are left out: {listed}"
            )
    if images.empty:
        remarks.append(f"{images.source}: {images.empty:,} captions without words are left out")
    if errors:
        first = str(errors[0]).splitlines()[0]
        remarks.append(f"{len(errors):,} images cannot be decoded and are left out; first {printable(first)}")
    if not kept:
        raise DataError(message(images.source, "no image can be decoded", expected="at least one image"))
    if not pixels.in_memory:
        needed = 3 * size * size * len(paths) / 2**30
        limit = memory_limit() / 2**30
        text = f"the images need {needed:.1f} GiB, more than {limit:.1f} GiB: they are decoded in each epoch"
        remarks.append(text)
    chosen = images.select(kept)
    return CaptionData(
        images.source, chosen.names, chosen.captions, pixels, None, chosen.places, tuple(remarks)
    )


def read_shapes(split: str, count: int, seed: int = 0) -> CaptionData:
    """Generate pictures with captions of the built-in corpus `shapes`.

    split: name of the split, for example "train"; see SPLITS.
    count: number of pictures.
    seed: random seed.
    """
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    corpus = shapes(split, count, seed)
    examples = list(corpus)
    scenes = tuple(each.scene for each in examples)
    pixels = torch.from_numpy(render(scenes))
    names = tuple(f"shapes-{split}-{number}" for number in range(count))
    captions = tuple(each.captions for each in examples)
    return CaptionData(f"shapes, split {split}", names, captions, Pixels(pixels.shape[-1], pixels), scenes)


class CaptionCorpus(Corpus):
    """The training and validation data of a captioning run, with captions as text and as token ids."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A message for the log with the number of truncated training captions. Empty if there are none."""
        count = self.train.truncated
        return (f"{count:,} training captions are truncated (data.max_length)",) if count else ()


CHUNK = 64
"""Number of images that are encoded in one batch. It does not depend on settings, so that a resumed run
computes exactly the same feature vectors."""


DEVICE_PART = 8
"""Tensors are kept on a GPU if they need at most 1 / DEVICE_PART of its free memory."""


def fits_on_device(device: torch.device | str, needed: int) -> bool:
    """Return whether `device` is a GPU with enough free memory to keep `needed` bytes there all the time."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return False
    return needed * DEVICE_PART <= torch.cuda.mem_get_info(device)[0]


def features_fit(encoder: ImageEncoder, images: int, size: int) -> bool:
    """Return whether the feature vectors of all images need at most memory_limit() bytes.

    encoder: the image encoder.
    images: number of images.
    size: width and height of the images in pixels.
    """
    height, width = encoder.map_size(size, size)
    return 4 * images * height * width * encoder.features <= memory_limit()


class FeatureCache:
    """The feature vectors of images, in float32. All of them are computed at the first access.

    If the device of the encoder is a GPU with enough free memory, the feature vectors stay on this device.
    Otherwise, they are moved to the CPU.

    encoder: a frozen image encoder.
    pixels: the images.
    size: each image is cropped at the centre to this width and height in pixels, then encoded.
    """

    def __init__(self, encoder: ImageEncoder, pixels: Pixels, size: int):
        self.encoder, self.pixels, self.size = encoder, pixels, size
        self._features: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the feature vectors (B, L, F) of the images with these indices. rows: int64, (B,)."""
        if self._features is None:
            self._features = self._computed()
        return self._features[rows.to(self._features.device)]

    @torch.no_grad()
    def _computed(self) -> Tensor:
        device, parts = next(self.encoder.parameters()).device, list[Tensor]()
        with advancing("computing features", len(self.pixels)) as report:
            for start in range(0, len(self.pixels), CHUNK):
                rows = torch.arange(start, min(start + CHUNK, len(self.pixels)))
                images = centre_crop(self.pixels[rows], self.size).to(device)
                with torch.autocast(device.type, enabled=False):
                    parts.append(self.encoder(images).float().cpu())
                report(start + len(rows))
        features = torch.cat(parts)
        return features.to(device) if fits_on_device(device, features.nbytes) else features


class DeviceImages:
    """All images of a corpus on a GPU, so that each batch is selected there.

    The images are copied to the GPU when the first batch is selected.

    pixels: the images, in memory.
    size: width and height in pixels of the images that the model reads.
    device: the device.
    augmentation: random crops and flips, for training. If it is None, larger images are cropped at the
        centre.

    >>> images = DeviceImages(Pixels(4, torch.zeros(9, 3, 4, 4, dtype=torch.uint8)), 2, "cpu")
    >>> images[torch.tensor([3, 3])].shape
    torch.Size([2, 3, 2, 2])
    """

    def __init__(
        self, pixels: Pixels, size: int, device: torch.device | str, augmentation: Augmentation | None = None
    ):
        self.pixels, self.size, self.device, self.augmentation = pixels, size, device, augmentation
        self._images: Tensor | None = None

    def __getitem__(self, chosen: Tensor) -> Tensor:
        """Return images, uint8, (B, 3, size, size).

        chosen: (B,), the index of each image. With `augmentation`, (B, 4): the index of each image, and the
            three numbers of its random crop and flip, from Augmentation.draw().
        """
        if self._images is None:
            self._images = self.pixels.on_device(self.device)
        on_device = chosen.to(self._images.device)
        if self.augmentation is None:
            return centre_crop(self._images[on_device], self.size)
        return self.augmentation.apply(self._images[on_device[:, 0]], on_device[:, 1:])


MODELS = {"captioner": Captioner}
"""The classes of the models for captioning, by name (the setting model.name)."""

MOST_CAPTIONS = 200
"""Maximum number of captions for the option --faithfulness, and for the HTML page of --page."""

IMAGE = "image"

BATCH_SIZE, LEAST_BATCH, EPOCH_STEPS = 64, 8, 50
"""The default number of captions per optimizer step is BATCH_SIZE. For a small corpus, it is smaller, so that
an epoch has EPOCH_STEPS steps, but at least LEAST_BATCH."""

RATE, TUNING_RATE = 2e-3, 3e-4
"""Default learning rates. RATE: for a new model. TUNING_RATE: for a model that starts from the weights of
another run."""

CELLS = 8
"""By default, the feature map of the convolutional encoder has at most CELLS x CELLS cells. Each stage halves
the height and width of the feature map. The default is the smallest sufficient number of stages."""

AT_ONCE = 250
"""Number of validation images that are captioned between two checks for Ctrl-C."""


class CaptioningRun(LoadedRun, ImageCaptioner):
    """An ImageCaptioner loaded from a run folder, with the settings and the checkpoint of the run."""

    settings: CaptioningSettings


class _Read(NamedTuple):
    """The input of the model for a batch: the images, and the tokens (B, T) of the captions."""

    image: Tensor
    inputs: Tensor


class CaptioningTask(BatchedTask):
    """Train a captioner on images and captions, and evaluate it on the validation images.

    If an image has several captions, each caption is a separate training example. If the image encoder is
    frozen (not trained) and images are not augmented, the feature vectors of all images are computed once,
    before the first step, if they fit in memory. On a GPU, the images or their feature vectors stay in GPU
    memory, if they fit.
    """

    model: Captioner
    settings_type = CaptioningSettings
    captures_samples = True
    counted = "target tokens"
    metrics = MappingProxyType(
        {
            "loss": "lower",
            "perplexity": "lower",
            "cider": "higher",
            "bleu1": "higher",
            "bleu2": "higher",
            "bleu3": "higher",
            "bleu4": "higher",
            "bleu": "higher",
            "exact": "higher",
            "pointing": "higher",
        }
    )
    best = "cider"
    files = (TOKENIZER,)
    smallest_sizes = MappingProxyType({"tokens": 8})
    evaluate_options = (
        TEST_FILE,
        TSV,
        JSONL,
        COLUMNS,
        CommandOption(
            "--images",
            "Captioning: folder of the images of --test-file, --tsv or --jsonl.",
            "FOLDER",
            shown_default="from the run",
        ),
        SPLIT,
        CommandOption(
            "--pictures",
            "Captioning: number of pictures of the built-in corpus to evaluate on, with --split.",
            "INT",
            int,
            1000,
            least=1,
            most=1_000_000,
        ),
        PAGE,
        FAITHFULNESS,
        CommandOption(
            "--read",
            "Captioning with hard attention: attend to the location with the highest score (argmax), to a "
            "random location (sample), or to all locations, weighted (expectation).",
            "NAME",
            shown_default="argmax",
        ),
        "beam_size",
        "length_penalty",
        "greedy",
        "max_length",
    )
    view_options = intervene_options = (
        CommandOption("--image", "Captioning: the image file to caption.", "FILE"),
        "beam_size",
        "length_penalty",
        "greedy",
        "max_length",
    )

    def _set_up(self, device: str) -> None:
        options, data = self._start(device, self.model.target, fine=False), self.settings.data
        train, valid = self.corpus.split.train, self.corpus.split.valid
        encoder, count = self.model.image_encoder, len(train) + len(valid)
        fits = features_fit(encoder, count, data.size)
        features, augmentation = encoder.frozen and fits, None
        if data.augmented:
            augmentation = Augmentation(size=data.size, flip=data.flip, seed=self.settings.seed)

        def stored(pixels: Pixels, augmentation: Augmentation | None) -> FeatureCache | DeviceImages | None:
            """Return the feature vectors, or the images on a GPU, if batches are selected from them."""
            if features and augmentation is None:
                return FeatureCache(encoder, pixels, data.size)
            if pixels.in_memory and fits_on_device(device, 3 * pixels.size**2 * len(pixels)):
                return DeviceImages(pixels, data.size, device, augmentation)
            return None

        self._train_store, self._valid_store = stored(train.pixels, augmentation), stored(valid.pixels, None)
        self._train = CaptionBatches(
            self.corpus.train,
            train.pixels,
            size=data.size,
            augmentation=augmentation,
            images=self._train_store is None,
            workers=data.workers,
            **options,
        )
        self._valid = CaptionBatches(
            self.corpus.valid,
            valid.pixels,
            size=data.size,
            images=self._valid_store is None,
            tokens=options["tokens"],
            sentences=options["sentences"],
            shuffle=False,
        )

    @classmethod
    def read_data(
        cls, settings: CaptioningSettings, fingerprints: Mapping[str, str] | None = None
    ) -> CaptionSplit:
        return read_caption_split(settings.data)

    @classmethod
    def encode_data(
        cls,
        data: CaptionSplit,
        settings: CaptioningSettings,
        folder: Path,
        cache: Path | None = None,
        lines: int | None = None,
    ) -> CaptionCorpus:
        texts = [caption for several in data.train.captions for caption in several]
        tokenizer, longest = text_tokenizer(folder, settings.data, texts, lines), settings.data.max_length
        train, valid = (
            encode_captions(part.captions, tokenizer, longest=longest) for part in (data.train, data.valid)
        )
        return CaptionCorpus(data, tokenizer, train, valid)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: CaptioningSettings) -> tuple[int, ...]:
        return (text_tokenizer(folder, settings.data).size,)

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> Captioner:
        if model.name not in MODELS:
            raise UnknownName("model", model.name, MODELS)
        known = model_arguments(MODELS[model.name], 1)
        check_flags(model.name, model.options, known)
        for option in model.options:
            if option not in known:
                raise UnknownName(f"option of {model.name}", option, known)
        return MODELS[model.name](*sizes, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> CaptioningRun:
        check_load_keywords(ImageCaptioner, options)
        settings = run.settings
        tokenizer = text_tokenizer(run.folder, settings.data)
        model = with_weights(cls.build_model(settings.model, (tokenizer.size,)), run, device)
        data = settings.data
        defaults = {
            "image_size": data.size,
            "crop_margin": data.crop_margin,
            "max_length": data.max_length + 1,
        }
        return CaptioningRun(model, tokenizer, **{**defaults, **options}).from_run(run)

    @classmethod
    def evaluate_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> RunReport:
        page: Path | None = options["page"]
        check_page(page)
        captioner: CaptioningRun = run.load(cls, search=search_of(options))
        set_reading(captioner.model, options["read"], "--read")
        attends = captioner.model.select is not None
        if not attends and (options["faithfulness"] or page is not None):
            option = "--faithfulness" if options["faithfulness"] else "--page"
            problem = 'this captioner has no attention (its setting model.select is "none")'
            raise ArgumentError(message(option, problem))
        data = _data(captioner.settings.data, run, options)
        needs_attention = attends and (data.scenes is not None or options["faithfulness"] or page is not None)
        with advancing("captioning", len(data)) as reached:
            look = CROSS if needs_attention else None
            captions = caption_images(captioner, data, len(data), look, reached)
        with_words = [each for each in captions[:MOST_CAPTIONS] if each.words]
        if page is not None:
            write_results(page, with_words, len(with_words), "images", "Captions", data.name)
        scores, pointed = score_captions(captions, data)
        (height, width), digits = captioner.map_size, {"cider": 3, "exact": 3}
        values: dict[str, Any] = {
            "images": len(captions),
            "map": [height, width],
            **{name: score.value for name, score in scores.items()},
            "signatures": {name: each.signature for name, each in scores.items() if name != "exact"},
        }
        rows = [("images", f"{len(captions):,}", "")]
        for name, score in scores.items():
            rows.append((score.name, f"{score.value:.{digits.get(name, 2)}f}", score.signature))
        if pointed is not None:
            accuracy, chance, words = pointed
            values |= {"pointing": accuracy, "pointing_chance": chance, "pointing_words": words}
            about = f"{words:,} content words; chance {chance:.3f}; map of {height} x {width} cells"
            rows.append(("pointing", f"{accuracy:.3f}", about))
        report = RunReport.of(captioner, data.name, values, score_table(rows))
        return (
            report.with_faithfulness(captioner.erase_regions(with_words))
            if options["faithfulness"]
            else report
        )

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        if not options["image"]:
            raise ArgumentError(message("regard view", "no image is given", hint="--image FILE"))
        captioner: CaptioningRun = run.load(cls, search=search_of(options))
        caption: Caption = captioner.caption(options["image"])
        if not caption.words:
            raise ArgumentError(message(shown(options["image"]), "the model writes a caption without words"))
        attends = captioner.model.select is not None

        def attribution(methods: Sequence[str]) -> Picture:
            """Draw the attention of each word, and below it the maps of other methods."""
            attention = [replace(caption.image_attention(), title="attention")] if attends else []
            drawn = stacked(
                [each.picture() for each in (*attention, *captioner.attribute(caption, methods).values())]
            )
            return noted(
                drawn, *([] if attends else ["the captioner has no attention: model.select is none"])
            )

        own: dict[str, Callable[[], Picture]] = {
            "erasure": lambda: attribution(["erasure"]),
            "gradient": lambda: attribution(list(METHODS)),
        }
        if not attends:
            erased = captioner.attribute(caption, ["erasure"])["erasure"]
            return RunView(caption.seen(), default_view="erasure", own=own, page=erased.save)
        erasure = captioner.erase_regions([caption])
        note = erasure.summary()
        attention = caption.image_attention().noted(note)
        own |= {
            IMAGE: attention.picture,
            "player": attention.animation,
        }  # the player is an animation by words
        return RunView(caption.seen().noted(note), default_view=IMAGE, own=own, page=attention.save)

    @classmethod
    def change_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> Changeable:
        if not options["image"]:
            raise ArgumentError(message("regard intervene", "no image is given", hint="--image FILE"))
        captioner: CaptioningRun = run.load(cls, search=search_of(options))
        caption: Caption = captioner.caption(options["image"])
        if not caption.words or caption.pixels is None:
            raise ArgumentError(message(shown(options["image"]), "the model writes a caption without words"))
        numbers = captioner.tokenizer.words(caption.output_tokens)
        rows = [[at for at, each in enumerate(numbers) if each == word] for word in range(len(caption.words))]
        pixels = torch.from_numpy(caption.pixels).permute(2, 0, 1)[None]
        height, width = captioner.map_size
        return Changeable(
            lambda: captioner.caption(options["image"]).text,
            caption.words,
            lambda: captioner.word_scores(pixels, caption)[0].tolist(),
            rows,
            [[cell] for cell in range(height * width)],
            ("word", "cell"),
            CROSS,
        )

    @classmethod
    def defaults(
        cls,
        settings: Mapping[str, Any],
        data: CaptionSplit | None = None,
        other: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        if other is None:
            size = build(ImageData, settings.get("data", {}), "the settings").size
            settings = merged({"model": encoder_defaults(settings.get("model", {}), size)}, settings)
        if data is None:
            return dict(settings), ()
        checked = build(CaptioningSettings, settings, "the settings")
        size, encoder = checked.data.size, smallest_model(cls, checked).image_encoder
        height, width = encoder.map_size(size, size)
        notes = [f"feature map of {height} x {width} cells"]
        if encoder.frozen and not features_fit(encoder, len(data.train) + len(data.valid), size):
            notes.append("the feature vectors of all images do not fit in memory: computed in every step")
        return dict(settings), tuple(notes)

    @classmethod
    def check(cls, settings: CaptioningSettings, model: Captioner | None = None) -> None:
        for name in ("images", "valid_images"):
            for folder in getattr(settings.data, name) or ():
                if not Path(folder).is_dir():
                    problem = f"there is no folder {shown(folder)}"
                    raise ArgumentError(message(f"data.{name}", problem, hint="--images FOLDER"))
        select = settings.model.options.get("select", "softmax")
        if settings.training.doubly_stochastic and select in ("hard", NO_ATTENTION):
            problem = f"the doubly stochastic penalty has no effect if model.select is {select!r}"
            hint = (
                *("use ", Setting("training", "doubly_stochastic", 0)),
                *(" or ", Setting("model", "select", "softmax")),
            )
            raise ArgumentError(message("training.doubly_stochastic", problem, hint=hint))
        if model is None:
            return
        size = settings.data.size
        height, width = model.image_encoder.map_size(size, size)
        if height * width < (1 if model.select is None else 2):
            problem = f"the feature map of an image of {size} x {size} pixels has {height} x {width} cells"
            hint = (
                *("use larger images, ", Setting("data", "image_size"), ", or fewer stages, "),
                Setting("model", "encoder_options.stages"),
            )
            raise ArgumentError(
                message("the settings", problem, expected="at least 2 cells to attend to", hint=hint)
            )

    @classmethod
    def usual(
        cls, settings: Mapping[str, Any], corpus: CaptionCorpus
    ) -> tuple[EpochRules, dict[str, Any], int]:
        rate = RATE if settings.get("init_from") is None else TUNING_RATE
        rules = EpochRules("captions", batch_size(len(corpus.train)))
        tokens = int(corpus.train.captions.offsets[-1]) + len(corpus.train)  # and one EOS per caption
        return rules, {"training": {"learning_rate": rate}}, tokens

    def count(self, batch: ImageBatch) -> int:
        return int(batch.target_lengths.sum())

    def prepare(self, batch: ImageBatch, device: Any) -> ImageBatch:
        if self._train_store is not None:
            batch = replace(batch, source=self._train_store[batch.source])
        if self._shapes is not None:
            rows, length = self._shapes.size(len(batch), batch.target.shape[1] - 1)
            batch = batch.padded_to(rows, 0, length)
        return batch.to(device)

    def loss(self, batch: ImageBatch) -> Loss:
        training = self.settings.training
        if self._estimator is not None and self.model.training:
            return self._sampled_loss(batch, self._estimator)
        read = _Read(batch.image, self._inputs(batch))
        if not training.doubly_stochastic:
            total, plain = cross_entropy(self.model(read), batch.targets, training.label_smoothing)
            return Loss(total, {"loss": plain})
        logits_BTV, weights_BTL = self.model.logits_and_weights(read)
        total, plain = cross_entropy(logits_BTV, batch.targets, training.label_smoothing)
        penalty_B = doubly_stochastic_penalty(weights_BTL.float(), batch.target_lengths)
        # Rows without target tokens are padding, so their penalty is set to 0.
        penalty = torch.where(batch.target_lengths > 0, penalty_B, 0.0).sum()
        return Loss(
            total + training.doubly_stochastic * penalty, {"loss": plain, "penalty": penalty.detach()}
        )

    def _inputs(self, batch: ImageBatch) -> Tensor:
        """Return the tokens that the decoder reads, (B, T). In training, word_noise replaces some of them."""
        noise = self.settings.training.word_noise
        if not noise or not self.model.training:
            return batch.inputs
        return replace_words(batch.inputs, self.corpus.tokenizer.size, noise)

    def _sampled_loss(self, batch: ImageBatch, estimator: Reinforce) -> Loss:
        """Return the loss of hard attention, with a gradient estimated from K samples of the locations.

        batch: images with their captions.
        estimator: the estimator of the gradient, with K = estimator.samples.

        Each image is encoded once. The decoder reads each caption K times, each time with new random
        locations.
        """
        samples, smoothing = estimator.samples, self.settings.training.label_smoothing
        inputs_RT, targets_RT, lengths_R = (
            each.repeat_interleave(samples, 0)
            for each in (self._inputs(batch), batch.targets, batch.target_lengths)
        )

        def row_losses() -> RowLosses:
            encoded = self.model.encode(batch.image)
            state = self.model.start(encoded).repeat(samples)
            logits_RTV = self.model.step(state, inputs_RT, encoded)[1]
            total_R, plain_R = sequence_losses(logits_RTV, targets_RT, smoothing)
            return RowLosses(total_R, -plain_R)

        return sampled_loss(
            estimator,
            row_losses,
            len(batch),
            lengths={"target": lengths_R},
            features=embedding_features((self.model.target, targets_RT)),
            counted=lengths_R > 0,
        )

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        valid, device = self.corpus.split.valid, next(self.model.parameters()).device
        total, tokens = 0.0, 0
        for batch in unless_stopped(stopping, self._valid.epoch(0)):
            if self._valid_store is not None:
                batch = replace(batch, source=self._valid_store[batch.source])
            moved = batch.to(device)
            total += float(cross_entropy(self.model(moved), moved.targets)[1])
            tokens += self.count(batch)
        scores = {"loss": total / tokens, "perplexity": float(torch.tensor(total / tokens).exp())}
        captions = self._captions(stopping)
        scored, pointed = score_captions(captions, valid)
        scores |= {name: score.value for name, score in scored.items()}
        shown: list[RenderableType] = []
        if pointed is not None:
            scores["pointing"] = pointed.accuracy
            shown.append(Text(f"pointing accuracy of random cells, for comparison: {pointed.chance:.3f}"))
        for place in evenly(self.settings.evaluation.samples, len(captions)):
            text = f"image      {valid.names[place]}\ncaption    {captions[place].text}"
            shown.append(Text(printable(f"{text}\nreference  {valid.captions[place][0]}", kept="\n")))
        return Evaluation(scores, shown)

    def _captions(self, stopping: Callable[[], bool]) -> list[Caption]:
        """Caption the first validation images; raise Stopped as soon as stopping() returns true.

        Attention is recorded only for the built-in corpus, to measure the pointing accuracy.
        """

        def reached(_: int) -> None:
            if stopping():
                raise Stopped

        data, valid, beam = self.settings.data, self.corpus.split.valid, self.settings.evaluation.beam_size
        search: Search = Greedy() if beam == 1 else Beam(size=beam)
        longest = data.max_length + 1
        captioner = ImageCaptioner(
            self.model,
            self.corpus.tokenizer,
            image_size=data.size,
            max_length=longest,
            search=search,
        )
        look = CROSS if valid.scenes is not None and self.model.select is not None else None
        count = min(self.settings.evaluation.images, len(valid))
        return caption_images(captioner, valid, count, look, reached, self._valid_store)


def encoder_defaults(model: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return default model settings for an image size: the number of stages of the convolutional encoder.

    model: the model settings of the user. If the user has chosen another image encoder, the result is empty.
    size: width and height of the images in pixels.

    >>> encoder_defaults({}, 64), encoder_defaults({"image_encoder": "other"}, 64)
    ({'encoder_options': {'stages': 3}}, {})
    """
    if model.get("image_encoder", "convolutional") != "convolutional":
        return {}
    stages = 1
    while size > CELLS * 2**stages:
        stages += 1
    return {"encoder_options": {"stages": stages}}


def batch_size(captions: int) -> int:
    """Return the default number of captions of one optimizer step.

    captions: number of training captions.

    >>> [batch_size(captions) for captions in (20, 1000, 30_000)]
    [8, 20, 64]
    """
    return min(max(captions // EPOCH_STEPS, LEAST_BATCH), BATCH_SIZE)


def caption_images(
    captioner: ImageCaptioner,
    data: CaptionData,
    count: int,
    look: str | None,
    reached: Callable[[int], object],
    stored: object = None,
) -> list[Caption]:
    """Caption the first `count` images.

    look: the attention layers (sites) whose weights are recorded. None records nothing.
    reached: a function that is called with the number of captions so far, before each batch.
    stored: a FeatureCache, if the feature vectors of the images have been computed already.
    """
    captions = list[Caption]()
    for start in range(0, count, AT_ONCE):
        reached(len(captions))
        rows = torch.arange(start, min(start + AT_ONCE, count))
        features = stored[rows] if isinstance(stored, FeatureCache) else None
        pixels = centre_crop(data.pixels[rows], captioner.image_size)
        names = data.names[start : start + len(rows)]
        captions += captioner.caption_pixels(names, pixels, captioner.search, look, features)
    return captions


def score_captions(
    captions: Sequence[Caption], data: CaptionData
) -> tuple[dict[str, Score], Pointing | None]:
    """Score the captions of the first images of `data`: CIDEr-D and BLEU.

    For the built-in corpus, there are two more scores: the fraction of captions that describe their picture
    correctly, and, if attention was recorded, how often a word attends most to the object that it names.
    """
    texts, count = [each.text for each in captions], len(captions)
    scores, pointed = caption_scores(texts, data.captions[:count]), None
    if data.scenes is not None:
        scenes = data.scenes[:count]
        exact = exact_captions(texts, scenes)
        scores["exact"] = Score("exact", exact, "captions that are true of the picture")
        if any(each.weights is not None for each in captions):
            pointed = pointing(texts, [each.weights for each in captions], scenes)
    return scores, pointed


def _data(data: ImageData, run: ChosenRun, options: Mapping[str, Any]) -> CaptionData:
    """Read the images to evaluate on, with their captions.

    The images are selected by --test-file, --tsv, --jsonl or --split. Without these options, they are the
    validation images of the run.
    """
    (files, kind), split = evaluated_files(options, data.format), options["split"]
    # The format of --test-file is that of the training files if a name has no known ending, or if all names
    # end like those of the training files. JSON lines in a file named .json, for example, cannot be detected.
    both = files, data.train_file or ()
    endings, trained = ({detected_ending(Path(each)) for each in some} for some in both)
    if options["test_file"] and endings <= {*SUFFIXES, ".json"} and endings != trained:
        kind = None
    folder = [options["images"]] if options["images"] else None
    if folder and not files:
        raise ArgumentError(message("--images", "is used only with --test-file, --tsv or --jsonl"))
    if options["columns"] is not None and not files:
        raise ArgumentError(message("--columns", "is used only with --test-file or --tsv"))
    if data.built_in and not files:
        return read_shapes(split or "valid", options["pictures"])
    if not files and split is None:
        read = read_caption_split(data)
        report_changed_data(run.folder, read.fingerprints)
        return replace(read.valid, name=f"{read.valid.name}, validation images")
    chosen = files or data.train_file or ()
    columns = data.columns if options["columns"] is None else caption_columns(options["columns"])
    settings = data.model_copy(update={"format": kind, "columns": columns})
    named = None if split is None else [split]
    images = read_images(settings, chosen, folder or data.images, named)
    return images if split is None else replace(images, name=f"{images.name}, split {printable(split)}")
