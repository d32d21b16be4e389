"""NumPy arrays and metadata in one file, in the safetensors format: a length, a JSON header, the data.

Any reader of safetensors can open the file. It is read and written here, so that drawing needs only NumPy.
Reading never runs code from a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from regard.errors import DataError, message
from regard.files.atomic_io import write_whole
from regard.files.untrusted import LIMITS, parse_json, read_limited

__all__ = ["load_arrays", "save_arrays"]

VERSION = "1"
DTYPES = {"F32": "<f4", "I32": "<i4"}


def save_arrays(
    path: str | Path, kind: str, told: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write float32 and int32 arrays and metadata atomically.

    kind: the kind of file, which load_arrays() checks. told: the metadata, as JSON values.
    """
    metadata = {"format": kind, "version": VERSION, "told": json.dumps(told)}
    header: dict[str, Any] = {"__metadata__": metadata}
    content, begin = [], 0
    for name, array in arrays.items():
        dtype = "I32" if array.dtype.kind == "i" else "F32"
        data = numpy.ascontiguousarray(array, DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
        content.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_whole(Path(path), b"".join([len(text).to_bytes(8, "little"), text, *content]))


def load_arrays(path: str | Path, kind: str, writer: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the metadata and the arrays that save_arrays() wrote.

    Raises DataError if the file is damaged or of another kind. writer: the function that writes such files,
    for the hint.
    """
    try:
        content = read_limited(path, "seen", named=True)
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    try:
        length = int.from_bytes(content[:8], "little")
        if length > min(len(content) - 8, LIMITS["seen header"]):
            raise ValueError("the header is larger than the file")
        header = parse_json(content[8 : 8 + length])
        metadata = header.pop("__metadata__")
        if (metadata["format"], metadata["version"]) != (kind, VERSION):
            raise ValueError("another kind of file")
        arrays = {name: _array(content, 8 + length, **about) for name, about in header.items()}
        return dict(parse_json(metadata["told"])), arrays
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        problem = f"the file is damaged, or not of the kind {kind}"
        hint = f"such files are written by {writer} ({type(error).__name__})"
        raise DataError(message(str(path), problem, hint=hint)) from None


def _array(content: bytes, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    begin, end = data_offsets
    kind = numpy.dtype(DTYPES[dtype])
    if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise ValueError("invalid shape")
    if not 0 <= begin <= end <= len(content) - start or end - begin != math.prod(shape) * kind.itemsize:
        raise ValueError("data outside the file")
    return numpy.frombuffer(content, kind, (end - begin) // kind.itemsize, start + begin).reshape(shape)
