"""Tensor files: tensors in the safetensors format. A file is a length, a JSON header, and the data.

Files are read with the safetensors library, but written with tensor_blocks(), because the two write functions
of the library are not suitable. One of them copies all tensors. The other computes no hash; if it fails, it
does not report the error code of the operating system.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import DataError, message
from regard.files.untrusted import open_regular

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The name of each dtype in a safetensors file."""

NAMED = {name: dtype for dtype, name in DTYPES.items()}


class TensorInfo(NamedTuple):
    """The dtype and the shape of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def tensor_blocks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the content of a tensor file: the header, then each tensor.

    Tensors are copied only if they are on the GPU or not contiguous, and only one at a time. A tensor with
    two names (tied weights) is written twice. If a tensor is a view, only the elements of the view are
    written.

    >>> header, numbers = tensor_blocks({"halves": torch.tensor([0.5, 1.5])})
    >>> bytes(header)[8:].rstrip(), len(numbers)
    (b'{"halves":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8)
    """
    # Tensors with larger elements come first, so that every tensor is aligned to its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, begin = {}, 0
    for name in order:
        tensor = tensors[name]
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the dtype and the shape of each tensor in a file. Raise DataError if the header is damaged.

    Only the header is read, by the safetensors library: the tensors that it describes must fill the file, so
    that a damaged header cannot make the caller allocate too much memory.
    """
    try:
        # open_regular raises for symbolic links and FIFOs, which safe_open would follow or wait for.
        with open(path, "rb", opener=open_regular), safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        return {
            name: TensorInfo(NAMED[each.get_dtype()], tuple(each.get_shape()))
            for name, each in slices.items()
        }
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror or error}"
        raise DataError(message(str(path), problem)) from None
    except (SafetensorError, KeyError) as error:
        problem, hint = f"the header is damaged: {error}", "restore this file from a copy"
        raise DataError(message(str(path), problem, hint=hint)) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file into CPU memory. They stay valid if the file is deleted."""
    read_header(path)  # raises for symbolic links, FIFOs and damaged headers
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        hint = "restore this file from a copy"
        raise DataError(
            message(str(path), f"the file cannot be read as tensors: {error}", hint=hint)
        ) from None
