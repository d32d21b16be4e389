"""Unpack the text of a downloaded file, plain, gzip or zip, with a limit on its size."""

from __future__ import annotations

import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from regard.errors import DataError, message, printable, shown
from regard.files.atomic_io import naming_file, write_all

__all__ = ["digest", "unpack"]

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
