"""Download public datasets, or copy them from a folder; unpack and verify them, and print their licence.

This is the only network code in the package.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from regard.data.line_io import advancing
from regard.data.pairs import Pairs, read_pairs
from regard.data.read_text import Choices
from regard.errors import DataError, Hint, Setting, UnknownName, message, printable, shown
from regard.files.atomic_io import naming_file, write_all, write_whole


@dataclass(frozen=True)
class Piece:
    """One file of a public dataset.

    name: the name of the file on this computer.
    url: the URL from which the file is downloaded.
    size: the size of the unpacked text in bytes.
    sha256: the SHA-256 of the unpacked text.
    member: if the URL leads to a zip archive, the name of the file in the archive; otherwise "".
    """

    name: str
    url: str
    size: int
    sha256: str
    member: str = ""


@dataclass(frozen=True)
class PublicSet:
    """A public dataset: its description, licence, home page and files.

    about: the description.
    licence: the licence, or the conditions of use.
    home: the URL of the home page.
    folder: name of the subfolder to which fetch() writes the files; several datasets may share a folder.
    pieces: the files.
    parts: for each part, such as "train", the arguments with which read_pairs() reads it. They contain file
        names, relative to the folder.
    editions: whether its publisher updates the dataset from time to time, so that the SHA-256 changes.

    >>> SETS["tatoeba-en-ko"].licence
    'CC BY 2.0 FR: name tatoeba.org and the authors in the third column'
    """

    about: str
    licence: str
    home: str
    folder: str
    pieces: tuple[Piece, ...]
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    editions: bool = False


_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"

_MULTI30K_FILES = {
    "train.en": (1801238, "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
    "train.de": (2110398, "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
    "train.fr": (2111303, "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d"),
    "val.en": (63297, "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
    "val.de": (75981, "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
    "val.fr": (73924, "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc"),
    "test_2016_flickr.en": (62076, "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
    "test_2016_flickr.de": (70649, "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
    "test_2016_flickr.fr": (72261, "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"),
}
"""Size in bytes and SHA-256 of the unpacked text of each file of Multi30k."""


def _multi30k(language: str, called: str) -> PublicSet:
    parts = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    names = [f"{part}.{side}" for part in parts.values() for side in ("en", language)]
    return PublicSet(
        about=f"Multi30k, task 1: 31,014 captions of images in English and {called} (Elliott et al. 2016)",
        licence="for research and education only; the images belong to their owners",
        home="https://github.com/multi30k/dataset",
        folder="multi30k",
        pieces=tuple(Piece(name, f"{_MULTI30K}{name}.gz", *_MULTI30K_FILES[name]) for name in names),
        parts={
            part: {"source": f"{name}.en", "target": f"{name}.{language}"} for part, name in parts.items()
        },
    )


def _tatoeba(code: str, called: str, size: int, sha256: str) -> PublicSet:
    name = f"eng-{code}.txt"
    url = f"https://www.manythings.org/anki/{code}-eng.zip"
    return PublicSet(
        about=f"Tatoeba via Anki: English sentences, many of them repeated, and {called} translations",
        licence="CC BY 2.0 FR: name tatoeba.org and the authors in the third column",
        home="https://www.manythings.org/anki/",
        folder="tatoeba",
        pieces=(Piece(name, url, size, sha256, member=f"{code}.txt"),),
        parts={"all": {"tsv": name, "columns": (1, 2)}},
        editions=True,
    )


SETS = {
    "multi30k-en-de": _multi30k("de", "German"),
    "multi30k-en-fr": _multi30k("fr", "French"),
    "tatoeba-en-de": _tatoeba(
        "deu", "German", 12266002, "7a363bf8587f1a9f895583574c7195071b02f9dfdf4d0d6605947c6b5e0c25a8"
    ),
    "tatoeba-en-ko": _tatoeba(
        "kor", "Korean", 484226, "c119d4fd78dd5f8064528c5a267095a3b54338fd5a5fe2f4e0c22329089f3901"
    ),
}


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

                def received(more: int, before: int = done) -> None:
                    reached(before + more)

                at = None if source is None else Path(source)
                _fetch_piece(name, piece, into, at, edition, received)
                done += piece.size
    except OSError as error:
        place = shown(error.filename or into)
        raise DataError(
            message(place, f"the file or folder cannot be used ({error.strerror or error})")
        ) from None
    return Fetched(name, into)


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


TIMEOUT = 30.0
"""Seconds to wait for data from the server before an attempt to download a file fails."""

ATTEMPTS = 5
PAUSE = 1.0
"""Seconds to wait before the second attempt to download a file; doubled before each further attempt."""

LIMIT = 3600.0
"""Maximum duration of a download in seconds, all attempts together."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
AGAIN = "call again, or use source= with a folder that has the file"


def download(url: str, path: Path, most: int, reached: Callable[[int], None]) -> None:
    """Download a file to `path`. If an attempt fails, the file is downloaded again from its beginning.

    most: maximum size of the file in bytes.
    reached: function that is called with the number of bytes downloaded so far.

    `path` exists only if the download is complete. Raises DataError after LIMIT seconds, even if the server
    is still sending.
    """
    _check_address(url)
    end, problem = time.monotonic() + LIMIT, ""
    try:
        for attempt in range(ATTEMPTS):
            try:
                if attempt:
                    time.sleep(min(PAUSE * 2 ** (attempt - 1), max(end - time.monotonic(), 0)))
                _check_time(url, end)
                _attempt(url, path, most, reached, end)
                return
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"the server answers {error.code} {printable(str(error.reason))}"
                if error.code not in (408, 429) and error.code < 500:
                    raise DataError(message(url, problem, hint="check whether the URL has changed")) from None
            except (OSError, http.client.HTTPException) as error:
                _check_time(url, end)
                problem = printable(str(getattr(error, "reason", None) or error) or type(error).__name__)
        problem = f"cannot be downloaded after {ATTEMPTS} attempts: {problem}"
        raise DataError(message(url, problem, hint=AGAIN))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _attempt(url: str, path: Path, most: int, reached: Callable[[int], None], end: float) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "regard", "Accept-Encoding": "identity"})
    with _opener(url).open(request, timeout=TIMEOUT) as answer:
        length, size = answer.headers.get("Content-Length", ""), 0
        with naming_file(path):
            file = path.open("wb", buffering=0)
        with file:
            while data := answer.read1(
                1 << 16
            ):  # returns what has arrived, without waiting for a whole block
                _check_time(url, end)
                size += len(data)
                if max(size, int(length or 0)) > most:
                    raise DataError(message(url, f"the file has more than {most:,} bytes, the maximum"))
                with naming_file(path):
                    write_all(file.fileno(), data)
                reached(size)
    if length and size < int(length):
        raise OSError(f"the connection was closed after {size:,} of {int(length):,} bytes")


def _check_time(url: str, end: float) -> None:
    if time.monotonic() >= end:
        raise DataError(message(url, f"the download took over {LIMIT:,.0f} seconds", hint=AGAIN))


def _check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return
    raise DataError(
        message(printable(url), "this URL is not allowed: it is not https", expected="https://...")
    )


class _SafeRedirect(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only if _check_address() allows its URL."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        fp.close()  # otherwise urllib would read the whole body of the redirect, however long or slow it is
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_SafeRedirect()]
    if urllib.parse.urlsplit(url).hostname in LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


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
