"""Read caption files: TSV, JSON lines, and JSON in the layout of COCO or Karpathy.

    read_captions("captions.tsv", "images")                          lines: image TAB caption
    read_captions("train.jsonl", "images")                           {"image": "a.jpg", "captions": ["..."]}
    read_captions("dataset_flickr8k.json", "images", split="train")  Karpathy's splits
    read_captions("captions_train2017.json", "train2017")            COCO

Captions are held in memory. Images are opened only when they are needed (see read_image()). list_images()
finds image files by names, folders and patterns.

For each file format, a function yields entries: an image and some of its captions. To add a format, write
such a function and add it to FORMATS.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import itertools
import os
import re
import stat
import warnings
import zlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from regard.data.read_text import checked_paths, read_lines, shown_paths
from regard.data.table_formats import column_rows, is_csv, json_field, json_object, json_typed, valid_cell
from regard.data.tokenizers.tokenizer import clean
from regard.errors import (
    ArgumentError,
    DataError,
    RegardWarning,
    Setting,
    UnknownName,
    message,
    printable,
    shown,
    similar_path,
)
from regard.files.untrusted import LIMITS, read_limited

SUFFIXES = {".tsv": "tsv", ".csv": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""File name extension -> format of captions. A .json file is not in this table: its content decides between
"coco" and "karpathy"."""

NUMBERED = re.compile(r"(.+)#\d+")
"""Matches the first column of Flickr8k.token.txt, such as "a.jpg#0": image, "#", number of the caption."""


class CaptionEntry(NamedTuple):
    """An image and some of its captions, as read from a caption file.

    place: the caption file and the line or image number in it, for error messages.
    image: the name of the image file, relative to the folder of images.
    captions: the captions as written, each after its place: ("a.tsv, line 7, column 3", "A dog .").
    split: the split that the file assigns to the image; None if the file has no splits.
    complete: True if the entry has all captions of the image; False if more entries of the image may follow.
    """

    place: str
    image: str
    captions: Sequence[tuple[str, str]]
    split: str | None = None
    complete: bool = True


def caption_entries(
    path: Path, format: str | None, encoding: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[CaptionEntry]:
    """Return the entries of a caption file: images, each with some of its captions.

    format: a key of FORMATS. None: it is detected from the file name and, for .json, from the content.
    encoding: the encoding of a TSV or JSON lines file; None is UTF-8. JSON is always UTF-8.
    columns: see read_captions().
    """
    if format is not None and format not in FORMATS:
        raise UnknownName("format of captions", format, FORMATS)
    ending = detected_ending(path)
    kind = format or (ending if ending == ".json" else SUFFIXES.get(ending))
    if kind is None:
        problem = "the format of the captions cannot be detected from the file name"
        hint = "use --tsv (for TSV and CSV files) or --jsonl, or set data.format"
        expected = ".tsv, .csv, .txt, .jsonl or .json"
        raise ArgumentError(message(shown(path), problem, expected=expected, hint=hint))
    if kind in ("tsv", "jsonl"):
        return tabbed(path, encoding, columns) if kind == "tsv" else json_lines(path, encoding)
    content = _json(path)
    is_coco = kind == "coco" or (kind == ".json" and "annotations" in content)
    return (coco if is_coco else karpathy)(content, shown(path))


def detected_ending(path: Path) -> str:
    """Return the file name extension that decides the format of a caption file, without ".gz".

    >>> detected_ending(Path("captions.TSV.gz")), detected_ending(Path("captions"))
    ('.tsv', '')
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


NAMES = ("image", "caption", "split", "id")
"""The beginnings of the first cell of a header line."""


def tabbed(
    path: Path, encoding: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[CaptionEntry]:
    """Yield the entries of a TSV file: image, TAB, caption, possibly more captions in further columns.

    A file whose name ends with .csv is a CSV file with the same columns. So is a file whose first line begins
    with "image,", as captions.txt of Flickr8k. In Flickr8k.token.txt, each image name is followed by "#" and
    the number of the caption; they are removed.

    If the first line has the cell "image", and its first cell is a column name, this line is a header.
    In a file with a header, the images are in the column "image", the captions in the columns whose names
    begin with "caption", and the column "split" is the split of the image. An image may have several lines if
    each line has one caption.

    columns: the names of the columns of image and captions in the header, if they have other names.
    """
    header: list[str] | None = None
    csv = is_csv(path) or next(read_lines(path, encoding), "").lower().startswith("image,")
    for row in column_rows(path, encoding, csv=csv):
        cells = [valid_cell(cell, shown(path), row.number, encoding) for cell in row.value]
        place = f"{shown(path)}, line {row.number}"
        names = [cell.strip().lower() for cell in cells]
        if row.number == 1 and columns and "image" not in names:
            exact = [cell.strip() for cell in cells]
            if not {*columns} <= {*exact}:
                problem = f"the columns are {', '.join(exact)}"
                raise DataError(message(place, printable(problem)[:300], expected=" and ".join(columns)))
            own = {columns[0]: "image", **dict.fromkeys(columns[1:], "caption")}
            header = [own.get(name, "split" if name == "split" else "") for name in exact]
            continue
        if row.number == 1 and (names[0] == "image" or ("image" in names and names[0].startswith(NAMES))):
            header = names
            if not any(name.startswith("caption") for name in header):
                problem = f"no column whose name begins with 'caption'; the columns are {', '.join(header)}"
                raise DataError(message(place, printable(problem)[:300]))
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) < 2 or (header and len(cells) != len(header)):
            problem = f"{len(cells)} column{'s' * (len(cells) > 1)}"
            expected = f"an image, a {'comma' if is_csv(path) else 'tab'} and a caption"
            expected = f"{len(header)}, as in the header line" if header else expected
            raise DataError(message(place, problem, expected=expected))
        names = header or ["image", *["caption"] * (len(cells) - 1)]
        captions = [
            (f"{place}, column {number}", cell)
            for number, (name, cell) in enumerate(zip(names, cells, strict=True), 1)
            if name.startswith("caption")
        ]
        split = cells[names.index("split")].strip() if "split" in names else None
        image = cells[names.index("image")].strip()
        if header is None and len(captions) == 1 and (numbered := NUMBERED.fullmatch(image)):
            image = numbered[1]
        yield CaptionEntry(place, image, captions, split, len(captions) > 1)


def json_lines(path: Path, encoding: str | None = None) -> Iterator[CaptionEntry]:
    """Yield the entries of a file in which each line is a JSON object, of one of these forms:

    {"image": "a.jpg", "captions": ["...", "..."]}: all captions of an image.
    {"image": "a.jpg", "caption": "..."}: one caption; there may be more lines for the same image.

    Each object may also have the field "split", for example "train".
    """
    for number, line in enumerate(read_lines(path, encoding), 1):
        if not line.strip():
            continue
        place = f"{shown(path)}, line {number}"
        row = json_object(line, place)
        if ("captions" in row) == ("caption" in row):
            has = "has both" if "caption" in row else "has neither"
            problem = f"the object {has} of the fields 'caption' and 'captions'"
            raise DataError(message(place, problem, expected="exactly one of these two fields"))
        texts = json_field(row, "captions", list, place) if "captions" in row else [row["caption"]]
        captions = [
            (where, json_typed(text, str, where))
            for where, text in ((f"{place}, caption {at}", text) for at, text in enumerate(texts, 1))
        ]
        image = json_field(row, "image", str, place)
        yield CaptionEntry(place, image, captions, _split(row, place), "captions" in row)


def coco(content: Any, name: str) -> Iterator[CaptionEntry]:
    """Yield the entries of a COCO annotation file, in the order of its "images".

    {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"id": 7, "image_id": 1, "caption": "..."}]}

    Images without an annotation have an entry without captions. `name`: the name of the file.
    """
    entries: dict[int | str, CaptionEntry] = {}
    for place, row in _rows(content, "images", f"{name}, image"):
        image = _identity(row, "id", place, entries)
        entries[image] = CaptionEntry(place, json_field(row, "file_name", str, place), [])
    captions: dict[int | str, list[tuple[str, str]]] = {image: [] for image in entries}
    known: dict[int | str, bool] = {}
    for place, row in _rows(content, "annotations", f"{name}, annotation"):
        caption, image = json_field(row, "caption", str, place), _identity(row, "image_id", place)
        if image not in entries:
            problem = f"the image id {printable(str(image))[:80]} is not in the list of images"
            raise DataError(message(place, problem))
        if "id" in row:
            known[_identity(row, "id", place, known)] = True
        captions[image].append((place, caption))
    for image, entry in entries.items():
        yield entry._replace(captions=captions[image])


def karpathy(content: Any, name: str) -> Iterator[CaptionEntry]:
    """Yield the entries of a file in the layout of Karpathy's splits of Flickr8k, Flickr30k and COCO.

    {"images": [{"filename": "a.jpg", "imgid": 0, "split": "train",
                 "sentences": [{"raw": "...", "sentid": 0}]}]}

    The field "filepath" of an image is optional: a folder inside the folder of images. `name`: the name of
    the file.
    """
    images: dict[int | str, bool] = {}
    sentences: dict[int | str, bool] = {}
    for place, row in _rows(content, "images", f"{name}, image"):
        image = json_field(row, "filename", str, place)
        if "filepath" in row and (inside := json_field(row, "filepath", str, place)):
            image = f"{inside}/{image}"
        if "imgid" in row:
            images[_identity(row, "imgid", place, images)] = True
        captions = []
        for inner, sentence in _rows(row, "sentences", f"{place}, sentence", place):
            captions.append((inner, json_field(sentence, "raw", str, inner)))
            if "sentid" in sentence:
                sentences[_identity(sentence, "sentid", inner, sentences)] = True
        yield CaptionEntry(place, image, captions, _split(row, place))


FORMATS = ("tsv", "jsonl", "coco", "karpathy")
"""The formats of caption files. Files are UTF-8, plain or gzip."""


def _json(path: Path) -> dict[str, Any]:
    """Read and parse a JSON file, plain or gzip. Raises DataError if the file is too large or damaged."""
    name, limit = shown(path), LIMITS["captions"]
    try:
        content = read_limited(path, "captions", named=True)
        if content[:2] == b"\x1f\x8b":
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(limit + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(message(name, f"the gzip data is truncated or damaged ({error})")) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(message(name, f"the file cannot be read ({reason})")) from None
    if len(content) > limit:
        raise DataError(message(name, f"the unpacked file is larger than the limit of {limit:,} bytes"))
    hint = 'for one JSON object per line, use format="jsonl"'
    return json_object(content.removeprefix(b"\xef\xbb\xbf"), name, hint)


def _rows(content: Any, name: str, unit: str, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a list in a field of a JSON object, each after its place, such as "a, image 1"."""
    rows = json_field(content, name, list, place or unit.rpartition(",")[0])
    for number, row in enumerate(rows, 1):
        yield f"{unit} {number}", json_typed(row, dict, f"{unit} {number}")


def _split(row: dict[str, Any], place: str) -> str | None:
    return json_field(row, "split", str, place) if "split" in row else None


def _identity(row: Any, name: str, place: str, known: Container[int | str] = ()) -> int | str:
    """Return a field that identifies an object. Raise DataError if it is in `known`, or has another type."""
    value = json_field(row, name, object, place)
    if isinstance(value, bool) or not isinstance(value, int | str):
        problem = f"the field '{name}' is of type {type(value).__name__}"
        raise DataError(message(place, problem, expected="an integer or a string"))
    if value in known:
        raise DataError(message(place, f"the {name} {printable(str(value))[:80]} occurs twice"))
    return value


PathLike = str | os.PathLike[str]

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
"""File name extensions of images. Only files with these extensions are listed in
CaptionedImages.uncaptioned."""

CHOICES = ("error", "skip")
"""Values of the arguments `empty` and `missing` of read_captions(). "error" raises DataError for a caption
without words or a missing image. "skip" drops this caption or image and counts it."""


FOLDER = Setting("read_captions", "folder")
MISSING = Setting("read_captions", "missing", "skip")
COLUMNS = Setting("read_captions", "columns", "IMAGE,CAPTION")


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
    columns: Sequence[str] | None = None,
) -> CaptionedImages:
    """Read the captions of images from one or more caption files.

    paths: a caption file or a list of caption files, plain or gzip.
    folder: the folder of images. Image names in the caption files are relative to it. Default: the folder of
        the first caption file.
    format: "tsv", "jsonl", "coco" or "karpathy" (see FORMATS). By default, it is detected from the
        file name and, for .json, from the content.
    split: the split to read, such as "train", or a list of splits. Default: all images.
    empty: what to do with a caption that has no words: "error" raises DataError, "skip" drops the caption.
    missing: what to do with an image whose file does not exist: "error" raises DataError, "skip" drops the
        image.
    encoding: the encoding of TSV and JSON lines files, such as "cp949"; None is UTF-8.
    columns: the columns of image and captions in a TSV or CSV file, by their names in the header line.
        Default: "image", and those whose names begin with "caption".

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
    files = checked_paths("read_captions()", paths)
    entries: dict[str, CaptionEntry] = {}  # the first entry of each image
    captions: dict[str, list[str]] = {}
    skipped = 0
    for entry in itertools.chain.from_iterable(
        caption_entries(path, format, encoding, columns) for path in files
    ):
        name = _checked_name(entry)
        _check_entry(entry, entries.setdefault(name, entry), printable(name)[:200])
        texts = captions.setdefault(name, [])
        for place, text in entry.captions:
            caption = clean(text)
            if any(character.isalnum() for character in caption):
                texts.append(caption)
            elif empty == "error":
                hint = ("write a caption, delete it, or use ", Setting("read_captions", "empty", "skip"))
                raise DataError(message(place, "the caption has no words", hint=hint))
            else:
                skipped += 1
    kept = [name for name, texts in captions.items() if texts]
    images = CaptionedImages(
        Path(files[0].parent if folder is None else folder),
        tuple(kept),
        tuple(tuple(captions[name]) for name in kept),
        tuple(entries[name].split for name in kept),
        tuple(entries[name].place for name in kept),
        shown_paths(files),
        uncaptioned=tuple(name for name, texts in captions.items() if not texts),
        empty=skipped,
    )
    named = frozenset((*images.names, *images.uncaptioned))
    if split is not None:
        chosen = (split,) if isinstance(split, str) else tuple(split)
        if not chosen:
            problem = "the list of splits is empty"
            raise ArgumentError(message("read_captions()", problem, expected="at least one split"))
        known = sorted({each for each in images.splits if each is not None})
        for each in chosen:
            if each not in known:
                problem = (
                    f"no image is in the split {printable(each)!r}" if known else "the file has no splits"
                )
                expected = f"one of the splits {printable(', '.join(known))[:200]}" if known else ""
                advice = "" if known else "do not select a split"
                raise DataError(message(images.source, problem, expected=expected, hint=advice))
        images = images.select([row for row, each in enumerate(images.splits) if each in chosen])
    return _with_files(images, named, missing)


def _check_entry(entry: CaptionEntry, first: CaptionEntry, name: str) -> None:
    """Raise DataError if an entry and the first entry of the same image contradict each other."""
    if entry is first:
        return
    if entry.complete or first.complete:
        problem = f"the image {name} occurs twice, first in {first.place}"
        expected = "all captions of an image together, or one caption in each line"
    elif entry.split != first.split:
        problem, expected = f"the image {name} is in two splits", f"the same split as in {first.place}"
    else:
        return
    raise DataError(message(entry.place, problem, expected=expected))


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


def _with_files(images: CaptionedImages, named: frozenset[str], missing: str) -> CaptionedImages:
    """Return a copy of `images` without the images whose files do not exist.

    The field `missing` of the copy has the names of these images. In the field `uncaptioned`, the copy also
    has the image files in the same folders that the caption files do not list.

    images: the images of the requested splits, with their captions.
    named: the names of all images in the caption files, in all splits.
    missing: "error" raises DataError if an image file is missing, "skip" drops the image.
    """
    if not images.folder.is_dir():
        problem, similar = "there is no such folder", similar_path(images.folder, folder=True)
        raise DataError(
            message(shown(images.folder), problem, expected="the folder of the images", hint=similar)
        )
    there: set[str] = set()
    for parent in sorted({os.path.dirname(name) for name in images.names}):
        there.update(_file_names(images.folder, parent))
    absent = [row for row, name in enumerate(images.names) if name not in there]
    if absent and missing == "error":
        name, place = images.names[absent[0]], images.places[absent[0]]
        endings = {os.path.splitext(images.names[row])[1].lower() for row in absent}
        is_header = len(absent) < len(images) or bool(endings & IMAGE_SUFFIXES) or name.lower() in NAMES
        if place.endswith(", line 1") and not os.path.splitext(name)[1] and is_header:
            problem = f"the line looks like a header: there is no image file {shown(images.folder / name)}"
            chosen = ("name the columns of image and caption: ", COLUMNS, "; or remove the line")
            raise DataError(message(place, problem, hint=chosen))
        more = f" (and {len(absent) - 1:,} more)" if len(absent) > 1 else ""
        problem = f"there is no image file {shown(images.folder / name)}{more}"
        advice = ("name the folder of the images with ", FOLDER, ", or skip such images with ", MISSING)
        raise DataError(message(place, problem, hint=advice))
    others = {name for name in there if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES} - named
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


def _warn_skipped(path: Path, error: OSError) -> None:
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
                    _warn_skipped(folder / parent / entry.name, error)
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
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:  # for example a symbolic link to itself
        _warn_skipped(path, error)
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
