"""Find image files by names, folders and patterns; compute image ids for COCO results from file names."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from regard.data.images.caption_files import SUFFIXES, warn_skipped
from regard.errors import DataError, message, shown

__all__ = ["coco_image_id", "list_images"]

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
