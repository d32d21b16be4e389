"""keep_freed_memory(): let the C library keep freed memory for later tensors, which is faster."""

from __future__ import annotations

import ctypes
import functools
import platform

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt() in glibc."""

KEPT_BYTES, LARGEST_KEPT = 2**29, 2**25
"""At most KEPT_BYTES of freed memory are kept at the end of the heap. The memory of tensors of more than
LARGEST_KEPT bytes is always returned to the system."""


@functools.cache
def keep_freed_memory() -> bool:
    """Let malloc() keep freed memory, for the rest of the process. Return whether this worked.

    By default, glibc returns large blocks to the system when a tensor is freed. In every step of training or
    decoding on a CPU, the system then has to map and clear the same memory again, which took 7 % of the
    training time of a small model. Other C libraries are not changed.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(TRIM_THRESHOLD, KEPT_BYTES))
