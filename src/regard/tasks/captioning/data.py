"""The data of a captioning run: images and captions, read, checked, split and encoded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.data.images import Augmentation, CaptionedImages, centre_crop, read_captions
from regard.data.images.image_file import Pixels, decode_files, memory_limit
from regard.data.line_io import advancing
from regard.data.shapes import SPLITS, Scene, render, shapes
from regard.errors import DataError, UnknownName, message, printable, shown
from regard.image_encoders import ImageEncoder
from regard.tasks.captioning.settings import ImageData
from regard.tasks.corpus import Corpus
from regard.tasks.split import Split

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
