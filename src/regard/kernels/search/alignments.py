# mypy: disable-error-code="no-untyped-def"
"""Copy the attention weights of the outputs of a search, and align their tokens, in one kernel.

The weights are stored by step and beam. The outputs need some of them, by output and token. While a program
copies the weights of a token, it also finds the source token with the highest mean weight, so that the
weights are read only once.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["copy_and_align"]

HEADS, KEYS = 16, 256
"""The largest tile of weights that a program loads at once: number of heads, and of source tokens."""


@triton.jit(do_not_specialize=["outputs", "steps", "width", "length", "beams"])
def copy_and_align_kernel(
    looks, slots, readers, sentences, lengths, done, copies, aligned, outputs, steps, width, length, beams,
    heads, keys, HEADS: tl.constexpr, KEYS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Copy the weights of one token of an output, and find the source token with the highest sum of weights.

    looks: reads (any, length, beams, heads, keys).
    slots, sentences: read (b,), an index of `looks` and an index of `lengths`.
    readers: reads (b, outputs, width), of which `steps` columns are used.
    lengths: reads (any,), the number of source tokens.
    done: reads (any,), whether the outputs of a slot are copied. If ALL is true, all are.
    copies: writes (b, outputs, steps, heads, keys). aligned: writes (b, outputs, steps), int32.
    """
    token = tl.program_id(0).to(tl.int64)
    output, step = token // steps, token % steps
    place = output // outputs
    slot = tl.load(slots + place)
    stop = keys
    if not ALL:
        stop = tl.where(tl.load(done + slot), keys, 0)
    reader = tl.load(readers + output * width + step)
    end = tl.load(lengths + tl.load(sentences + place))
    source = looks + ((slot * length + step) * beams + reader) * heads * keys
    target = copies + token * heads * keys
    best, index = tl.full([], -1.0, tl.float32), tl.zeros([], tl.int32)
    for first in range(0, stop, KEYS):
        column = first + tl.arange(0, KEYS)
        total = tl.zeros([KEYS], tl.float32)
        for head in range(0, heads, HEADS):
            number = head + tl.arange(0, HEADS)
            at = number[:, None] * keys + column[None, :]
            inside = (number < heads)[:, None] & (column < keys)[None, :]
            weight = tl.load(source + at, mask=inside, other=0.0)
            tl.store(target + at, weight, mask=inside)
            total += tl.sum(weight.to(tl.float32), 0)
        # The columns after the end of a source may contain weights of an earlier sentence.
        total = tl.where(column < end, total, -1.0)
        highest = tl.max(total, 0)
        index = tl.where(highest > best, first + tl.argmax(total, 0), index)
        best = tl.maximum(best, highest)
    tl.store(aligned + token, index)


def copy_and_align(
    looks: Tensor,
    slots: Tensor,
    readers: Tensor,
    sentences: Tensor,
    lengths: Tensor,
    done: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a copy of the attention weights of outputs, (b, N, T, X, H, S), and their alignments, (b, N, T).

    looks: (slots, L, beams, X, H, S), contiguous.
    slots: (b,), the slot of the outputs.
    readers: (b, N, T), int32, the beam that generated each token.
    sentences: (b,), the index of `lengths` for each slot.
    lengths: the number of source tokens of each sentence.
    done: (slots,), the results of slots for which it is False are not defined. None: all are defined.

    The alignment of a token is the index of the source token with the highest mean weight over all sites and
    heads, int32.
    """
    _, length, beams, sites, heads, keys = looks.shape
    if readers.stride(2) != 1 or readers.stride(0) != readers.shape[1] * readers.stride(1):
        readers = readers.contiguous()
    copies = looks.new_empty(*readers.shape, sites, heads, keys)
    aligned = torch.empty(readers.shape, dtype=torch.int32, device=looks.device)
    rows = sites * heads
    copy_and_align_kernel[(aligned.numel(),)](
        looks, slots, readers, sentences, lengths, slots if done is None else done, copies, aligned,
        *readers.shape[1:], readers.stride(1), length, beams, rows, keys,
        HEADS=min(HEADS, triton.next_power_of_2(rows)), KEYS=min(KEYS, triton.next_power_of_2(keys)),
        ALL=done is None, num_warps=2,
    )  # fmt: skip
    return copies, aligned
