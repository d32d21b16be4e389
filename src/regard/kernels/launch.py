"""How large tiles are and into how many parts work is cut: one small table, and the arithmetic around it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

__all__ = ["CHANGES", "LAUNCHES", "Launch", "Shape", "multiplies_tf32", "processors", "series_tiles"]

LINEAR = 1 << 22
"""So many scores (16 MiB) may stand at once however short the call."""

TIMES = 4
"""Longer ones may hold so many times as many as their queries and keys have numbers."""

MOST_PARTS = {"decode": 64, "short": 16, "middle": 16, "long": 16}
"""Into how many parts keys are cut at most: each has a result of its own until they are put together."""

MANY = 128
"""From so many rows on, the warps of a program share them, and the Fourier series is faster."""

SERIES = {"ROWS": 128, "COLUMNS": 64, "CHANNELS": 4, "num_warps": 8}
"""Tiles of the gradients as matrix products with the basis functions of the Fourier series: own rows, other
rows, channels of 32 basis functions. Chosen by timing on an H200."""

STAGE = 32 << 10
"""Bytes of gradients and basis functions for such a tile, of which up to three are loaded ahead."""

BASIS_ROOM = 512 << 20
"""Bytes that the basis functions of either side may take: so many channels are computed at once."""

FEW = 8
"""So many numbers are added up by all who need their sum; more are added up once."""

SPAN = 256
"""So many channels are prepared by one program."""


@dataclass(frozen=True)
class Launch:
    """rows, columns: a tile of scores, 4 x 4 of them a thread, and of their gradients; multiples of 16.
    lanes: where set, what there is of a tile is cut into pieces, programs of so many threads.
    group: how many channels share a reciprocal, 1, 2 or 4. unroll: how many such groups stand in the loop.
    read_rows, read_columns: a tile of scores that is turned to values. depth: how many channels of values are
    read at once. warps, fours: of the gradient kernels, and into how many groups of four rows they are shared
    out. registers: at most so many a thread of the query's gradient, so that four warps fit a scheduler.
    some, width: keys and channels where there is one query. fill: how many warps a multiprocessor should
    get."""

    rows: int
    columns: int
    group: int
    unroll: int
    read_rows: int
    read_columns: int
    depth: int
    warps: int
    fours: int = 1
    registers: int = 128
    some: int = 4
    width: int = 512
    fill: int = 16
    lanes: int | None = None

    @property
    def score_threads(self) -> int:
        """Threads of a program of scores."""
        return self.lanes or self.rows * self.columns // 16

    @property
    def score_registers(self) -> int | None:
        """At most so many a thread of a piece, so that ten pieces fit a multiprocessor at once."""
        return 96 if self.lanes else None

    @property
    def channels(self) -> int:
        """Channels of a program of the gradient kernels, four a thread."""
        return 128 * self.warps // self.fours


LAUNCHES: dict[str, Launch] = {
    "decode": Launch(
        rows=16, columns=32, group=2, unroll=2, read_rows=16, read_columns=64, depth=64, warps=4
    ),
    "short": Launch(rows=32, columns=32, group=4, unroll=2, read_rows=64, read_columns=64, depth=64, warps=1),
    "middle": Launch(
        rows=64, columns=64, group=4, unroll=1, read_rows=64, read_columns=64, depth=64, warps=4, fours=4
    ),
    "long": Launch(
        rows=64, columns=32, group=4, unroll=1, read_rows=32, read_columns=128, depth=128, warps=4, fours=4
    ),
}
"""By the class of the shape; chosen by timing on an H200."""

CHANGES: dict[tuple[str, str], dict[str, int]] = {
    # Three products are made of float32: of smaller tiles, and of one row by sums instead.
    ("decode", "float32"): {"read_rows": 1},
    ("short", "float32"): {"unroll": 1, "read_rows": 16},
    ("middle", "float32"): {"read_rows": 32, "read_columns": 32},
    ("long", "float32"): {"read_rows": 32, "read_columns": 32, "depth": 64},
    # Scores are held, so that tiles on the way back can be others.
    ("short", "back"): {"rows": 64, "columns": 64},
    ("decode", "back"): {"depth": 128},
    # Tiles are cut to what there is of rows and keys.
    ("short", "ragged"): {"rows": 64, "columns": 64, "unroll": 1, "lanes": 64},
}
"""What is otherwise, by the class of the shape: in float32, on the way back, and where tiles are not full."""


class Shape(NamedTuple):
    """The sizes of a call, and the type of its numbers. back: whether it is on its way back."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    depth: int
    dtype: torch.dtype = torch.float16
    back: bool = False

    @classmethod
    def of(cls, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, back: bool = False) -> Shape:
        """Of query (B, H, T, D), key (B, K, S, D) and value (B, K, S, E)."""
        batch, heads, queries, width = query.shape
        sizes = batch, heads, key.shape[1], queries, key.shape[2], width, value.shape[3]
        return cls(*sizes, dtype=value.dtype, back=back)

    @property
    def kind(self) -> str:
        """The class of the shape. decode: one query a sequence. long: T x S is more than the queries and keys
        it is made from; scores of some rows at a time are found, read and forgotten. short, middle: it is
        less, and scores are held; middle where there are MANY rows either way."""
        if self.queries == 1:
            return "decode"
        if self.queries * self.keys > (self.queries + self.keys) * self.width:
            return "long"
        return "short" if min(self.queries, self.keys) < MANY else "middle"

    @property
    def held(self) -> bool:
        """Whether its scores are held for the way back, should there be one."""
        return self.kind != "long"

    @property
    def launch(self) -> Launch:
        """Its line in the table, with what is otherwise."""
        found, kind = LAUNCHES[self.kind], self.kind
        if kind == "short" and self.ragged:
            found = replace(found, **CHANGES.get((kind, "ragged"), {}))
        if self.dtype == torch.float32:
            found = replace(found, **CHANGES.get((kind, "float32"), {}))
        return replace(found, **CHANGES.get((kind, "back"), {})) if self.back else found

    @property
    def ragged(self) -> bool:
        """Whether tiles of 32 x 32 hold a quarter more than its fours of rows and keys, 64 at a time."""
        fours = up(-(-self.queries // 4) * -(-self.keys // 4), 64)
        return 5 * 16 * fours <= 4 * up(self.queries, 32) * up(self.keys, 32)

    @property
    def series(self) -> bool:
        """Whether its gradients are matrix products by the Fourier series, which is faster for many rows."""
        return self.dtype == torch.bfloat16 and min(self.queries, self.keys) >= MANY

    @property
    def groups(self) -> int:
        """How many query heads share a key head."""
        return self.heads // self.key_heads

    @property
    def padded(self) -> int:
        """The width, rounded up to whole groups of channels."""
        return up(self.width, self.launch.group * self.launch.unroll)

    @property
    def pitch(self) -> int:
        """How far rows of exponentials are apart: a multiple of 16, which Triton sees."""
        return up(self.width, 16)

    @property
    def spans(self) -> int:
        """Into how many spans the channels are cut where they are prepared."""
        return -(-self.pitch // SPAN)

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles of scores a sequence has, down and across."""
        return -(-self.queries // self.launch.rows), -(-self.keys // self.launch.columns)

    @property
    def pieces(self) -> int:
        """How many programs a tile of scores is for at most."""
        down, across = min(self.queries, self.launch.rows), min(self.keys, self.launch.columns)
        return -(-(-(-down // 4) * -(-across // 4)) // self.launch.score_threads)

    @property
    def chunk(self) -> int:
        """How many rows may have their scores standing at once, in whole tiles; all if they are held."""
        if self.held:
            return self.queries
        sequences = self.batch * self.heads
        room = max(TIMES * sequences * (self.queries + self.keys) * self.width, LINEAR)
        rows = self.launch.rows
        return min(self.queries, max(rows, room // (sequences * self.keys) // rows * rows))

    def channel_parts(self, rows: int, device: torch.device) -> int:
        """Into how many parts the channels are cut, so that the scores of so many rows fill the device."""
        programs = self.batch * self.heads * -(-rows // self.launch.rows) * self.tiles[1] * self.pieces
        warps = max(1, programs * self.launch.score_threads // 32)
        wanted = -(-processors(device) * self.launch.fill // warps)
        allowed = (self.queries + self.keys) * self.width // max(rows * self.keys, 1)
        return max(1, min(wanted, allowed, -(-self.width // 64)))

    def key_parts(self, warps: int, tiles: int, device: torch.device) -> int:
        """Into how many parts so many tiles of keys are cut, so that so many warps a part fill the device."""
        return max(
            1, min(MOST_PARTS[self.kind], tiles, processors(device) * self.launch.fill // max(warps, 1))
        )


def up(number: int, multiple: int) -> int:
    """The number, rounded up."""
    return -(-number // multiple) * multiple


@functools.cache
def processors(device: torch.device) -> int:
    """How many multiprocessors the device has; none to fill where kernels are interpreted."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def series_tiles(device: torch.device) -> dict[str, int]:
    """SERIES, and as many stages as the device has room for."""
    room = 3 * STAGE
    if device.type == "cuda":
        room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", STAGE)
    return {**SERIES, "num_stages": max(1, min(3, room // STAGE))}


@functools.cache
def multiplies_tf32(device: torch.device) -> bool:
    """Whether its matrix units take TF32: those of CUDA devices do from compute capability 8 on."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
