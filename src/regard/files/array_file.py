"""NumPy arrays and metadata in one safetensors file.

The format contains only data, so no code runs when a file is read. PyTorch is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from regard.errors import DataError, message
from regard.files.atomic_io import write_whole
from regard.files.untrusted import LIMITS, parse_json, read_limited

VERSION = "1"
METADATA = "told"
"""The only metadata key of the file; its value is JSON with all metadata.

With several keys, equal content could give different files, because safetensors writes the keys in random
order.
"""


def save_arrays(
    path: str | Path, kind: str, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write arrays and metadata to a file, atomically.

    kind: a name for this kind of file. load_arrays() raises an error if it expects another kind.
    metadata: values that can be written as JSON.
    arrays: the arrays by name. Integer arrays are stored as int32, all other arrays as float32.
    """
    content = {
        name: numpy.ascontiguousarray(array, "<i4" if array.dtype.kind == "i" else "<f4")
        for name, array in arrays.items()
    }
    text = json.dumps({"format": kind, "version": VERSION, **metadata})
    write_whole(Path(path), save(content, {METADATA: text}))


def load_arrays(path: str | Path, kind: str, writer: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the metadata and the arrays that save_arrays() wrote.

    Raise DataError if the file is damaged, or if it is not of the given kind.

    kind: the `kind` that was passed to save_arrays().
    writer: name of the function that writes files of this kind, for the hint of the DataError.
    """
    try:
        content = read_limited(path, "seen", named=True)
    except OSError as error:
        raise DataError(message(str(path), f"the file cannot be read: {error.strerror}")) from None
    try:
        length = int.from_bytes(content[:8], "little")
        if length > LIMITS["seen header"]:
            raise ValueError("the header is too large")
        arrays = load(content)
        if not all(array.dtype in ("<f4", "<i4") for array in arrays.values()):
            raise ValueError("an array has a dtype other than float32 and int32")
        header = parse_json(content[8 : 8 + length])["__metadata__"]
        # Earlier versions of Regard wrote the format and its version as separate header keys. Now they are in
        # the JSON text in header[METADATA]. The merged dict has them in both cases.
        metadata = header | parse_json(header.pop(METADATA))
        if (metadata.pop("format"), metadata.pop("version")) != (kind, VERSION):
            raise ValueError("the file is of another kind")
        return metadata, arrays
    except (AttributeError, KeyError, OverflowError, SafetensorError, TypeError, ValueError) as error:
        problem = f"the file is damaged, or it is not a {Path(kind).suffix} file ({type(error).__name__})"
        hint = f"use a file that {writer} wrote"
        raise DataError(message(str(path), problem, hint=hint)) from None
