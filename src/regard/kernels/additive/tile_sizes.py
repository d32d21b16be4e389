"""Launch parameters by shape: a table of tile sizes, and the number of parts that the work is split into."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from regard.kernels import launch
from regard.kernels.launch import up

__all__ = ["CHANGES", "LAUNCHES", "Shape"]

LINEAR = 1 << 22
"""Maximum number of scores in memory at once, if TIMES does not allow more: 16 MiB of float32."""

TIMES = 4
"""If query and key together have n elements, up to TIMES * n scores may be in memory at once, even if this is
more than LINEAR."""

MOST_PARTS = {"decode": 64, "short": 16, "middle": 16, "long": 16}
"""Maximum number of parts that the keys are split into (split-K), by Shape.kind. Each part needs memory for
its result."""

MANY = 128
"""Smallest T and S of a large call. If T and S are both at least MANY, Shape.kind is "middle" instead of
"short"."""

FEW = 32
"""Maximum number of partial sums of delta that additive_balance_kernel adds itself, once in each program. If
there are more, another kernel adds them first. delta is the sum over the keys of weight * gradient of the
weight."""

SPAN = 64
"""Number of channels in a span, the range of channels that one program of additive_prepare_kernel processes.
This kernel computes e^2q and e^2k."""


@dataclass(frozen=True)
class Launch:
    """Launch parameters of the kernels of additive attention.

    rows, columns: size of a tile of scores, and of a tile of their gradients; multiples of 16. Each thread
        computes 4 x 4 scores.
    group: number of channels that share a reciprocal: 1, 2 or 4.
    unroll: number of groups of `group` channels per loop iteration.
    read_rows, read_columns: size of a tile of scores in additive_read_kernel (softmax and output).
    depth: number of value channels per program.
    warps: number of warps per program in the kernels for the gradients of query and key, and in the kernels
        of additive/decode.py.
    fours: number of thread groups per program in the gradient kernels for query and key. Each group computes
        four rows of the gradient.
    registers: maximum number of registers per thread in the kernel for the gradient of the query, so that
        four warps fit on a scheduler.
    some, width: number of keys and of channels in a tile of the kernels for one query per sequence
        (additive/decode.py), if there are many channels; otherwise, see Shape.decode_tile().
    fill: target number of warps per multiprocessor. The work of a kernel is split into parts until there are
        at least this many warps.
    score_registers: maximum number of registers per thread in additive_scores_kernel; None for no limit.
    """

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
    score_registers: int | None = None

    @property
    def channels(self) -> int:
        """Number of channels per program in the gradient kernels for query and key.

        The threads of a program form `fours` groups. All groups compute the same channels, each for its own
        rows. Each thread computes four channels."""
        return 128 * self.warps // self.fours


LAUNCHES: dict[str, Launch] = {
    "decode": Launch(
        rows=16, columns=32, group=2, unroll=2, read_rows=16, read_columns=64, depth=64, warps=4
    ),
    "short": Launch(
        rows=32,
        columns=32,
        group=4,
        unroll=2,
        read_rows=64,
        read_columns=64,
        depth=64,
        warps=1,
        score_registers=80,
    ),
    "middle": Launch(
        rows=64,
        columns=32,
        group=4,
        unroll=1,
        read_rows=64,
        read_columns=64,
        depth=64,
        warps=4,
        fours=4,
        score_registers=80,
    ),
    "long": Launch(
        rows=64, columns=32, group=4, unroll=1, read_rows=32, read_columns=128, depth=128, warps=4, fours=4
    ),
}
"""Launch parameters of the kernels of additive attention for each kind of shape (Shape.kind), chosen by
timing on an H200."""

CHANGES: dict[tuple[str, str], dict[str, int]] = {
    # A float32 matrix product needs three TF32 products, so the tiles are smaller. If a tile has one row,
    # matrix_product.product() uses a reduction instead of tl.dot.
    ("decode", "float32"): {"read_rows": 1},
    ("short", "float32"): {"unroll": 1, "read_rows": 16},
    ("middle", "float32"): {"read_rows": 32, "read_columns": 32},
    ("long", "float32"): {"read_rows": 32, "read_columns": 32, "depth": 64},
    # For all kinds except "long" the forward pass keeps the scores. So the backward pass does not recompute
    # them and can use other tiles.
    ("short", "back"): {"rows": 64, "columns": 64},
    ("middle", "back"): {"rows": 64, "columns": 64},
    ("decode", "back"): {"depth": 128},
}
"""Changes to LAUNCHES, by kind of shape and case. The cases are "float32" and "back" (the backward
pass)."""


@dataclass(frozen=True)
class Shape:
    """The sizes and dtype of a call, and what follows from them: kind, tiles, parts, chunks.

    What follows is computed once per Shape: a pass needs it up to 50 times.

    batch, heads, key_heads: batch size B, number of query heads H, and number of key heads K.
    queries, keys: number of queries T and number of keys S of each sequence.
    width: number of channels D of query and key.
    depth: number of channels E of the value.
    dtype: the dtype of the value.
    back: whether the launch parameters are for the backward pass.
    """

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
        """Create a Shape from query (B, H, T, D), key (B, K, S, D) and value (B, K, S, E)."""
        batch, heads, queries, width = query.shape
        sizes = batch, heads, key.shape[1], queries, key.shape[2], width, value.shape[3]
        return cls(*sizes, dtype=value.dtype, back=back)

    @cached_property
    def kind(self) -> str:
        """The kind of shape, a key of LAUNCHES.

        decode: one query per sequence, T = 1.
        long: T S > (T + S) D, so that there are more scores than elements of query and key. The scores are
            computed in chunks of rows, and recomputed in the backward pass.
        middle: T S <= (T + S) D, and at least MANY queries and MANY keys. The scores are kept.
        short: T S <= (T + S) D, and fewer than MANY queries or fewer than MANY keys. The scores are kept.
        """
        if self.queries == 1:
            return "decode"
        if self.queries * self.keys > (self.queries + self.keys) * self.width:
            return "long"
        return "short" if min(self.queries, self.keys) < MANY else "middle"

    @cached_property
    def held(self) -> bool:
        """Whether the forward pass keeps the scores for the backward pass: for all kinds except "long"."""
        return self.kind != "long"

    @cached_property
    def launch(self) -> Launch:
        """The launch parameters: the entry of LAUNCHES for this kind of shape, with CHANGES applied."""
        chosen, kind = LAUNCHES[self.kind], self.kind
        if self.dtype == torch.float32:
            chosen = replace(chosen, **CHANGES.get((kind, "float32"), {}))
        return replace(chosen, **CHANGES.get((kind, "back"), {})) if self.back else chosen

    @cached_property
    def groups(self) -> int:
        """Number of query heads that share a key head."""
        return self.heads // self.key_heads

    @cached_property
    def padded(self) -> int:
        """The width D, rounded up to a multiple of group * unroll, the channels per loop iteration."""
        return up(self.width, self.launch.group * self.launch.unroll)

    @cached_property
    def pitch(self) -> int:
        """Row stride of e^2q and e^2k: a multiple of 16, for which Triton generates vectorised loads."""
        return up(self.width, 16)

    @cached_property
    def spans(self) -> int:
        """Number of spans of SPAN channels, each prepared by its own program of additive_prepare_kernel."""
        return -(-self.pitch // SPAN)

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """(query tiles, key tiles): the number of score tiles along the queries and along the keys."""
        return -(-self.queries // self.launch.rows), -(-self.keys // self.launch.columns)

    @cached_property
    def chunk(self) -> int:
        """Number of queries whose scores are in memory at the same time, called a chunk.

        If the scores are kept (`held`), all queries are one chunk. Otherwise the number is a multiple of the
        rows of a tile, as large as TIMES and LINEAR allow, but at most the number of queries."""
        if self.held:
            return self.queries
        sequences = self.batch * self.heads
        room = max(TIMES * sequences * (self.queries + self.keys) * self.width, LINEAR)
        rows = self.launch.rows
        return min(self.queries, max(rows, room // (sequences * self.keys) // rows * rows))

    def channel_parts(self, rows: int, device: torch.device) -> int:
        """Number of parts to split the channels into, so that the scores of `rows` queries fill the GPU."""
        programs = self.batch * self.heads * -(-rows // self.launch.rows) * self.tiles[1]
        warps = max(1, programs * self.launch.rows * self.launch.columns // 512)
        needed = -(-launch.processors(device) * self.launch.fill // warps)
        allowed = (self.queries + self.keys) * self.width // max(rows * self.keys, 1)
        return max(1, min(needed, allowed, -(-self.width // 64)))

    def decode_tile(self, device: torch.device) -> tuple[int, int]:
        """Number of keys and of channels in a tile of the kernels for one query (additive/decode.py).

        If there are few channels, a tile has more keys instead, as long as there is a tile for each
        multiprocessor."""
        width = min(self.launch.width, max(32, 1 << (self.width - 1).bit_length()))
        keys, sequences = self.launch.some * self.launch.width // width, self.batch * self.heads
        while keys > self.launch.some and sequences * -(-self.keys // keys) < launch.processors(device):
            keys //= 2
        return keys, width

    def key_parts(self, warps: int, tiles: int, device: torch.device) -> int:
        """Number of parts to split `tiles` tiles of keys into, so that the programs fill the GPU.

        warps: number of warps that process one part, in all programs together."""
        return max(
            1,
            min(MOST_PARTS[self.kind], tiles, launch.processors(device) * self.launch.fill // max(warps, 1)),
        )
