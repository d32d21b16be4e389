# mypy: disable-error-code="no-untyped-def"
"""Collect the outputs of a beam search in one kernel: a program for each slot.

BeamSlots stores the tokens of all beams once, as a tree. The kernel selects the outputs of a slot and follows
the parents of their tokens back to the first step, as BeamSlots.results() does with NumPy on a CPU. So the
host copies only the outputs, not the tree.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from regard.kernels.search.beam import sortable

__all__ = ["HostBuffer", "Paths", "follow_paths"]

MOST = 32
"""The largest beam size, and the largest number of outputs of a slot, that the kernel supports."""


class HostBuffer:
    """Memory on the host to which the outputs are copied. A BeamSlots keeps it and reuses it.

    It is pinned, so that the copy is asynchronous: the host can do other work until the kernels are done.

    copied: an event that is recorded after the copy; None in the interpreter, which has no device.
    """

    def __init__(self, size: int, pinned: bool):
        self.tensor = torch.empty(size, dtype=torch.int32, pin_memory=pinned)
        self.array: NDArray[np.int32] = self.tensor.numpy()
        self.copied = torch.cuda.Event() if pinned else None

    def copy(self, found: Tensor) -> None:
        """Copy a tensor from the device, after the work that was launched before."""
        self.tensor[: len(found)].copy_(found, non_blocking=True)
        if self.copied is not None:
            self.copied.record()

    def wait(self) -> None:
        """Wait until the last tensor is copied."""
        if self.copied is not None:
            self.copied.synchronize()


def copied_to_host(buffers: list[HostBuffer], number: int, found: Tensor) -> HostBuffer:
    """Copy a tensor to buffers[number], and return this buffer. It is replaced if it is too small."""
    if number == len(buffers) or len(buffers[number].array) < len(found):
        buffers[number : number + 1] = [HostBuffer(len(found), found.is_cuda)]
    buffers[number].copy(found)
    return buffers[number]


class Paths:
    """The N outputs of b slots. An output has at most L tokens, with EOS.

    The arrays are views of buffers that the next call of follow_paths() overwrites. Before they are read, the
    host must wait for the device: wait().

    tokens, scores: (b, N, L), token ids and log-probabilities, padded with 0.
    lengths: (b, N), the number of tokens; 0 for outputs that do not exist.
    ranking, sums, generated: rows of the tensors pool_ranking, sums and count of BeamSlots.
    done: (b,), whether the slot is done. The other arrays have no defined values for slots that are not.
    readers: (b, N, L), int32, on the device: the beam that generated each token; 0 for padding.
    weights: (b, N, L, X, H, S), on the device: the attention weights, if they were requested.
    aligned: (b, N, L), the alignments of copy_and_align(), if they were requested. The device computes them
        while the host reads the outputs: see alignments().
    """

    def __init__(
        self,
        buffer: HostBuffer,
        sizes: tuple[int, int, int, int],
        readers: Tensor,
        weights: Tensor | None = None,
        alignments: HostBuffer | None = None,
    ):
        """buffer, alignments: copies of the results of the kernels; sizes: b, N, the beam size and L."""
        rows, best, beams, length = sizes
        self.buffer, self.alignment_buffer, array = buffer, alignments, buffer.array
        self.readers, self.weights, shape = readers, weights, (rows, best, length)
        part, few = rows * best * length, rows * best
        self.tokens = array[:part].reshape(shape)
        real = array.view(np.float32)
        self.scores = real[part : 2 * part].reshape(shape)
        at = 2 * part
        self.lengths = array[at : at + few].reshape(rows, best)
        self.ranking = real[at + few : at + 2 * few].reshape(rows, best)
        at += 2 * few
        self.sums = real[at : at + rows * beams].reshape(rows, beams)
        at += rows * beams
        self.generated, self.done = array[at : at + rows], array[at + rows : at + 2 * rows]
        self.aligned = None if alignments is None else alignments.array[:part].reshape(shape)

    def wait(self) -> list[int]:
        """Wait for the outputs; return whether each slot is done."""
        self.buffer.wait()
        done: list[int] = self.done.tolist()
        return done

    def alignments(self, length: int) -> NDArray[np.int32]:
        """Wait for the alignments; return a copy of those of the first `length` tokens."""
        assert self.alignment_buffer is not None and self.aligned is not None
        self.alignment_buffer.wait()
        return self.aligned[..., :length].copy()  # because the buffer is reused

    def select(self, places: list[int]) -> Paths:
        """Return the outputs of some of the slots, by their places in these arrays."""
        if self.alignment_buffer is not None:
            self.alignment_buffer.wait()
        # Pinned, so that the copy of the indices does not wait for the device.
        index = torch.tensor(places, pin_memory=self.readers.is_cuda)
        index = index.to(self.readers.device, non_blocking=True)
        other = object.__new__(Paths)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                value = value.index_select(0, index)
            elif isinstance(value, np.ndarray):
                value = value[places]
            setattr(other, name, value)
        return other


@triton.jit(do_not_specialize=["rows", "longest", "length"])
def follow_paths_kernel(
    slots, tokens, links, token_scores, sums, count, done, pool_ranking, pool_steps, pool_beams, pool_scores,
    found, readers, rows, longest, length, end,
    BEAMS: tl.constexpr, BEST: tl.constexpr, BEAMS_UP: tl.constexpr, BEST_UP: tl.constexpr,
):  # fmt: skip
    """Collect the outputs of one slot, if it is done: those of its pool, or its beams if the pool is empty.

    slots: reads (rows,). The names from `tokens` to `pool_scores` are those of BeamSlots.
    found: writes int32 numbers: tokens, scores (as bits), lengths, ranking (as bits), sums (as bits),
        count and done, one after the other; see Paths.
    readers: writes (rows, BEST, longest + 1), int32.
    longest: the largest number of tokens before EOS. length: the number of positions of `tokens`.
    end: the id of EOS.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    rank, own = tl.arange(0, BEST_UP), tl.arange(0, BEAMS_UP)
    used = rank < BEST
    pool = slot * BEST + rank
    ranking = tl.load(pool_ranking + pool, mask=used, other=-float("inf"))
    steps = tl.load(pool_steps + pool, mask=used, other=0).to(tl.int32)
    beam = tl.load(pool_beams + pool, mask=used, other=0).to(tl.int32)
    end_score = tl.load(pool_scores + pool, mask=used, other=0.0)
    sum = tl.load(sums + slot * BEAMS + own, mask=own < BEAMS, other=-float("inf"))
    generated = tl.load(count + slot).to(tl.int32)
    is_done = tl.load(done + slot).to(tl.int32)

    # If the pool is empty, the outputs are the beams, the most probable first.
    none = tl.sum(tl.where(rank == 0, ranking, 0.0), 0) == -float("inf")
    key = sortable(sum, own)
    order = tl.sum((key[None, :] > key[:, None]).to(tl.int32), 1)
    chosen = (order[None, :] == rank[:, None]) & (own < BEAMS)[None, :]
    exists = tl.max((chosen & (sum != -float("inf"))[None, :]).to(tl.int32), 1) > 0
    exists = tl.where(none, exists, ranking != -float("inf")) | (rank == 0)
    exists = exists & used
    beam = tl.where(none, tl.sum(tl.where(chosen, own[None, :], 0), 1), beam)
    steps = tl.where(exists, tl.where(none, generated, steps), 0)
    ended = exists & (none == 0)

    width = longest + 1
    part = rows.to(tl.int64) * BEST * width
    first = (row * BEST + rank) * width
    for back in range(width * is_done):
        at = longest - back
        inside = at < steps
        place = (slot * length + at) * BEAMS + beam
        token = tl.load(tokens + place, mask=inside, other=0).to(tl.int32)
        score = tl.load(token_scores + place, mask=inside, other=0.0)
        reader = tl.load(links + place, mask=inside, other=0).to(tl.int32)
        is_end = ended & (at == steps)
        token = tl.where(is_end, end, token)
        score = tl.where(is_end, end_score, score)
        tl.store(found + first + at, token, mask=used)
        tl.store(found + part + first + at, score.to(tl.int32, bitcast=True), mask=used)
        tl.store(readers + first + at, tl.where(is_end, beam, reader), mask=used)
        beam = tl.where(inside, reader, beam)

    rest = found + 2 * part
    tl.store(rest + row * BEST + rank, steps + ended.to(tl.int32), mask=used)
    rest += rows * BEST
    tl.store(rest + row * BEST + rank, ranking.to(tl.int32, bitcast=True), mask=used)
    rest += rows * BEST
    tl.store(rest + row * BEAMS + own, sum.to(tl.int32, bitcast=True), mask=own < BEAMS)
    tl.store(rest + rows * BEAMS + row, generated)
    tl.store(rest + rows * BEAMS + rows + row, is_done)


def follow_paths(
    search: Any, slots: Tensor, longest: int, end: int, sources: tuple[Tensor, Tensor] | None = None
) -> Paths | None:
    """Collect the outputs of some slots of a BeamSlots; return None if the kernel does not support its sizes.

    The host does not wait for the device here: see Paths.wait().

    slots: (b,).
    longest: no slot has generated more tokens than this.
    end: the id of EOS.
    sources: the sentence of each slot, (b,), and the number of source tokens of each sentence. If given, the
        device first copies the outputs to the host. Then it copies their attention weights and computes the
        alignments, while the host reads the outputs.
    """
    (_, length, beams), best, rows = search.tokens.shape, search.pool_ranking.shape[1], len(slots)
    if max(beams, best) > MOST:
        return None
    shape = rows, best, longest + 1
    part = rows * best * (longest + 1)
    size = 2 * part + rows * (2 * best + beams + 2)
    found = torch.empty(size, dtype=torch.int32, device=slots.device)
    readers = torch.empty(shape, dtype=torch.int32, device=slots.device)
    follow_paths_kernel[(rows,)](
        slots, search.tokens, search.links, search.token_scores, search.sums, search.count, search.done,
        search.pool_ranking, search.pool_steps, search.pool_beams, search.pool_scores, found,
        readers, rows, longest, length, end,
        BEAMS=beams, BEST=best, BEAMS_UP=triton.next_power_of_2(beams), BEST_UP=triton.next_power_of_2(best),
        num_warps=1,
    )  # fmt: skip
    buffers, sizes = search.host_buffers, (rows, best, beams, longest + 1)
    buffer = copied_to_host(buffers, 0, found)
    if sources is None:
        return Paths(buffer, sizes, readers)
    weights, aligned = search.decoder.attention(slots, readers, *sources, search.done)
    return Paths(buffer, sizes, readers, weights, copied_to_host(buffers, 1, aligned.flatten()))
