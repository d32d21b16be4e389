"""Compile the kernels of attention and looking for Hopper, without a GPU: the interpreter accepts code that
the compiler rejects. test_compiling.py runs this file in a subprocess. It prints the name and the size of
each kernel."""

from __future__ import annotations

import re
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from regard.kernels import launch


class Hopper:
    """The part of a Triton driver that compilation needs."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiling(kernel: JITFunction, grid: tuple[int, ...]) -> Any:
    """A replacement for kernel[grid] that compiles the kernel but does not launch it."""

    def compile_only(*arguments: Any, **options: Any) -> None:
        compiled = kernel.run(*arguments, grid=grid, warmup=True, **options)
        # Plain PTX min and max drop NaN: min(x, NaN) is x.
        assert not re.search(r"\bmin(\.ftz)?\.f32", compiled.asm["ptx"]), kernel.__name__
        print(kernel.__name__, len(compiled.asm["cubin"]))

    return compile_only


def main() -> None:
    """Compile the kernels for every kind of shape and dtype, forward and backward, with and without masks."""
    driver.set_active(Hopper())
    JITFunction.__getitem__ = compiling
    launch.processors = lambda device: 132
    from regard.kernels.additive.operators import additive_backward, additive_forward

    lengths, documents = torch.tensor([30, 5]), torch.zeros(2, 2048, dtype=torch.long)
    masked, plain = (lengths, documents, documents, 1, 7, 0, 0.5), (None, None, None, 0, None, None, 1.0)
    for queries, keys, width, depth, heads, dtype, sight in (
        (33, 40, 64, 64, (2, 1), torch.float32, masked),
        (64, 64, 250, 96, (1, 1), torch.bfloat16, plain),
        (1024, 1024, 64, 64, (1, 1), torch.bfloat16, masked),
        (1024, 1024, 64, 300, (1, 1), torch.float16, plain),
        (1024, 1024, 64, 128, (1, 1), torch.float32, plain),
        (130, 129, 130, 66, (2, 1), torch.float32, masked),
        (130, 129, 130, 66, (1, 1), torch.bfloat16, plain),
        (1, 50, 250, 96, (1, 1), torch.bfloat16, masked),
        (1, 50, 250, 96, (1, 1), torch.float32, plain),
    ):
        query, key, value = (
            torch.zeros(2, heads[i > 0], size, wide, dtype=dtype)
            for i, (size, wide) in enumerate([(queries, width), (keys, width), (keys, depth)])
        )
        vector = torch.zeros(1, width, dtype=dtype)
        extra = (torch.zeros(2, 1, 1, keys), torch.tensor([1]), 0.1) if sight is masked else (None, None, 0.0)
        output, _, *held = additive_forward(query, key, value, vector, *sight, True, *extra)
        inputs = (query, key, value, vector, *held, *sight, True, *extra, sight is masked)
        additive_backward(torch.zeros_like(output), *inputs)
    from regard.kernels.looking.measures import inner_look
    from regard.kernels.looking.top import inner_top

    no_mask = (None, None, None, None, None, 0, None, None, 0.5, 0.0, 1.0)
    for width, dtype in ((128, torch.bfloat16), (60, torch.float32)):
        query = torch.zeros(2, 2, 300, width, dtype=dtype)
        inner_look(query, query, torch.zeros(2, 2, 300), *no_mask, True, True, True, 0)
        inner_top(query, query, torch.zeros(2, 2, 300), *no_mask, 8)
        bias, table = torch.zeros(2, 1, 300, 300, dtype=dtype), torch.ones(1, 1, 300, 300, dtype=torch.bool)
        masks = bias, table, lengths, documents, documents, 1, 7, 0, 0.5, 30.0, 1.0
        inner_look(query, query[:, :1], torch.zeros(2, 2, 300), *masks, True, False, True, 64)
        inner_top(query, query[:, :1], torch.zeros(2, 2, 300), *masks, 5)
    compile_looks_for_hopper(lengths)
    compile_masked(lengths)


def compile_looks_for_hopper(lengths: torch.Tensor) -> None:
    """Compile the looking kernels with what they use on Hopper only: tensor descriptors, and assembly."""
    from regard.kernels.looking import measures

    measures.has_tma = lambda device: True
    for width, size, left in ((128, 300, None), (64, 300, 7), (64, 6000, None)):
        query = torch.zeros(2, 2, size, width, dtype=torch.bfloat16)
        mask = (None, None, lengths, None, None, 0, left, 0, 0.5, 0.0, 1.0)
        lse = torch.zeros(2, 2, size)
        measures.inner_look(query, query, lse, *mask, True, True, True, 0)


def compile_masked(lengths: torch.Tensor) -> None:
    """Compile the kernels of the backend `masked`, with each part of a mask."""
    from regard.kernels.inner import operators

    operators.processors = lambda device: 132
    for width, dtype, mask in (
        (64, torch.bfloat16, (lengths, 0, None, None)),
        (128, torch.float16, (lengths, 0, 7, 0)),
        (60, torch.float32, (None, 1, None, 0)),
    ):
        query, key, value = (torch.zeros(2, heads, 300, width, dtype=dtype) for heads in (2, 1, 1))
        output, lse = operators.forward(query, key, value, *mask, 0.5)
        operators.backward(output, query, key, value, *mask, 0.5, output, lse)


if __name__ == "__main__":
    main()
