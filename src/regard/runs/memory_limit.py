"""The limit of the address space of this process, which `ulimit -v` sets."""

from __future__ import annotations

from regard.errors import ArgumentError, message

try:  # here and not in memory_limit(): when memory is used up, the import would fail
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

LEAST = 10**9
"""Bytes that PyTorch needs for one thread. With less, libgomp ends the process when it starts a thread."""


def memory_limit() -> int | None:
    """Return the limit in bytes, or None if there is no limit."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_memory_limit() -> None:
    """Raise ArgumentError if the limit is too small for PyTorch."""
    limit = memory_limit()
    if limit is not None and limit < LEAST:
        problem = f"the memory of this process is limited to {_megabytes(limit)}"
        hint = "increase the limit: ulimit -v unlimited"
        raise ArgumentError(message("regard", problem, expected=f"at least {_megabytes(LEAST)}", hint=hint))


def memory_limit_hint(error: BaseException) -> str:
    """Return a hint for an error that the limit may have caused. "" without a limit, and for other errors."""
    limit = memory_limit()
    if limit is None or not isinstance(error, MemoryError | ImportError | OSError | RuntimeError):
        return ""
    return f"hint: the memory of this process is limited to {_megabytes(limit)} (ulimit -v)"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
