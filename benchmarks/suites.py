"""The benchmark suites: the cases of each kind of machine, by name. To add a case, add a line here."""

from __future__ import annotations

from collections.abc import Callable

import regard
from benchmarks.additive import CASES, Shape, additive_case
from benchmarks.cases import Case
from benchmarks.dot import Heads, dot_case, masked_case
from benchmarks.lengths import additive_lengths, dot_lengths
from benchmarks.looks import look_case

__all__ = ["SUITES"]

GPU: dict[str, Callable[[], Case]] = {
    **{name: lambda shape=shape: additive_case(shape) for name, shape in CASES.items() if shape.plain},
    # With masks and other scales, torch.compile runs only if time is left: no target refers to it.
    **{
        name: lambda shape=shape: additive_case(shape, compiled=(2, 2))
        for name, shape in CASES.items()
        if not shape.plain
    },
    "additive-16384": lambda: additive_case(Shape(1, 16384, 16384, 128), ("bfloat16",), (2,)),
    "dot-1024": lambda: dot_case(Heads(16, 16, 1024, 64, "causal")),
    "dot-4096": lambda: dot_case(Heads(4, 16, 4096, 128), flex=1),
    "dot-16384": lambda: dot_case(Heads(1, 16, 16384, 128, "causal")),
    "window-16384": lambda: masked_case(Heads(1, 16, 16384, 64, "window", 1024)),
    "documents-16384": lambda: masked_case(Heads(1, 16, 16384, 64, "documents", 2048)),
    "window-4096": lambda: masked_case(Heads(1, 16, 4096, 64, "window", 1024)),
    "looks-4096": lambda: look_case(Heads(4, 16, 4096, 128)),
    "additive-lengths": additive_lengths,
    "dot-lengths": dot_lengths,
}

CPU: dict[str, Callable[[], Case]] = {
    "additive-50": lambda: additive_case(Shape(32, 50, 50, 512), ("float32",), (1,), "cpu", "auto"),
    "look-8192": lambda: look_case(
        Heads(1, 8, 8192, 64, "causal"),
        "cpu",
        "float32",
        regard.Look(entropy=True, alignment=True, top=8, mass=True),
        limited_by="",
    ),
}

SUITES = {"gpu": GPU, "cpu": CPU}
