"""The public datasets that fetch() knows: their URLs, contents and licences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SETS", "Piece", "PublicSet"]


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
