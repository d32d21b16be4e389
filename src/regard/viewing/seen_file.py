"""A Seen in a file: a length, a header in JSON, then the numbers, as safetensors lays them out.

Any reader of safetensors can open it. It is read and written here, so that drawing needs numpy alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from regard.errors import DataError, RegardError, message
from regard.viewing.pooled import Pooled
from regard.viewing.writing import write_whole

if TYPE_CHECKING:
    from regard.viewing.seen import Seen

__all__ = ["load_seen", "save_seen"]

VERSION = 1
DTYPES = {"F32": "<f4", "I32": "<i4"}
SITE = ("weights", "values")
LONG = ("keys", "weights", "maxima", "means")


def save_seen(seen: Seen, path: str | Path) -> None:
    """Write a Seen to a file, whole or not at all."""
    arrays = {
        f"sites.{place}.{name}": getattr(site, name) for place, site in enumerate(seen.sites) for name in SITE
    }
    arrays |= {
        f"long.{place}.{name}": getattr(site, name) for place, site in enumerate(seen.long) for name in LONG
    }
    told = {name: getattr(seen, name) for name in ("source", "target", "source_words", "target_words")}
    told |= {name: getattr(seen, name) for name in ("title", "notes", "score")}
    told["sites"] = [
        {name: getattr(site, name) for name in ("name", "rows", "columns", "row_words", "column_words")}
        for site in seen.sites
    ]
    told["long"] = [
        {name: getattr(site, name) for name in ("name", "rows", "columns", "whole")} for site in seen.long
    ]
    metadata = {"format": "regard.seen", "version": str(VERSION), "seen": json.dumps(told)}
    header: dict[str, Any] = {"__metadata__": metadata}
    content, begin = [], 0
    for name, array in arrays.items():
        if array is None:
            continue
        dtype = "I32" if array.dtype.kind == "i" else "F32"
        data = numpy.ascontiguousarray(array, DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
        content.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_whole(Path(path), b"".join([len(text).to_bytes(8, "little"), text, *content]))


def load_seen(path: str | Path) -> Seen:
    """Read a Seen from a file; raises where it is not one."""
    from regard.viewing.seen import Seen, Site

    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(message(str(path), f"cannot be read: {error.strerror}")) from None
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__")
        told = json.loads(metadata["seen"])
        arrays: dict[str, Any] = {
            name: _array(content, 8 + length, **about) for name, about in header.items()
        }
        sites = [
            Site(
                **about, weights=arrays[f"sites.{place}.weights"], values=arrays.get(f"sites.{place}.values")
            )
            for place, about in enumerate(told.pop("sites"))
        ]
        long = [
            Pooled(
                **{name: arrays[f"long.{place}.{name}"] for name in LONG},
                rows=tuple(about.pop("rows")),
                columns=tuple(about.pop("columns")),
                **about,
            )
            for place, about in enumerate(told.pop("long"))
        ]
        return Seen(tuple(sites), **told, long=tuple(long))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RegardError) as error:
        problem = "this is not a file of what a model looked at, or it is damaged"
        hint = f"it is written by Seen.save() ({type(error).__name__})"
        raise DataError(message(str(path), problem, hint=hint)) from None


def _array(content: bytes, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    begin, end = data_offsets
    kind = numpy.dtype(DTYPES[dtype])
    if not 0 <= begin <= end <= len(content) - start or end - begin != math.prod(shape) * kind.itemsize:
        raise ValueError("a place outside the file")
    return numpy.frombuffer(content, kind, (end - begin) // kind.itemsize, start + begin).reshape(shape)
