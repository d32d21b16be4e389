"""Download public datasets, or copy them from a folder; unpack and verify them, and print their licence."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from regard.data.download import download
from regard.data.pair_checks import Choices
from regard.data.pairs import Pairs, read_pairs
from regard.data.progress_bar import advancing
from regard.data.public_datasets import SETS, Piece, PublicSet
from regard.errors import DataError, Hint, Setting, UnknownName, message, printable, shown
from regard.files.atomic_io import naming_file, write_all, write_whole

__all__ = ["SETS", "Fetched", "digest", "fetch", "unpack"]

ANY_EDITION = Setting("fetch", "edition", "any")

LARGEST = 1 << 30
"""Maximum unpacked size in bytes of a file whose size is not known exactly.

The size is not known exactly if the publisher updates the dataset from time to time (see
PublicSet.editions)."""


@dataclass(frozen=True)
class Fetched:
    """A downloaded public dataset, the result of fetch().

    name: its name.
    folder: the folder with its files.

    In the example, the folder `source` is empty, so the error lists the files that it should contain.

    >>> import tempfile
    >>> from regard.errors import DataError
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     try:
    ...         fetch("tatoeba-en-ko", empty, source=empty)
    ...     except DataError as error:
    ...         print(str(error).splitlines()[-1])
    expected: one of eng-kor.txt, eng-kor.txt.gz, kor.txt, kor.txt.gz, kor-eng.zip
    """

    name: str
    folder: Path

    @property
    def about(self) -> PublicSet:
        """Description, licence and home page of the dataset."""
        return SETS[self.name]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of the dataset: ("train", "valid", "test"), or ("all",) if it is not divided."""
        return tuple(self.about.parts)

    def pairs(self, part: str, choices: Choices | None = None) -> Pairs:
        """Return the sentence pairs of one part of the dataset.

        part: the name of the part, one of `parts`.
        choices: what to do with pairs that have a problem; see Choices.
        """
        if part not in self.about.parts:
            raise UnknownName(f"part of {self.name}", part, self.about.parts)
        options: dict[str, Any] = dict(self.about.parts[part])
        options |= {
            name: self.folder / options[name] for name in ("source", "target", "tsv") if name in options
        }
        return read_pairs(**options, choices=choices)


def fetch(
    name: str,
    folder: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    edition: str = "known",
) -> Fetched:
    """Download a public dataset into a folder and print its licence.

    Files that already exist in the folder are verified. If they are correct, they are not downloaded again.

    name: the name of the dataset, one of public_datasets.SETS.
    folder: where to write the files.
    source: a folder that has the files, compressed or not. They are copied from it instead of downloaded.
    edition: "known" accepts only files with the known SHA-256. "any" also accepts other editions of a dataset
        that is updated from time to time (Tatoeba).

    Returns a Fetched, whose method pairs() reads a part of the dataset. Raises DataError if a file cannot be
    downloaded, or if its SHA-256 is not the known one.

    >>> fetch("multi40k-en-de", "data")
    Traceback (most recent call last):
    regard.errors.UnknownName: unknown public dataset 'multi40k-en-de'; did you mean 'multi30k-en-de'?
    known: multi30k-en-de, multi30k-en-fr, tatoeba-en-de, tatoeba-en-ko
    """
    if name not in SETS:
        raise UnknownName("public dataset", name, SETS)
    if edition not in ("any", "known"):
        raise UnknownName("edition", edition, ("any", "known"))
    dataset = SETS[name]
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    licence = f"{name}: {dataset.about}\nlicence: {dataset.licence}\nfrom: {dataset.home}"
    console.print(licence)
    into = Path(folder) / dataset.folder
    try:
        into.mkdir(parents=True, exist_ok=True)
        write_whole(into / f"{name}.licence.txt", f"{licence}\n".encode())
        with advancing(f"downloading {name}", sum(piece.size for piece in dataset.pieces)) as reached:
            done = 0
            for piece in dataset.pieces:
                _fetch_piece(
                    name,
                    piece,
                    into,
                    None if source is None else Path(source),
                    edition,
                    _after(done, reached),
                )
                done += piece.size
    except OSError as error:
        place = shown(error.filename or into)
        raise DataError(
            message(place, f"the file or folder cannot be used ({error.strerror or error})")
        ) from None
    return Fetched(name, into)


def _after(done: int, reached: Callable[[int], None]) -> Callable[[int], None]:
    return lambda more: reached(done + more)


def _fetch_piece(
    name: str, piece: Piece, into: Path, source: Path | None, edition: str, reached: Callable[[int], None]
) -> None:
    """Download one file of a dataset, or find it in `source`; unpack and verify it.

    name: the name of the dataset.
    piece: the file.
    into: the folder to write to.
    source: a folder that has the file, compressed or not; None to download it.
    edition: "known" or "any"; see fetch().
    reached: function that is called with the number of bytes downloaded so far.

    If the file already exists with the known SHA-256, it is kept. If `edition` is "any", an existing file
    with any SHA-256 is kept.
    """
    place, accept_any = into / piece.name, edition == "any" and SETS[name].editions
    if place.is_file() and (accept_any or digest(place) == piece.sha256):
        return
    most = LARGEST if SETS[name].editions else piece.size
    packed = into / f"{piece.name}.packed"
    if source is None:
        download(piece.url, packed, most + (1 << 16), reached)
    archive = packed if source is None else _find(name, piece, source)
    unpacked = into / f"{piece.name}.unpacked"
    try:
        if unpack(archive, unpacked, piece.member, most) == piece.sha256 or accept_any:
            os.replace(unpacked, place)
            return
    finally:
        unpacked.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
    problem = "the SHA-256 of the text differs from the known SHA-256"
    hint: Hint = "the file may be damaged: try again, or use another source"
    if SETS[name].editions:
        problem = "this is not the known edition: results will differ from the published results"
        hint = (ANY_EDITION, " accepts it")
    raise DataError(message(shown(archive) if source else piece.url, problem, hint=hint))


def _find(name: str, piece: Piece, source: Path) -> Path:
    """Return the path of a file of a dataset, compressed or not, in a folder of the user.

    name: the name of the dataset.
    piece: the file.
    source: the folder. The file may also be in its subfolder PublicSet.folder.

    Raises DataError if the file is in neither folder.
    """
    own = [piece.name, piece.member] if piece.member else [piece.name]
    archive = Path(urllib.parse.urlsplit(piece.url).path).name
    names = list(dict.fromkeys([*(f"{each}{end}" for each in own for end in ("", ".gz")), archive]))
    for folder in (source, source / SETS[name].folder):
        for each in names:
            if (folder / each).is_file():
                return folder / each
    raise DataError(
        message(
            shown(source), f"the folder has no file for {piece.name}", expected=f"one of {', '.join(names)}"
        )
    )


BLOCK = 1 << 20


def unpack(packed: Path, path: Path, member: str, most: int) -> str:
    """Unpack a file, and return the SHA-256 of the unpacked text.

    packed: the plain, gzip or zip file.
    path: the file to write.
    member: the name of the file to extract from a zip archive. The extracted file gets the name `path`.
    most: maximum size of the text in bytes.
    """
    hashed, size = hashlib.sha256(), 0
    with naming_file(path):
        out = path.open("wb", buffering=0)
    with out, _opened(packed, member) as file:
        while data := file.read(BLOCK):
            size += len(data)
            if size > most:
                raise DataError(
                    message(shown(packed), f"the unpacked text is larger than the expected {most:,} bytes")
                )
            hashed.update(data)
            with naming_file(path):
                write_all(out.fileno(), data)
        with naming_file(path):
            os.fsync(out.fileno())
    return hashed.hexdigest()


def digest(path: Path) -> str:
    """Return the SHA-256 of the content of a file, as hexadecimal text."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(packed: Path, member: str) -> Iterator[IO[bytes]]:
    damaged = "the file cannot be unpacked"
    try:
        with open(packed, "rb") as file:
            head = file.read(4)
            file.seek(0)
            if head[:2] == b"\x1f\x8b":
                yield cast(IO[bytes], gzip.GzipFile(fileobj=file))
            elif head == b"PK\x03\x04":
                with zipfile.ZipFile(file) as archive:
                    if member not in archive.namelist():
                        names = printable(", ".join(archive.namelist()))[:200]
                        raise DataError(
                            message(shown(packed), f"the archive has no file '{member}'; it contains {names}")
                        )
                    damaged = f"the file '{printable(member)}' in the archive cannot be unpacked"
                    with archive.open(member) as inner:
                        yield inner
            else:
                yield file
    except (
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        OSError,  # also for damaged gzip and bzip2 data
    ) as error:
        hint = "remove it and download it again"
        raise DataError(message(shown(packed), f"{damaged} ({error})", hint=hint)) from None
