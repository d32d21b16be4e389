"""File formats of captions. For each format, a function yields entries: an image and some of its captions.

To add a format, write such a function and add it to FORMATS.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from regard.data.read_text import read_lines
from regard.data.table_formats import column_rows, is_csv, valid_cell
from regard.errors import ArgumentError, DataError, UnknownName, message, printable, shown
from regard.files.untrusted import LIMITS, parse_json, read_limited

__all__ = ["FORMATS", "CaptionEntry", "caption_entries"]

T = TypeVar("T")

SUFFIXES = {".tsv": "tsv", ".csv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""File name extension -> format of captions. A .json file is not in this table: its content decides between
"coco" and "karpathy"."""

NUMBERED = re.compile(r"(.+)#\d+")
"""Matches the first column of Flickr8k.token.txt, such as "a.jpg#0": image, "#", number of the caption."""


class CaptionEntry(NamedTuple):
    """An image and some of its captions, as read from a caption file.

    place: the caption file and the line or image number in it, for error messages.
    image: the name of the image file, relative to the folder of images.
    captions: the captions, as written.
    unit: the part of the file that contains one caption, for error messages: "column", "annotation",
        "sentence" or "caption".
    numbers: for each caption, the number of its column, annotation and so on, from 1.
    split: the split that the file assigns to the image; None if the file has no splits.
    complete: True if the entry has all captions of the image; False if more entries of the image may follow.
    """

    place: str
    image: str
    captions: tuple[str, ...]
    numbers: tuple[int, ...]
    unit: str
    split: str | None = None
    complete: bool = True

    def caption_place(self, index: int) -> str:
        """Return where a caption is in the file, for error messages: "a.tsv, line 7, column 3".

        index: index of the caption in `captions`.
        """
        return f"{self.place}, {self.unit} {self.numbers[index]}"


def caption_entries(path: Path, format: str | None, encoding: str | None = None) -> Iterator[CaptionEntry]:
    """Yield the entries of a caption file: images, each with some of its captions.

    path: the caption file.
    format: "tsv", "jsonl", "coco" or "karpathy". None: it is detected from the file name and, for .json, from
        the content.
    encoding: the encoding of a TSV or JSON lines file; None is UTF-8. JSON is always UTF-8.
    """
    if format is not None and format not in FORMATS:
        raise UnknownName("format of captions", format, FORMATS)
    if format is None:
        last = detected_ending(path)
        if last == ".json":
            content = _json(path)
            yield from (coco if "annotations" in content else karpathy)(path, content)
            return
        if last not in SUFFIXES:
            problem = "the format of the captions cannot be detected from the file name"
            hint = "use --tsv (for TSV and CSV files) or --jsonl, or set data.format"
            expected = ".tsv, .csv, .jsonl or .json"
            raise ArgumentError(message(shown(path), problem, expected=expected, hint=hint))
        format = SUFFIXES[last]
    if format in ("tsv", "jsonl"):
        yield from (tabbed if format == "tsv" else json_lines)(path, encoding)
    else:
        yield from FORMATS[format](path)


def detected_ending(path: Path) -> str:
    """Return the file name extension that decides the format of a caption file, without ".gz".

    >>> detected_ending(Path("captions.TSV.gz")), detected_ending(Path("captions"))
    ('.tsv', '')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def tabbed(path: Path, encoding: str | None = None) -> Iterator[CaptionEntry]:
    """Yield the entries of a TSV file: image, TAB, caption, possibly more captions in further columns.

    A file whose name ends with .csv is a CSV file with the same columns. So is a file whose first line begins
    with "image,", as captions.txt of Flickr8k.

    If the first cell of the first line is "image", this line is a header with column names. In a file with a
    header, the captions are the columns whose names begin with "caption", and the column "split" is the
    split of the image. An image may have several lines if each line has one caption.
    """
    header: list[str] | None = None
    for number, cells in _cells(path, encoding):
        place = f"{shown(path)}, line {number}"
        if number == 1 and cells[0].strip().lower() == "image":
            header = [cell.strip().lower() for cell in cells]
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
        columns = [at for at, name in enumerate(names) if name.startswith("caption")]
        split = cells[names.index("split")].strip() if "split" in names else None
        image, complete = cells[0].strip(), len(columns) > 1
        if header is None and not complete and (numbered := NUMBERED.fullmatch(image)):
            image = numbered[1]
        captions = tuple(cells[at] for at in columns)
        yield CaptionEntry(place, image, captions, tuple(at + 1 for at in columns), "column", split, complete)


def _cells(path: Path, encoding: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each line of a TSV or CSV file."""
    first = "" if is_csv(path) else next(read_lines(path, encoding), "")
    for row in column_rows(path, encoding, csv=is_csv(path) or first.lower().startswith("image,")):
        yield row.number, [valid_cell(cell, shown(path), row.number, encoding) for cell in row.value]


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
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(message(place, f"not valid JSON: {printable(str(error))[:200]}")) from None
        image = _field(row, "image", str, place)
        split = _field(row, "split", str, place) if "split" in row else None
        if ("captions" in row) == ("caption" in row):
            has = "has both" if "caption" in row else "has neither"
            problem = f"the object {has} of the fields 'caption' and 'captions'"
            raise DataError(message(place, problem, expected="exactly one of these two fields"))
        if "caption" in row:
            captions = [_field(row, "caption", str, place)]
        else:
            listed = _field(row, "captions", list, place)
            captions = [_typed(text, str, f"{place}, caption {at}") for at, text in enumerate(listed, 1)]
        numbers = tuple(range(1, len(captions) + 1))
        yield CaptionEntry(place, image, tuple(captions), numbers, "caption", split, "captions" in row)


def coco(path: Path, content: dict[str, Any] | None = None) -> Iterator[CaptionEntry]:
    """Yield the entries of a COCO annotation file, in the order of its "images".

    {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"id": 7, "image_id": 1, "caption": "..."}]}

    Images without an annotation have an entry without captions.

    content: the parsed file, if the caller has read it; if None, it is read here.
    """
    content = _json(path) if content is None else content
    name = shown(path)
    images: dict[int | str, str] = {}
    for number, row in enumerate(_field(content, "images", list, name), 1):
        place = f"{name}, image {number}"
        _add_id(images, _identity(row, "id", place), _field(row, "file_name", str, place), place, "image")
    captions: dict[int | str, list[tuple[str, int]]] = {image: [] for image in images}
    annotations: dict[int | str, str] = {}
    for number, row in enumerate(_field(content, "annotations", list, name), 1):
        place = f"{name}, annotation {number}"
        caption, image = _field(row, "caption", str, place), _identity(row, "image_id", place)
        if image not in images:
            problem = f"the image id {_id_text(image)} is not in the list of images"
            raise DataError(message(place, problem))
        if "id" in row:
            _add_id(annotations, _identity(row, "id", place), "", place, "annotation")
        captions[image].append((caption, number))
    for number, (image, file_name) in enumerate(images.items(), 1):
        texts = tuple(text for text, _ in captions[image])
        numbers = tuple(number for _, number in captions[image])
        yield CaptionEntry(f"{name}, image {number}", file_name, texts, numbers, "annotation")


def karpathy(path: Path, content: dict[str, Any] | None = None) -> Iterator[CaptionEntry]:
    """Yield the entries of a file in the layout of Karpathy's splits of Flickr8k, Flickr30k and COCO.

    {"images": [{"filename": "a.jpg", "imgid": 0, "split": "train",
                 "sentences": [{"raw": "...", "sentid": 0}]}]}

    The field "filepath" of an image is optional: a folder inside the folder of images.

    content: the parsed file, if the caller has read it; if None, it is read here.
    """
    content = _json(path) if content is None else content
    name = shown(path)
    images: dict[int | str, str] = {}
    sentences: dict[int | str, str] = {}
    for number, row in enumerate(_field(content, "images", list, name), 1):
        place = f"{name}, image {number}"
        image = _field(row, "filename", str, place)
        if "filepath" in row and (inside := _field(row, "filepath", str, place)):
            image = f"{inside}/{image}"
        if "imgid" in row:
            _add_id(images, _identity(row, "imgid", place), image, place, "image")
        split = _field(row, "split", str, place) if "split" in row else None
        texts = []
        for at, sentence in enumerate(_field(row, "sentences", list, place), 1):
            inner = f"{place}, sentence {at}"
            texts.append(_field(sentence, "raw", str, inner))
            if "sentid" in sentence:
                _add_id(sentences, _identity(sentence, "sentid", inner), "", inner, "sentence")
        yield CaptionEntry(place, image, tuple(texts), tuple(range(1, len(texts) + 1)), "sentence", split)


FORMATS: dict[str, Callable[[Path], Iterator[CaptionEntry]]] = {
    "tsv": tabbed,
    "jsonl": json_lines,
    "coco": coco,
    "karpathy": karpathy,
}
"""Name of a format of caption files -> function that yields the entries of a file. Files are UTF-8, plain or
gzip."""


def _json(path: Path) -> dict[str, Any]:
    """Read and parse a JSON file, plain or gzip. Raises DataError if the file is too large or damaged."""
    limit = LIMITS["captions"]
    try:
        content = read_limited(path, "captions", named=True)
        if content[:2] == b"\x1f\x8b":
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(limit + 1)
            if len(content) > limit:
                raise DataError(
                    message(shown(path), f"the unpacked file is larger than the limit of {limit:,} bytes")
                )
        parsed = parse_json(content.removeprefix(b"\xef\xbb\xbf"))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(message(shown(path), f"the gzip data is truncated or damaged ({error})")) from None
    except OSError as error:
        raise DataError(
            message(shown(path), f"the file cannot be read ({error.strerror or error})")
        ) from None
    except DataError:
        raise
    except ValueError as error:
        problem = f"the file is not valid JSON: {printable(str(error))[:200]}"
        hint = 'for one JSON object per line, use format="jsonl"'
        raise DataError(message(shown(path), problem, hint=hint)) from None
    return _typed(parsed, dict, shown(path))


def _field(row: Any, name: str, kind: type[T], place: str) -> T:
    """Return a field of a JSON object; raise DataError if the field is missing or not of the type `kind`.

    place: where the object is in the file, for the error message.
    """
    fields = _typed(row, dict, place)
    if name not in fields:
        there = printable(", ".join(sorted(map(str, fields))))[:200]
        raise DataError(message(place, f"the object has no field '{name}'; its fields are {there}"))
    return _typed(fields[name], kind, f"{place}, field '{name}'")


JSON_TYPES: dict[type, str] = {dict: "a JSON object", list: "a list", str: "a string"}


def _typed(value: Any, kind: type[T], place: str) -> T:
    if not isinstance(value, kind):
        raise DataError(
            message(place, f"the value is of type {type(value).__name__}", expected=JSON_TYPES[kind])
        )
    return value


def _identity(row: Any, name: str, place: str) -> int | str:
    """Return the field `name` of a JSON object. Raise DataError unless it is an integer or a string."""
    value = _field(row, name, object, place)
    if isinstance(value, bool) or not isinstance(value, int | str):
        problem = f"the field '{name}' is of type {type(value).__name__}"
        raise DataError(message(place, problem, expected="an integer or a string"))
    return value


def _id_text(value: int | str) -> str:
    return printable(str(value))[:80]


def _add_id(known: dict[int | str, str], value: int | str, name: str, place: str, kind: str) -> None:
    if value in known:
        raise DataError(message(place, f"the {kind} id {_id_text(value)} occurs twice"))
    known[value] = name
