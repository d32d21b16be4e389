"""Launch parameters of additive_short_kernel, the forward pass of short sequences in one launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.kernels import launch
from regard.kernels.launch import Shape, up

__all__ = ["ShortLaunch", "power_of_two", "short_launch"]

SHORT_KEYS = 64
"""Maximum number of keys for which the forward pass is one launch, if there is padding; otherwise 63.

64 keys are whole tiles of the kernels for longer sequences. For 80,64,64,512 on an H200, these are faster
without padding (57 instead of 58 microseconds) and slower with padding (68 instead of 56)."""

SHORT_ROWS = (13, 12, 10, 9, 8, 6, 5, 4, 2)
"""Numbers of query rows of a program that are compared. The last group of four rows has 1, 2 or 4. More than
13 rows would need more than 128 registers per thread."""

FIXED_ROWS = 3
"""Time of a program that does not depend on its number of rows, as a number of rows."""

MOST_SPLITS = 64
"""Maximum number of threads that the channels of a key are divided between."""

ROOM = 1 << 24
"""Maximum number of float32 numbers that all programs together use as temporary memory, unless query and key
have half as many elements."""


def power_of_two(number: int) -> int:
    """Round `number`, at least 1, up to a power of two."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True)
class ShortLaunch:
    """Launch parameters of additive_short_kernel.

    rows: number of query rows of a program, 2 to 16.
    threads: number of threads of a program.
    registers: maximum number of registers per thread.
    keys: number of keys of each thread, 1 or 2. keys * threads is at least 2 S.
    depth: number of channels of the value that it processes at a time.
    """

    rows: int
    threads: int = 256
    registers: int = 128
    keys: int = 2
    depth: int = 128

    @property
    def count(self) -> int:
        """Number of groups of four rows, the last one with 1, 2 or 4 rows."""
        return -(-self.rows // 4)

    @property
    def quads(self) -> int:
        """`count`, rounded up to a power of two."""
        return power_of_two(self.count)

    @property
    def width(self) -> int:
        """Number of channels of the query that a program prepares at a time: 8192 elements."""
        return 2048 // self.quads

    def tiles(self, shape: Shape) -> int:
        """Number of programs for each sequence and head."""
        return -(-shape.queries // self.rows)

    def room(self, shape: Shape) -> tuple[int, int, int]:
        """Number of float32 numbers that a program stores: e^2q, v, and partial sums of the scores."""
        groups = -(-shape.width // 4)
        groups = up(groups + min(groups, MOST_SPLITS), 8)
        return groups * 16 * self.quads, groups * 4, 2 * self.quads * self.keys * self.threads


def short_launch(shape: Shape, device: torch.device, padded: bool) -> ShortLaunch | None:
    """Return the launch parameters with which the forward pass is one launch; None if it is several.

    The number of rows is chosen so that the multiprocessor with the most rows has few of them.

    padded: whether the mask has lengths.
    """
    most = SHORT_KEYS if padded else SHORT_KEYS - 1
    if not 1 < shape.keys <= most or shape.queries == 1:  # one query: see decode.py
        return None
    sequences, many = shape.batch * shape.heads, max(1, launch.processors(device))

    def programs(rows: int) -> int:
        return sequences * -(-shape.queries // rows)

    rows = min(SHORT_ROWS, key=lambda rows: -(-programs(rows) // many) * (rows + FIXED_ROWS))
    threads = power_of_two(-(-shape.keys // ShortLaunch.keys) * -(-shape.width // 4))
    threads = max(128, min(threads, 512 if 2 * programs(rows) <= many else 256))
    # With 80 registers per thread, a multiprocessor runs three programs of 256 threads at once, with 128 two.
    registers = 80 if rows <= 8 and programs(rows) > 4 * many else 128
    short = ShortLaunch(rows, threads, registers)
    elements = (sequences * shape.queries + shape.batch * shape.key_heads * shape.keys) * shape.width
    return short if programs(rows) * sum(short.room(shape)) <= max(ROOM, 2 * elements) else None
