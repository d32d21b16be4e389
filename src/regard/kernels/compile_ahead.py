"""Compile the Triton kernels of training steps in several threads, before they are launched.

A kernel takes one to three seconds to compile, and the first training steps would compile one kernel after
the other. start_compiling() executes a training step in which each kernel is compiled instead of launched. So
the step does not wait for a kernel, and several kernels are compiled at the same time. Triton also stores
them in its cache on disk.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from regard.kernels import TRITON, interpreting

__all__ = ["compiled_launches", "start_compiling"]

THREADS = 8
"""Maximum number of kernels that are compiled at the same time."""

_compiling: list[int] = []
"""The threads inside compiled_launches(). Triton is patched while there are any."""

_lock = threading.Lock()


@contextmanager
def compiled_launches() -> Iterator[None]:
    """Inside the `with` block, a launch of a Triton kernel by this thread only compiles the kernel.

    So the results of kernels are undefined. The block ends when all kernels are compiled. Autograd runs the
    backward pass in this thread, too, so that its kernels are also compiled. Other threads launch kernels as
    usual.
    """
    from triton.runtime._async_compile import AsyncCompileMode
    from triton.runtime.jit import JITFunction

    owner, threads = threading.get_ident(), ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS))
    # An error of the compiler is raised again when the kernel is launched.
    with threads, AsyncCompileMode(threads, ignore_errors=True):
        with _lock:
            if not _compiling:
                JITFunction.run = _compiling_run(JITFunction.run)
            _compiling.append(owner)
        try:
            with torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            with _lock:
                _compiling.remove(owner)
                if not _compiling:
                    JITFunction.run = JITFunction.run.__wrapped__


def _compiling_run(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that launches a kernel by `launch`, or only compiles it for threads in _compiling."""

    @functools.wraps(launch)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() not in _compiling:
            return launch(self, *arguments, grid=grid, warmup=warmup, **options)
        launch(self, *arguments, grid=grid, warmup=True, **options)
        return None

    return run


def start_compiling(step: Callable[[], None]) -> Callable[[], None]:
    """Execute a function in a thread, with compiled_launches(). Return a function that waits for the thread.

    step: a function that executes a training step whose results are not used. If it raises an error, the
        error is ignored, and the training compiles the remaining kernels when it launches them.
    """
    if not TRITON or interpreting():
        return lambda: None

    def compile_kernels() -> None:
        try:
            with compiled_launches():
                step()
        except Exception:  # if it is an error of the model, the training raises it again
            return

    thread = threading.Thread(target=compile_kernels, daemon=True, name="compile kernels")
    thread.start()
    return thread.join
