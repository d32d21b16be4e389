"""Position schemes that act on scores: relative, T5, ALiBi."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, message, positive
from regard.masks.mask import Tile
from regard.positions.position import Position

__all__ = ["ALiBi", "Bias", "Relative", "T5Bias"]


class Bias(Position):
    """Base class of position schemes that act on scores, for attention(bias=scheme).

    A scheme adds a bias to the scores. Relative can also add a term to the output.

    >>> import regard
    >>> isinstance(regard.ALiBi(heads=2), regard.Bias)
    True
    """

    acts: ClassVar[str] = "scores"
    heads: int | None = None  # number of heads, if each has its own bias
    reads: bool = False  # whether the scheme also adds a term to the output (see read())
    asks_query: ClassVar[bool] = False  # whether the bias depends on the query vectors

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Return the bias of each score.

        head, i, j: index of the head, position of the query, and position of the key. They are index tensors
            that broadcast.
        """
        raise TypeError(f"{type(self).__name__} does not implement at(): its bias depends on the query")

    def tile(self, query_BHTD: Tensor, tile: Tile) -> Tensor:
        """Return the bias for the queries and keys of a tile, broadcastable to (B, H, T, S).

        query_BHTD: the queries of the tile.
        """
        head = torch.arange(tile.heads, device=tile.j_S.device)[:, None, None]
        return self.at(head, tile.i_T1, tile.j_S)[None]

    def mismatch(self, heads: int, query_size: int, value_size: int) -> tuple[str, str] | None:
        """Return two texts (problem, expected) for an error message if this scheme does not match a call.

        The result is None if the scheme matches.

        heads, query_size, value_size: H, D and E of the call.
        """
        if self.heads in (None, heads):
            return None
        return f"this {type(self).__name__} has {self.heads} heads, the call has {heads}", f"H = {self.heads}"

    def read(self, weights_BHTS: Tensor, tile: Tile) -> Tensor:
        """Return the term that this scheme adds to the output, (B, H, T, E).

        The term must be linear in the weights. This method is called only if `reads` is True.
        """
        raise TypeError(f"{type(self).__name__} does not implement read()")


class ALiBi(Bias):
    """ALiBi: subtract slope * distance from each score, with one slope per head (Press et al. 2022).

    bias_ij = -m_h |i - j|,  m_h = 2^(-8h/H), h = 1 ... H

    i and j are the positions of query and key, and H is the argument `heads`. If H is not a power of two, the
    slopes are chosen as in the code of the authors. Let P be the next smaller power of two. The first P heads
    have the slopes for P heads. The other heads have every second slope for 2 P heads.

    In this example, the inner products are 0, so the weights of query 0 depend only on the distance:

    >>> import regard, torch
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> regard.attention(x, x, bias=regard.ALiBi(heads=2), look=regard.Look(weights=True)).weights[0, 0, 0]
    tensor([0.3544, 0.3329, 0.3127])
    """

    def __init__(self, heads: int):
        super().__init__()
        positive("ALiBi()", heads=heads)
        self.heads: int = heads
        self.register_buffer("slope_H", torch.tensor(_slopes(heads)))
        self.slope_H: Tensor

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return -self.slope_H[head] * (i - j).abs()

    def tile(self, query_BHTD: Tensor, tile: Tile) -> Tensor:
        slope_H = self.slope_H
        if query_BHTD.dtype == torch.float64:  # the slopes in float64, if they are not changed
            exact_H = slope_H.new_tensor(_slopes(self.heads), dtype=torch.float64)
            slope_H = torch.where(slope_H == exact_H.float(), exact_H, slope_H)
        return -slope_H[None, :, None, None] * (tile.i_T1 - tile.j_S).abs()

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    @classmethod
    def build(cls, width: int, heads: int, length: int) -> ALiBi:
        return cls(heads)


class T5Bias(Bias):
    """T5 relative bias: a learned number per head for each bucket of distances.

    bias_ij = b_h[bucket(j - i)]   (Raffel et al. 2020, section 2.1)

    i and j are the positions of query and key, and h is the head.

    heads: number of heads.
    buckets: number of buckets. Each small distance has its own bucket. Larger distances share buckets.
    furthest: all distances beyond this distance share the last bucket. Up to this distance, the spacing of
        the shared buckets is logarithmic.
    bidirectional: whether keys after the query have their own buckets. False for causal attention.

    >>> import regard, torch
    >>> bias = regard.T5Bias(heads=2)
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> regard.attention(x, x, x, bias=bias).output.shape
    torch.Size([1, 2, 3, 4])
    """

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, bidirectional: bool = True):
        super().__init__()
        positive("T5Bias()", heads=heads, buckets=buckets, furthest=furthest)
        if furthest <= buckets // (4 if bidirectional else 2):
            expected = (
                f"furthest > {buckets // (4 if bidirectional else 2)}, "
                "the number of distances with their own bucket"
            )
            raise ArgumentError(
                message("T5Bias()", f"furthest is {furthest} for {buckets} buckets", expected=expected)
            )
        self.heads = heads
        self.buckets, self.furthest, self.bidirectional = buckets, furthest, bidirectional
        self.table = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def bucket(self, offset: Tensor) -> Tensor:
        """Return the bucket of each offset (key position minus query position), from 0 to buckets - 1."""
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
    """Relative positions: learned vectors a^K and a^V for each clipped distance j - i (Shaw et al. 2018).

    score_ij += q_i . a^K[clip(j - i)] / sqrt(D)
    output_i += sum_j weight_ij a^V[clip(j - i)]   (eq. 3 and 4)

    i and j are the positions of query and key.

    size: width of query and key, D.
    values: width of a value, E. With 0, there are no vectors a^V.
    furthest: clip(j - i) limits the distance j - i to the range from -furthest to furthest.

    >>> import regard, torch
    >>> x = torch.randn(1, 2, 5, 4)
    >>> regard.attention(x, x, x, bias=regard.Relative(size=4, values=4, furthest=2)).output.shape
    torch.Size([1, 2, 5, 4])
    """

    asks_query: ClassVar[bool] = True

    def __init__(self, size: int, values: int = 0, furthest: int = 16):
        super().__init__()
        may_be_0 = {"values": values, "furthest": furthest}
        sizes = {name: each for name, each in may_be_0.items() if not (isinstance(each, int) and each == 0)}
        positive("Relative()", size=size, **sizes)
        self.furthest, self.reads = furthest, values > 0
        self.key_table = nn.Parameter(torch.randn(2 * furthest + 1, size) / math.sqrt(size))
        self.value_table = (
            nn.Parameter(torch.randn(2 * furthest + 1, values) / math.sqrt(values)) if values else None
        )

    def mismatch(self, heads: int, query_size: int, value_size: int) -> tuple[str, str] | None:
        size, values = self.key_table.shape[1], 0 if self.value_table is None else self.value_table.shape[1]
        if size == query_size and values in (0, value_size):
            return None
        problem = (
            f"this Relative does not match queries of width {query_size} and values of width {value_size}"
        )
        expected = f"projected queries of width {size}" + (f", values of width {values}" if values else "")
        return problem, expected

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


def _slopes(heads: int) -> list[float]:
    power = 2 ** int(math.log2(heads)) if heads else 1
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return (slopes + between[: heads - power])[:heads]
