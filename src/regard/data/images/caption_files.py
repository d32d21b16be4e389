"""Read caption files: TSV, JSON lines, and JSON in the layout of COCO or Karpathy.

    read_captions("captions.tsv", "images")                          lines: image TAB caption
    read_captions("train.jsonl", "images")                           {"image": "a.jpg", "captions": ["..."]}
    read_captions("dataset_flickr8k.json", "images", split="train")  Karpathy's splits
    read_captions("captions_train2017.json", "train2017")            COCO

Captions are held in memory. Images are opened only when they are needed (see read_image()). list_images()
finds image files by names, folders and patterns.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from regard.data.images.caption_formats import CaptionEntry, caption_entries
from regard.data.read_text import checked_path
from regard.data.tokenizers.normalize import clean
from regard.errors import (
    ArgumentError,
    DataError,
    RegardWarning,
    Setting,
    UnknownName,
    message,
    printable,
    shown,
)

__all__ = [
    "CaptionedImage",
    "CaptionedImages",
    "coco_image_id",
    "list_images",
    "read_captions",
    "warn_skipped",
]

PathLike = str | os.PathLike[str]

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""File name extensions of images. Only files with these extensions are listed in
CaptionedImages.uncaptioned."""

CHOICES = ("error", "skip")
"""Values of the arguments `empty` and `missing` of read_captions(). "error" raises DataError for a caption
without words or a missing image. "skip" drops this caption or image and counts it."""


MISSING = Setting("read_captions", "missing", "skip")


class CaptionedImage(NamedTuple):
    """One image with its captions.

    path: the path of the image file.
    captions: the captions of the image.
    """

    path: Path
    captions: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class CaptionedImages:
    """Images with one or more captions each; read_captions() returns them.

    folder: the folder of images.
    names: the name of each image file, relative to the folder.
    captions: the captions of each image.
    splits: the split of each image, such as "train"; None if the caption file has no splits.
    places: for each image, the caption file and the line or image number in it, for error messages.
    source: the names of the caption files as one text, for error messages: "a.tsv, b.tsv".
    uncaptioned: names of images without a caption, which were dropped: images that the caption file lists
        without captions, and image files in the folder that the caption file does not list.
    missing: names of images that were dropped because their files do not exist.
    empty: number of captions that were dropped because they have no words.
    """

    folder: Path
    names: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    splits: tuple[str | None, ...]
    places: tuple[str, ...]
    source: str
    uncaptioned: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    empty: int = 0

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"CaptionedImages({len(self)} images, {len(self.texts)} captions, {self.source})"

    def __getitem__(self, index: int) -> CaptionedImage:
        return CaptionedImage(self.folder / self.names[index], self.captions[index])

    def __iter__(self) -> Iterator[CaptionedImage]:
        return (self[index] for index in range(len(self)))

    @property
    def texts(self) -> tuple[str, ...]:
        """All captions of all images as one tuple, for example to train a tokenizer on them."""
        return tuple(caption for several in self.captions for caption in several)

    def select(self, rows: Sequence[int]) -> CaptionedImages:
        """Return a CaptionedImages with only some of the images.

        rows: the indices of these images, from 0.
        """
        chosen = [int(row) for row in rows]
        return replace(
            self,
            names=tuple(self.names[row] for row in chosen),
            captions=tuple(self.captions[row] for row in chosen),
            splits=tuple(self.splits[row] for row in chosen),
            places=tuple(self.places[row] for row in chosen),
        )

    @property
    def fingerprint(self) -> str:
        """A SHA-256 hash of the image names and captions, as hexadecimal text. Pixels are not hashed."""
        digest = hashlib.sha256()
        for name, captions in zip(self.names, self.captions, strict=True):
            for text in (name, *captions):
                encoded = text.encode("utf-8", "surrogatepass")
                digest.update(b"%d %d " % (len(captions), len(encoded)) + encoded)
        return digest.hexdigest()


def read_captions(
    paths: PathLike | Sequence[PathLike],
    folder: PathLike | None = None,
    format: str | None = None,
    *,
    split: str | Sequence[str] | None = None,
    empty: str = "error",
    missing: str = "error",
    encoding: str | None = None,
) -> CaptionedImages:
    """Read the captions of images from one or more caption files.

    paths: a caption file or a list of caption files, plain or gzip.
    folder: the folder of images. Image names in the caption files are relative to it. Default: the folder of
        the first caption file.
    format: "tsv", "jsonl", "coco" or "karpathy" (see caption_formats.py). By default, it is detected from the
        file name and, for .json, from the content.
    split: the split to read, such as "train", or a list of splits. Default: all images.
    empty: what to do with a caption that has no words: "error" raises DataError, "skip" drops the caption.
    missing: what to do with an image whose file does not exist: "error" raises DataError, "skip" drops the
        image.
    encoding: the encoding of TSV and JSON lines files, such as "cp949"; None is UTF-8.

    Raises DataError in these cases: an entry is malformed; an image or an id occurs twice; an image name is
    outside the folder, such as ../a.jpg; or no image is left. The error names the file, and the line or image
    number.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.jpg").touch(), Path(folder, "b.jpg").touch()
    ...     path = Path(folder, "captions.tsv")
    ...     _ = path.write_text("a.jpg\\tA dog runs .\\na.jpg\\tA brown dog .\\n", encoding="utf-8")
    ...     images = read_captions(path)
    >>> images.names, images.captions, images.uncaptioned
    (('a.jpg',), (('A dog runs .', 'A brown dog .'),), ('b.jpg',))
    """
    for name, value in (("empty", empty), ("missing", missing)):
        if value not in CHOICES:
            raise UnknownName(f"value of {name}", value, CHOICES)
    files = list(map(checked_path, [paths] if isinstance(paths, str | os.PathLike) else paths))
    if not files:
        raise ArgumentError(
            message("read_captions()", "the list of files is empty", expected="at least one file")
        )
    collected = _Collected(empty)
    for path in files:
        for entry in caption_entries(path, format, encoding):
            collected.add(entry)
    source = (
        ", ".join(map(shown, files)) if len(files) <= 4 else f"{shown(files[0])}, ..., {shown(files[-1])}"
    )
    images = collected.result(Path(files[0].parent if folder is None else folder), source)
    named = frozenset((*images.names, *images.uncaptioned))
    if split is not None:
        chosen = (split,) if isinstance(split, str) else tuple(split)
        if not chosen:
            problem = "the list of splits is empty"
            raise ArgumentError(message("read_captions()", problem, expected="at least one split"))
        images = _of_split(images, chosen)
    return _with_files(images, named, missing)


class _Collected:
    """Groups the entries of caption files by image. An entry is an image with some of its captions.

    add() adds one entry; result() returns the images with all their captions.
    """

    def __init__(self, empty: str):
        self.on_empty, self.empty = empty, 0
        self.rows: dict[str, int] = {}
        self.entries: list[CaptionEntry] = []  # the first entry of each image
        self.captions: list[list[str]] = []

    def add(self, entry: CaptionEntry) -> None:
        name = _checked_name(entry)
        row = self.rows.setdefault(name, len(self.entries))
        if row == len(self.entries):
            self.entries.append(entry._replace(image=name, captions=(), numbers=()))
            self.captions.append([])
        elif entry.complete or self.entries[row].complete:
            problem = f"the image {printable(name)[:200]} occurs twice, first in {self.entries[row].place}"
            expected = "all captions of an image together, or one caption in each line"
            raise DataError(message(entry.place, problem, expected=expected))
        elif entry.split != self.entries[row].split:
            problem = f"the image {printable(name)[:200]} is in two splits"
            expected = f"the same split as in {self.entries[row].place}"
            raise DataError(message(entry.place, problem, expected=expected))
        for at, text in enumerate(entry.captions):
            caption = clean(text)
            if any(character.isalnum() for character in caption):
                self.captions[row].append(caption)
                continue
            if self.on_empty == "error":
                hint = ("write a caption, delete it, or use ", Setting("read_captions", "empty", "skip"))
                raise DataError(message(entry.caption_place(at), "the caption has no words", hint=hint))
            self.empty += 1

    def result(self, folder: Path, source: str) -> CaptionedImages:
        kept = [row for row, captions in enumerate(self.captions) if captions]
        return CaptionedImages(
            folder,
            tuple(self.entries[row].image for row in kept),
            tuple(tuple(self.captions[row]) for row in kept),
            tuple(self.entries[row].split for row in kept),
            tuple(self.entries[row].place for row in kept),
            source,
            uncaptioned=tuple(
                entry.image for entry, texts in zip(self.entries, self.captions, strict=True) if not texts
            ),
            empty=self.empty,
        )


def _checked_name(entry: CaptionEntry) -> str:
    """Return the image name of an entry, without parts such as "./" or "//".

    Raise DataError if the name is empty, is a path outside the folder of images, or cannot be a file name.
    """
    path = PurePosixPath(entry.image)
    try:
        os.fsencode(entry.image)
        encodable = "\0" not in entry.image
    except UnicodeEncodeError:
        encodable = False
    if not path.name or path.is_absolute() or ".." in path.parts or not encodable:
        problem = f"the image name {printable(entry.image)[:200]!r} is not allowed"
        expected = "the name of a file in the folder of images, such as a.jpg or train/a.jpg"
        raise DataError(message(entry.place, problem, expected=expected))
    return str(path)


def _of_split(images: CaptionedImages, splits: tuple[str, ...]) -> CaptionedImages:
    known = sorted({each for each in images.splits if each is not None})
    if not known:
        problem = "the file has no splits"
        raise DataError(message(images.source, problem, hint="do not select a split"))
    for each in splits:
        if each not in known:
            problem = f"no image is in the split {printable(each)!r}"
            raise DataError(
                message(
                    images.source, problem, expected=f"one of the splits {printable(', '.join(known))[:200]}"
                )
            )
    return images.select([row for row, each in enumerate(images.splits) if each in splits])


def _with_files(images: CaptionedImages, named: frozenset[str], missing: str) -> CaptionedImages:
    """Return a copy of `images` without the images whose files do not exist.

    The field `missing` of the copy has the names of these images. In the field `uncaptioned`, the copy also
    has the image files in the same folders that the caption files do not list.

    images: the images of the requested splits, with their captions.
    named: the names of all images in the caption files, in all splits.
    missing: "error" raises DataError if an image file is missing, "skip" drops the image.
    """
    if not images.folder.is_dir():
        raise DataError(
            message(shown(images.folder), "there is no such folder", expected="the folder of the images")
        )
    there: set[str] = set()
    for parent in sorted({os.path.dirname(name) for name in images.names}):
        there.update(_file_names(images.folder, parent))
    absent = [row for row, name in enumerate(images.names) if name not in there]
    if absent and missing == "error":
        name = images.names[absent[0]]
        more = f" (and {len(absent) - 1:,} more)" if len(absent) > 1 else ""
        problem = f"there is no image file {shown(images.folder / name)}{more}"
        hint = ("check the folder, or skip such images with ", MISSING)
        raise DataError(message(images.places[absent[0]], problem, hint=hint))
    others = {name for name in there if os.path.splitext(name)[1].lower() in SUFFIXES} - named
    gone = frozenset(absent)
    kept = images.select([row for row in range(len(images)) if row not in gone])
    if not len(kept):
        problem = f"no image is left: {len(absent)} are missing, {len(images.uncaptioned)} have no caption"
        raise DataError(message(images.source, problem, expected="at least one image with a caption"))
    return replace(
        kept,
        uncaptioned=(*images.uncaptioned, *sorted(others)),
        missing=tuple(images.names[row] for row in absent),
    )


def warn_skipped(path: Path, error: OSError) -> None:
    """Warn that a file of an image folder is skipped, such as a symbolic link to itself."""
    warnings.warn(message(shown(path), f"skipped: {error.strerror or error}"), RegardWarning, stacklevel=3)


def _file_names(folder: Path, parent: str) -> Iterator[str]:
    """Yield the names, relative to `folder`, of the files in its subfolder `parent`."""
    try:
        with os.scandir(folder / parent) as entries:
            for entry in entries:
                try:
                    is_file = entry.is_file()
                except OSError as error:
                    warn_skipped(folder / parent / entry.name, error)
                    continue
                if is_file:
                    yield f"{parent}/{entry.name}" if parent else entry.name
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        place = shown(folder / parent)
        raise DataError(message(place, f"the folder cannot be read ({error.strerror or error})")) from None


MOST_IMAGES = 1_000_000
"""Maximum number of image files that one call of list_images() returns."""

NUMBER = re.compile(r"(\d{1,18})$")


def list_images(
    places: Sequence[str | os.PathLike[str]], missing: list[DataError] | None = None
) -> list[Path]:
    """Return the paths of the image files in `places`, without duplicates.

    places: files, folders and patterns. A folder stands for the image files in it, in the order of their
        names, without subfolders. A pattern contains * or ?, for example "photos/*.jpg".
    missing: a list to which errors are appended: one error for each file or folder that does not exist, and
        for each folder or pattern without image files. If None, the first such error is raised.

    Raise DataError if there is no image file at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.png", "a.jpg", "notes.txt"):
    ...         _ = Path(folder, name).touch()
    ...     [[path.name for path in list_images([place])] for place in (folder, f"{folder}/*.png")]
    [['a.jpg', 'b.png'], ['b.png']]
    """
    found: dict[Path, None] = {}
    for place in places:
        path = Path(place)
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if _is_image(each))
            problem = "the folder has no image files"
        elif path.exists() or not glob.has_magic(str(place)):
            files, problem = [path] if path.exists() else [], "there is no such file or folder"
        else:
            files = sorted(each for each in map(Path, glob.iglob(str(place))) if _is_image(each))
            problem = "no image file matches this pattern"
        if not files:
            error = DataError(message(shown(path), problem, expected="an image file, folder or pattern"))
            if missing is None:
                raise error
            missing.append(error)
        found |= dict.fromkeys(files)
        if len(found) > MOST_IMAGES:
            raise DataError(message(shown(path), f"there are more than {MOST_IMAGES:,} images"))
    if missing and not found:
        raise missing[0]
    return list(found)


def _is_image(path: Path) -> bool:
    if path.suffix.lower() not in SUFFIXES:
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:  # for example a symbolic link to itself
        warn_skipped(path, error)
        return False


def coco_image_id(name: str) -> int | str:
    """Return the image id for a COCO results file: the number at the end of the file name.

    If the file name (without extension) does not end in a number, the id is the file name.

    >>> coco_image_id("val/COCO_val2014_000000391895.jpg"), coco_image_id("dog.jpg")
    (391895, 'dog.jpg')
    """
    path = Path(name)
    number = NUMBER.search(path.stem)
    return int(number.group(1)) if number else path.name
