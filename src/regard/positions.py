"""Positions: where things are. Attention itself does not know order; a position scheme tells it.

Each scheme says where it acts:

    embeddings         noise, learned, sinusoidal    added to what enters the model
    queries and keys   rotary                        turns both before they are compared
    scores             relative, T5, ALiBi           added to the scores (attention(bias=scheme))

All count from `start`, so one token decoded at step t gets what it got in the whole sequence.
To add one: write its class, and add its line to POSITIONS at the end.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, UnknownName, message
from regard.tiles import Tile

__all__ = [
    "POSITIONS",
    "ALiBi",
    "Bias",
    "Learned",
    "Noise",
    "Position",
    "Relative",
    "Rotary",
    "Sinusoidal",
    "T5Bias",
    "build_position",
]


class Position(nn.Module):
    """A scheme that tells positions; `acts` says on what: embeddings, queries and keys, or scores.

    >>> import regard
    >>> regard.Rotary(size=4).acts
    'queries and keys'
    """

    acts: ClassVar[str] = "embeddings"

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Position:
        """Make one for a model of this width, this many heads and sequences up to this length."""
        raise TypeError(f"{cls.__name__} does not say how it is built")


class Embedded(Position):
    """A table of one vector a position, added to embeddings (..., T, M)."""

    def rows(self, first: int, last: int, like: Tensor) -> Tensor:
        """The vectors of positions first to last - 1, (last - first, M)."""
        raise TypeError(f"{type(self).__name__} has no rows")

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """Add to each embedding the vector of its position, counted from `start`."""
        rows = self.rows(start, start + embeddings.shape[-2], embeddings)
        if start < 0 or rows.shape[-1] != embeddings.shape[-1]:
            raise ArgumentError(
                message(
                    f"{type(self).__name__}()",
                    f"start is {start}, positions are {rows.shape[-1]} wide",
                    {"embeddings": (embeddings, "BTM")},
                    f"start >= 0 and M = {rows.shape[-1]}",
                )
            )
        return embeddings + rows.to(embeddings.dtype)


class Table(Embedded):
    """Positions kept in a table of `length` rows."""

    table: Tensor

    def rows(self, first: int, last: int, like: Tensor) -> Tensor:
        length, width = self.table.shape
        if last > length:
            raise ArgumentError(
                message(
                    f"{type(self).__name__}()",
                    f"positions {first} to {last - 1} were asked for; the table has {length}, {width} wide",
                    {"embeddings": (like, "BTM")},
                    f"start + T <= {length}",
                    f"{type(self).__name__}({width}, length={last}); Sinusoidal has no end",
                )
            )
        return self.table[first:last]


class Noise(Table):
    """Give each position one fixed random vector, drawn once from a seed and saved with the model.

    x_t + n_t, with n_t ~ N(0, 1/M) never trained: the crudest way to make positions tell apart.

    >>> import regard, torch
    >>> x = torch.zeros(1, 5, 8)
    >>> noise = regard.Noise(width=8, length=16, seed=1)
    >>> torch.equal(noise(x)[:, 3:4], noise(x[:, :1], start=3))
    True
    """

    def __init__(self, width: int, length: int, seed: int = 0):
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        self.register_buffer("table", torch.randn(length, width, generator=source) / math.sqrt(width))

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Noise:
        return cls(width, length)


class Learned(Table):
    """Learn one vector a position (Gehring et al. 2017; Devlin et al. 2018).

    x_t + p_t

    >>> import regard, torch
    >>> regard.Learned(width=8, length=16)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, width: int, length: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, width) / math.sqrt(width))

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Learned:
        return cls(width, length)


class Sinusoidal(Embedded):
    """Tell positions by waves of many lengths (Vaswani et al. 2017, section 3.5).

    p_t[2i] = sin(t / 10000^(2i/M)),  p_t[2i+1] = cos(t / 10000^(2i/M))

    >>> import regard, torch
    >>> regard.Sinusoidal(width=4)(torch.zeros(2, 4))
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, width: int, base: float = 10000.0):
        super().__init__()
        self.width, self.base = width, base

    def rows(self, first: int, last: int, like: Tensor) -> Tensor:
        angle = _angles(first, last, self.width, self.base, like.device)
        return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[:, : self.width]

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Sinusoidal:
        return cls(width)


class Rotary(Position):
    """Turn each query and key by an angle that grows with its position, so that q . k knows the distance.

    (q_2i, q_2i+1) is rotated by t / base^(2i/D)   (Su et al. 2021, eq. 15)

    size: the width of a head, even. pairs: "halves" turns (i, i + D/2) together, as Llama's weights expect;
    "neighbours" turns (2i, 2i + 1), as the paper has it. The two differ by a permutation of the width.

    >>> import regard, torch
    >>> rotary, q, k = regard.Rotary(size=4), torch.ones(1, 4), torch.ones(1, 4)
    >>> near = rotary(q, start=7) @ rotary(k, start=5).T
    >>> far = rotary(q, start=107) @ rotary(k, start=105).T
    >>> torch.allclose(near, far)
    True
    """

    acts: ClassVar[str] = "queries and keys"

    def __init__(self, size: int, base: float = 10000.0, pairs: str = "halves"):
        super().__init__()
        if size % 2:
            raise ArgumentError(message("Rotary()", f"size is {size}", expected="an even width of a head"))
        if pairs not in ("halves", "neighbours"):
            raise UnknownName("pairing of Rotary", pairs, ("halves", "neighbours"))
        self.size, self.base, self.pairs = size, base, pairs

    def extra_repr(self) -> str:
        return f"size={self.size}, base={self.base:g}, pairs={self.pairs!r}"

    def forward(self, vectors: Tensor, start: int = 0) -> Tensor:
        """Turn queries or keys (..., T, D), the first of which stands at `start`."""
        if vectors.shape[-1] != self.size:
            shown = {"vectors": (vectors, "BHTD")}
            raise ArgumentError(message("Rotary()", "the width is another", shown, f"D = {self.size}"))
        angle = _angles(start, start + vectors.shape[-2], self.size, self.base, vectors.device)
        cos, sin = angle.cos().to(vectors.dtype), angle.sin().to(vectors.dtype)
        if self.pairs == "halves":
            x, y = vectors.chunk(2, -1)
            return torch.cat((x * cos - y * sin, y * cos + x * sin), -1)
        x, y = vectors[..., 0::2], vectors[..., 1::2]
        return torch.stack((x * cos - y * sin, y * cos + x * sin), -1).flatten(-2)

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Rotary:
        return cls(width // heads)


class Bias(Position):
    """A scheme that acts on scores: attention(bias=scheme) adds its bias, and what it adds to the reading.

    >>> import regard
    >>> isinstance(regard.ALiBi(heads=2), regard.Bias)
    True
    """

    acts: ClassVar[str] = "scores"
    heads: int | None = None  # for how many heads it was made, where each has its own
    reads: bool = False  # whether it also adds to what is read
    asks_query: ClassVar[bool] = False  # whether the bias depends on the query

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """What to add to the score of query i and key j in this head, for index tensors that broadcast."""
        raise TypeError(f"the bias of {type(self).__name__} depends on more than positions")

    def tile(self, query_BHTD: Tensor, tile: Tile) -> Tensor:
        """What to add to the scores of this tile, broadcastable to (B, H, T, S)."""
        head = torch.arange(tile.heads, device=tile.j_S.device)[:, None, None]
        return self.at(head, tile.i_T1, tile.j_S)[None]

    def mismatch(self, heads: int, query_size: int, value_size: int) -> tuple[str, str] | None:
        """(problem, expected) where it does not fit a call with these sizes, or None."""
        if self.heads in (None, heads):
            return None
        return f"this {type(self).__name__} was made for {self.heads} heads", f"H = {self.heads}"

    def read(self, weights_BHTS: Tensor, tile: Tile) -> Tensor:
        """What to add to the output, (B, H, T, E), linear in the weights; only where `reads`."""
        raise TypeError(f"{type(self).__name__} adds nothing to what is read")


class ALiBi(Bias):
    """Lower each score in proportion to the distance, by a slope of its own in each head (Press et al. 2022).

    bias_ij = -m_h |i - j|,  m_h = 2^(-8h/H) for H a power of two, interleaved for others as the authors do

    >>> import regard, torch
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> regard.attention(x, x, bias=regard.ALiBi(heads=2), look=regard.Look(weights=True)).weights[0, 0, 0]
    tensor([0.3544, 0.3329, 0.3127])
    """

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads
        self.register_buffer("slope_H", torch.tensor(_slopes(heads)))
        self.slope_H: Tensor

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return -self.slope_H[head] * (i - j).abs()

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> ALiBi:
        return cls(heads)


class T5Bias(Bias):
    """Learn one number a head for each bucket of distances: near ones apart, far ones together.

    bias_ij = b_h[bucket(j - i)]   (Raffel et al. 2020, section 2.1); buckets grow with the logarithm of the
    distance up to `furthest`. bidirectional: whether keys after the query have buckets of their own.

    >>> import regard, torch
    >>> bias = regard.T5Bias(heads=2)
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> regard.attention(x, x, x, bias=bias).output.shape
    torch.Size([1, 2, 3, 4])
    """

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, bidirectional: bool = True):
        super().__init__()
        if furthest <= buckets // (4 if bidirectional else 2):
            expected = "more than the distances that have a bucket of their own"
            raise ArgumentError(
                message("T5Bias()", f"furthest is {furthest} for {buckets} buckets", expected=expected)
            )
        self.heads = heads
        self.buckets, self.furthest, self.bidirectional = buckets, furthest, bidirectional
        self.table = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def bucket(self, offset: Tensor) -> Tensor:
        """The bucket of each offset j - i."""
        count = self.buckets // 2 if self.bidirectional else self.buckets
        later = (offset > 0).long() * count if self.bidirectional else torch.zeros_like(offset)
        distance = offset.abs() if self.bidirectional else (-offset).clamp_min(0)
        exact = count // 2
        log_scale = (distance.clamp_min(1).float() / exact).log() / math.log(self.furthest / exact)
        far = (exact + (log_scale * (count - exact)).long()).clamp_max(count - 1)
        return later + torch.where(distance < exact, distance, far)

    def extra_repr(self) -> str:
        sizes = f"heads={self.heads}, buckets={self.buckets}, furthest={self.furthest}"
        return f"{sizes}, bidirectional={self.bidirectional}"

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table[self.bucket(j - i), head]

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> T5Bias:
        return cls(heads)


class Relative(Bias):
    """Learn a key and a value for each clipped distance (Shaw et al. 2018, eq. 3 and 4).

    score_ij += q_i . a^K[clip(j - i)] / sqrt(D)
    output_i += sum_j weight_ij a^V[clip(j - i)]

    size: the width of a head. values: the width of a value, 0 for keys alone. furthest: where distances clip.

    >>> import regard, torch
    >>> x = torch.randn(1, 2, 5, 4)
    >>> regard.attention(x, x, x, bias=regard.Relative(size=4, values=4, furthest=2)).output.shape
    torch.Size([1, 2, 5, 4])
    """

    asks_query: ClassVar[bool] = True

    def __init__(self, size: int, values: int = 0, furthest: int = 16):
        super().__init__()
        self.furthest, self.reads = furthest, values > 0
        self.key_table = nn.Parameter(torch.randn(2 * furthest + 1, size) / math.sqrt(size))
        self.value_table = (
            nn.Parameter(torch.randn(2 * furthest + 1, values) / math.sqrt(values)) if values else None
        )

    def mismatch(self, heads: int, query_size: int, value_size: int) -> tuple[str, str] | None:
        size, values = self.key_table.shape[1], 0 if self.value_table is None else self.value_table.shape[1]
        if size == query_size and values in (0, value_size):
            return None
        problem = f"this Relative is not for queries of width {query_size} and values of {value_size}"
        return problem, f"queries of {size}, as the score projects them" + (
            f", values of {values}" if values else ""
        )

    def _bucket(self, tile: Tile) -> Tensor:
        return (tile.j_S - tile.i_T1).clamp(-self.furthest, self.furthest) + self.furthest

    def tile(self, query_BHTD: Tensor, tile: Tile) -> Tensor:
        by_distance_BHTR = (
            query_BHTD @ (self.key_table / math.sqrt(query_BHTD.shape[-1])).to(query_BHTD.dtype).T
        )
        bucket_TS = self._bucket(tile)
        return by_distance_BHTR.gather(-1, bucket_TS.expand(*by_distance_BHTR.shape[:2], *bucket_TS.shape))

    def read(self, weights_BHTS: Tensor, tile: Tile) -> Tensor:
        assert self.value_table is not None
        bucket_TS = self._bucket(tile)
        by_distance_BHTR = weights_BHTS.new_zeros(*weights_BHTS.shape[:3], 2 * self.furthest + 1).scatter_add(
            -1, bucket_TS.expand_as(weights_BHTS), weights_BHTS
        )
        return by_distance_BHTR @ self.value_table.to(weights_BHTS.dtype)

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> Relative:
        return cls(width // heads, values=width // heads)


POSITIONS: dict[str, type[Position]] = {
    "noise": Noise,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rotary": Rotary,
    "relative": Relative,
    "t5": T5Bias,
    "alibi": ALiBi,
}


def build_position(position: str | Position, width: int, heads: int, length: int = 1024) -> Position:
    """Make a position scheme from its name; one that is made already is given back.

    >>> import regard
    >>> regard.build_position("rotary", width=64, heads=4).size
    16
    """
    if isinstance(position, Position):
        return position
    if position not in POSITIONS:
        raise UnknownName("position scheme", position, POSITIONS)
    return POSITIONS[position].build(width, heads, length)


def _angles(first: int, last: int, size: int, base: float, device: torch.device) -> Tensor:
    """t / base^(2i/size) for each position t and each i, (last - first, size / 2), in float32."""
    rate = base ** (-torch.arange(0, size, 2, device=device).float() / size)
    return torch.arange(first, last, device=device).float()[:, None] * rate


def _slopes(heads: int) -> list[float]:
    power = 2 ** int(math.log2(heads)) if heads else 1
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return (slopes + between[: heads - power])[:heads]
