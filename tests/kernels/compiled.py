"""Compile what a call would launch for Hopper, without a device: the interpreter takes what the compiler does
not. test_compiling.py runs this file in a process of its own; it prints each kernel and how large it is."""

from __future__ import annotations

import re
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from regard.kernels import launch


class Hopper:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiling(kernel: JITFunction, grid: tuple[int, ...]) -> Any:
    """What stands for kernel[grid]: it compiles, and launches nothing."""

    def compile_only(*given: Any, **named: Any) -> None:
        made = kernel.run(*given, grid=grid, warmup=True, **named)
        # Plain min and max answer with the other of a number and what is none.
        assert not re.search(r"\bmin(\.ftz)?\.f32", made.asm["ptx"]), kernel.__name__
        print(kernel.__name__, len(made.asm["cubin"]))

    return compile_only


def main() -> None:
    """Every way that a shape can go, forward and backward, in each dtype, with masks and without."""
    driver.set_active(Hopper())
    JITFunction.__getitem__ = compiling
    launch.processors = lambda device: 132
    from regard.kernels.additive import additive_backward, additive_forward

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
        output, _, *held = additive_forward(query, key, value, vector, *sight, True)
        additive_backward(torch.zeros_like(output), query, key, value, vector, *held, *sight, True)


if __name__ == "__main__":
    main()
