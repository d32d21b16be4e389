"""Fetch: known public sets, from the network or from a folder, checked, with their licence said."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.data.download import download
from regard.data.pair_checks import Choices
from regard.data.pairs import Pairs, read_pairs
from regard.data.progress_bar import advancing
from regard.data.public_datasets import SETS, Piece, PublicSet
from regard.data.unpack import digest, unpack
from regard.errors import DataError, UnknownName, message, shown
from regard.files.atomic_io import write_whole

__all__ = ["Fetched", "fetch"]

LARGEST = 1 << 30
"""Bytes that a file of an edition we do not know may unpack to."""


@dataclass(frozen=True)
class Fetched:
    """A public set that is here: its name, the folder with its files, and its parts to be read.

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
        """What it is, its licence and its home."""
        return SETS[self.name]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its parts: train, valid and test, or all."""
        return tuple(self.about.parts)

    def pairs(self, part: str, choices: Choices | None = None) -> Pairs:
        """The pairs of one part."""
        if part not in self.about.parts:
            raise UnknownName(f"part of {self.name}", part, self.about.parts)
        how: dict[str, Any] = dict(self.about.parts[part])
        how |= {name: self.folder / how[name] for name in ("source", "target", "tsv") if name in how}
        return read_pairs(**how, choices=choices)


def fetch(
    name: str,
    folder: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    edition: str = "known",
) -> Fetched:
    """Bring a known public set into a folder, and say its licence; what is there already is only checked.

    name: one of SETS. source: a folder that has the files, packed or not, instead of the network. edition:
    "any" accepts another edition of a set that its maker changes from time to time; without it, text that is
    not the one we know is refused, as it always is for the other sets.

    >>> fetch("multi40k-en-de", "data")
    Traceback (most recent call last):
    regard.errors.UnknownName: unknown public set 'multi40k-en-de'; did you mean 'multi30k-en-de'?
    known: multi30k-en-de, multi30k-en-fr, tatoeba-en-de, tatoeba-en-ko
    """
    if name not in SETS:
        raise UnknownName("public set", name, SETS)
    if edition not in ("any", "known"):
        raise UnknownName("edition", edition, ("any", "known"))
    known = SETS[name]
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    said = f"{name}: {known.about}\nlicence: {known.licence}\nfrom: {known.home}"
    console.print(said)
    into = Path(folder) / known.folder
    try:
        into.mkdir(parents=True, exist_ok=True)
        write_whole(into / f"{name}.licence.txt", f"{said}\n".encode())
        with advancing(f"fetching {name}", sum(piece.size for piece in known.pieces)) as reached:
            done = 0
            for piece in known.pieces:
                _bring(
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
        raise DataError(message(place, f"cannot be used ({error.strerror or error})")) from None
    return Fetched(name, into)


def _after(done: int, reached: Callable[[int], None]) -> Callable[[int], None]:
    return lambda more: reached(done + more)


def _bring(
    name: str, piece: Piece, into: Path, source: Path | None, edition: str, reached: Callable[[int], None]
) -> None:
    """One file that is not there yet: fetched or found, unpacked beside its place, checked, moved into it."""
    place, accept_any = into / piece.name, edition == "any" and SETS[name].editions
    if place.is_file() and (accept_any or digest(place) == piece.sha256):
        return
    most = LARGEST if SETS[name].editions else piece.size
    packed = into / f"{piece.name}.packed"
    if source is None:
        download(piece.url, packed, most + (1 << 16), reached)
    found = packed if source is None else _found(name, piece, source)
    fresh = into / f"{piece.name}.unpacked"
    try:
        if unpack(found, fresh, piece.member, most) == piece.sha256 or accept_any:
            os.replace(fresh, place)
            return
    finally:
        fresh.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
    problem = "the text is not the one that is known by its SHA-256"
    hint = "the file may be damaged: try again, or another source"
    if SETS[name].editions:
        problem = "this is another edition than the one we know: results will not be the published ones"
        hint = f'fetch("{name}", ..., edition="any") takes it all the same'
    raise DataError(message(shown(found) if source else piece.url, problem, hint=hint))


def _found(name: str, piece: Piece, source: Path) -> Path:
    """The file in a folder, or in the set's folder inside it: under our name or its own, packed or not."""
    own = [piece.name, piece.member] if piece.member else [piece.name]
    archive = Path(urllib.parse.urlsplit(piece.url).path).name
    names = list(dict.fromkeys([*(f"{each}{end}" for each in own for end in ("", ".gz")), archive]))
    for folder in (source, source / SETS[name].folder):
        for each in names:
            if (folder / each).is_file():
                return folder / each
    raise DataError(
        message(shown(source), f"has no file for {piece.name}", expected=f"one of {', '.join(names)}")
    )
