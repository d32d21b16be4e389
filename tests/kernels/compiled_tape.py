"""Compile the kernels of the neural Turing machine for Hopper, without a GPU, for test_compiling.py."""

from __future__ import annotations

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from regard.fast.recurrent.tape_steps import tape_layout
from regard.kernels.recurrent import turing_machine
from regard.layers.tape_heads import HeadLayout
from tests.kernels.compiled import Hopper, compiling

TAPES = 2


def main() -> None:
    """Compile both kernels for each way of addressing, for several heads, and for slots of size 1."""
    driver.set_active(Hopper())
    JITFunction.__getitem__ = compiling
    for heads, width, slots, addressing in (
        (1, 20, 128, "both"),
        (1, 20, 128, "content"),
        (1, 20, 128, "location"),
        (2, 20, 128, "both"),
        (1, 1, 2560, "both"),
    ):
        layout = HeadLayout(heads, heads, width, addressing)
        parts, reads = torch.zeros(TAPES, layout.size), torch.zeros(TAPES, heads * width)
        weights, memory = torch.zeros(TAPES, layout.heads, slots), torch.zeros(TAPES, slots, width)
        saved = memory, weights, weights, weights, weights
        own = tape_layout(layout)
        turing_machine.tape_step(own, parts, parts[0], parts, weights, *saved, memory, reads)
        turing_machine.tape_step_backward(own, parts, weights, *saved, reads, weights, memory, parts)


if __name__ == "__main__":
    main()
