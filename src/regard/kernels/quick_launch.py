"""Launch Triton kernels with less time on the host.

kernel[grid](...) binds and classifies all arguments in each call, which takes tens of microseconds. The
compiled kernel depends only on the dtype and alignment of tensors, on a few properties of integers, and on
compile-time arguments. quick_launch() keeps it for each combination of these, and launches it directly.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.recording import recorder, without_recording

__all__ = ["Run", "quick_launch"]

KEPT = 4096
"""Maximum number of kept kernels. When it is reached, all are removed."""


def quick_launch(kernel: Any) -> Any:
    """Decorate a kernel, above @triton.jit."""
    return _Quick(kernel)


class Run:
    """A kernel with its grid, which can be launched with other values and tensors.

    compiled: the compiled kernel; None in the interpreter. launch: launches it.
    """

    def __init__(self, compiled: Any, grid: tuple[int, ...], launch: Any = None):
        self.compiled, self.grid = compiled, grid
        self.launch = compiled[grid] if launch is None else launch


class _Quick:
    """A kernel whose compiled variants are kept. In Triton's interpreter, it is run as usual."""

    def __init__(self, kernel: Any):
        self.kernel, self.__name__ = kernel, kernel.__name__
        self.names: list[str] = kernel.arg_names
        self.interpreted = interpreting()
        self.constant = [] if self.interpreted else [parameter.is_constexpr for parameter in kernel.params]
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **named: Any) -> None:
            values = list(arguments)
            for name in self.names[len(values) :]:
                values.append(named[name])
            recording = recorder()
            if recording is not None:
                with without_recording():
                    run = self._run(grid, values, arguments, named)
                recording.launched(run, values)
            else:
                self._run(grid, values, arguments, named)

        return launch

    def _run(
        self, grid: tuple[int, ...], values: list[Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Run | None:
        """Launch the kernel. Return a Run that launches it again; None if this is not possible."""
        if self.interpreted:
            self.kernel[grid](*arguments, **named)
            return Run(None, grid, lambda *others, stream: self.kernel[grid](*others))
        options = [(name, value) for name, value in named.items() if name not in self.names]
        kinds = [
            value if constant else _kind(value) for value, constant in zip(values, self.constant, strict=True)
        ]
        key = (values[0].device, *kinds, *options)
        compiled = self.compiled.get(key)
        if compiled is not None:
            run = Run(compiled, (*grid, 1, 1)[:3])
            run.launch(*values)
            return run
        compiled = self.kernel[grid](*arguments, **named)
        if compiled is None:  # compiled without a launch
            return None
        if len(self.compiled) >= KEPT:
            self.compiled.clear()
        self.compiled[key] = compiled
        return Run(compiled, (*grid, 1, 1)[:3])


def _kind(value: Any) -> Any:
    """Return what the compiled kernel depends on, for an argument that is no compile-time argument.

    For an integer, Triton compiles other code if it is 1, a multiple of 16, or larger than 32 bits.
    """
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if type(value) is int:
        return value == 1, value % 16 == 0, -(1 << 31) <= value < 1 << 31
    return type(value)
