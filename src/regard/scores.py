"""Score functions: how a query is compared with a key.

Every score function here projects query and key, then combines them in one of two ways:

    inner      score_ts = scale * sum_d q_td k_sd        dot, scaled dot, general, cosine, location
    additive   score_ts = sum_a v_a tanh(q_ta + k_sa)    Bahdanau, Luong's concat, LSTMN, image captioning

A Score defines its projections. Its attribute `combine` is the name of one of the two functions, which
kernels implement too. To add a score function, write its class and add a line to SCORES below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, UnknownName, message

__all__ = [
    "SCORES",
    "Additive",
    "Concat",
    "Cosine",
    "Dot",
    "General",
    "Location",
    "ScaledDot",
    "Score",
    "additive",
    "build_score",
    "inner",
]


def inner(query_BHTD: Tensor, key_BHSD: Tensor, scale: float = 1.0) -> Tensor:
    """Return the inner products scale * q . k, (B, H, T, S)."""
    return (query_BHTD * scale) @ key_BHSD.transpose(-2, -1)


def additive(query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor) -> Tensor:
    """Return v . tanh(q + k), (B, H, T, S). Allocates a tensor of B x H x T x S x A numbers."""
    hidden_BHTSA = torch.tanh(query_BHTA.unsqueeze(-2) + key_BHSA.unsqueeze(-3))
    return (hidden_BHTSA * vector_HA[:, None, None, :]).sum(-1)


class Score:
    """Base class of score functions: score(q, k) = combine(project_query(q), project_key(k)).

    To define a score function, write a subclass and override methods. The default is the inner product q . k.

    >>> import regard, torch
    >>> class Negative(regard.Score):
    ...     def project_query(self, query):
    ...         return -query
    >>> regard.attention(torch.eye(2), torch.eye(2), score=Negative()).output.argmax(-1)  # the other key
    tensor([1, 0])
    """

    combine: ClassVar[str] = "inner"
    equation: ClassVar[str] = "q . k"
    heads: int | None = None  # number of heads, if each has its own parameters

    def project_query(self, query: Tensor) -> Tensor:
        """Project queries (..., T, Dq) to (..., T, D)."""
        return query

    def project_key(self, key: Tensor, start: int = 0) -> Tensor:
        """Project keys (..., S, Dk) to (..., S, D). start: position of the first key."""
        return key

    def scale(self, query_size: int) -> float:
        """Return the factor of the inner product q . k. query_size: width of the query before projection."""
        return 1.0

    def mixing_vector(self) -> Tensor | None:
        """Return the vector v of an additive score, (heads, A) or (A,). None for an inner product."""
        return None

    def narrowed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the projected query and key. A subclass may leave out columns that are 0 in all keys."""
        return query, key

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        """Return the texts (problem, expected, hint) of an error if the sizes are invalid, else None."""
        if query_size == key_size:
            return None
        name = type(self).__name__
        return (
            f"query and key have different widths, but {name} needs the same width",
            "D of query = D of key",
            f"use General(query_size={query_size}, key_size={key_size}) for different widths",
        )

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> Score:
        """Create a score function of this class for these widths of query and key; used by build_score()."""
        return cls()


@dataclass(frozen=True)
class Dot(Score):
    """Inner product as score function.

    score(q, k) = q . k   (Luong et al. 2015, section 3.1, "dot")

    >>> import regard, torch
    >>> x, look = torch.eye(2), regard.Look(weights=True)
    >>> regard.attention(x, x, score=regard.Dot(), look=look).weights
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """

    equation: ClassVar[str] = "q . k"


@dataclass(frozen=True)
class ScaledDot(Score):
    """Scaled inner product: the factor 1/sqrt(D) makes the variance of the scores independent of D.

    score(q, k) = q . k / sqrt(D)   (Vaswani et al. 2017, eq. 1), where D is the width of query and key

    >>> import regard, torch
    >>> q = k = 2 * torch.eye(4)[:2]
    >>> regard.attention(q, k, score=regard.ScaledDot(), look=regard.Look(weights=True)).weights
    tensor([[0.8808, 0.1192],
            [0.1192, 0.8808]])
    """

    equation: ClassVar[str] = "q . k / sqrt(D)"

    def scale(self, query_size: int) -> float:
        return 1.0 / math.sqrt(max(query_size, 1))


@dataclass(frozen=True)
class Cosine(Score):
    """Cosine similarity as score function: the content addressing of the neural Turing machine.

    score(q, k) = beta * q . k / (|q| |k|)   (Graves et al. 2014, eq. 5 and 6)
    Computed by inner(): query and key are divided by their lengths, and the query is multiplied by beta.

    sharpness: beta, a number or a tensor with the shape of the query without its last dimension, (..., T).
    The score of a zero vector is 0.

    >>> import regard, torch
    >>> memory = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    >>> regard.attention(memory, memory, score=regard.Cosine(sharpness=9.0)).output  # close to `memory`
    tensor([[2.9996e+00, 1.2339e-05],
            [3.7018e-04, 9.9988e-02]])
    """

    sharpness: float | Tensor = 1.0
    equation: ClassVar[str] = "beta q . k / (|q| |k|)"

    def project_query(self, query: Tensor) -> Tensor:
        beta = self.sharpness
        if isinstance(beta, Tensor) and beta.dim() and beta.shape != query.shape[:-1]:
            raise ArgumentError(
                message(
                    "attention()",
                    "the shape of Cosine's sharpness does not match the query",
                    {"sharpness": (beta, "BHT"), "query": (query, "BHTD")},
                    "one number, or one for each query",
                    "pass a number, or a tensor with the shape query.shape[:-1]",
                )
            )
        return _unit(query) * (beta.unsqueeze(-1).to(query.dtype) if isinstance(beta, Tensor) else beta)

    def project_key(self, key: Tensor, start: int = 0) -> Tensor:
        return _unit(key)


class General(nn.Module, Score):
    """Bilinear score function with a learned matrix, also for a query and a key of different widths.

    score(q, k) = q W k   (Luong et al. 2015, section 3.1, "general")
    Computed by inner(), with the query projected by W.

    weight: W, (query_size, key_size), or (heads, query_size, key_size) with one matrix per head.

    >>> import regard, torch
    >>> score = regard.General(query_size=3, key_size=5)
    >>> regard.attention(torch.ones(2, 3), torch.ones(4, 5), score=score).output.shape
    torch.Size([2, 5])
    """

    equation: ClassVar[str] = "q W k"

    def __init__(self, query_size: int, key_size: int, heads: int | None = None):
        super().__init__()
        self.query_size, self.key_size, self.heads = query_size, key_size, heads
        self.weight = _matrix(query_size, key_size, heads)

    def project_query(self, query: Tensor) -> Tensor:
        return query @ self.weight

    def extra_repr(self) -> str:
        return f"query_size={self.query_size}, key_size={self.key_size}, heads={self.heads}"

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        return _differs(self, (self.query_size, self.key_size), (query_size, key_size))

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> General:
        return cls(query_size, key_size, heads)


class Additive(nn.Module, Score):
    """Additive score function of Bahdanau et al.: a small network with a tanh layer.

    score(q, k) = v . tanh(W q + U k)   (Bahdanau et al. 2014, appendix A.1.2)
    Computed by additive(). U k does not depend on the query, so prepare() computes it once.

    query_size, key_size: widths of query and key.
    hidden: size of the tanh layer. Default: query_size.
    heads: if set, each head has its own parameters, with `heads` as first dimension. Default: shared.
    Parameters: query_weight W, (query_size, hidden); key_weight U, (key_size, hidden); vector v, (hidden,).

    >>> import regard, torch
    >>> score = regard.Additive(query_size=3, key_size=6, hidden=4)
    >>> memory = regard.prepare(torch.randn(5, 6), score=score)      # U k, once
    >>> regard.attention(torch.randn(1, 3), memory).output.shape     # W q, at every step
    torch.Size([1, 6])
    """

    combine: ClassVar[str] = "additive"
    equation: ClassVar[str] = "v . tanh(W q + U k)"

    def __init__(self, query_size: int, key_size: int, hidden: int | None = None, heads: int | None = None):
        super().__init__()
        hidden = hidden or query_size
        self.query_size, self.key_size, self.heads = query_size, key_size, heads
        self.query_weight = _matrix(query_size, hidden, heads)
        self.key_weight = _matrix(key_size, hidden, heads)
        self.vector = _vector(hidden, heads)

    def project_query(self, query: Tensor) -> Tensor:
        return query @ self.query_weight

    def project_key(self, key: Tensor, start: int = 0) -> Tensor:
        return key @ self.key_weight

    def mixing_vector(self) -> Tensor:
        return self.vector

    def extra_repr(self) -> str:
        return f"query_size={self.query_size}, key_size={self.key_size}, heads={self.heads}"

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        return _differs(self, (self.query_size, self.key_size), (query_size, key_size))

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> Additive:
        return cls(query_size, key_size, heads=heads)


class Concat(nn.Module, Score):
    """Concat score function of Luong et al.: a tanh layer over the concatenation of query and key.

    score(q, k) = v . tanh(W [q; k])   (Luong et al. 2015, section 3.1, "concat")
    Computed by additive(): W [q; k] = W_q q + W_k k, where W_q and W_k are the two parts of W.

    query_size, key_size, hidden: widths of query, key and tanh layer. Default of `hidden`: query_size.
    heads: if set, each head has its own parameters, with `heads` as first dimension. Default: shared.
    Parameters: weight W, (query_size + key_size, hidden); vector v, (hidden,).

    >>> import regard, torch
    >>> score = regard.Concat(query_size=3, key_size=6)
    >>> regard.attention(torch.randn(2, 3), torch.randn(5, 6), score=score).output.shape
    torch.Size([2, 6])
    """

    combine: ClassVar[str] = "additive"
    equation: ClassVar[str] = "v . tanh(W [q; k])"

    def __init__(self, query_size: int, key_size: int, hidden: int | None = None, heads: int | None = None):
        super().__init__()
        hidden = hidden or query_size
        self.query_size, self.key_size, self.heads = query_size, key_size, heads
        self.weight = _matrix(query_size + key_size, hidden, heads)
        self.vector = _vector(hidden, heads)

    def project_query(self, query: Tensor) -> Tensor:
        return query @ self.weight[..., : self.query_size, :]

    def project_key(self, key: Tensor, start: int = 0) -> Tensor:
        return key @ self.weight[..., self.query_size :, :]

    def mixing_vector(self) -> Tensor:
        return self.vector

    def extra_repr(self) -> str:
        return f"query_size={self.query_size}, key_size={self.key_size}, heads={self.heads}"

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        return _differs(self, (self.query_size, self.key_size), (query_size, key_size))

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> Concat:
        return cls(query_size, key_size, heads=heads)


class Location(nn.Module, Score):
    """Location score function of Luong et al., which depends only on the query and the position of the key.

    score(q, s) = (W q)_s   (Luong et al. 2015, eq. 8, "location")
    Computed by inner(), with the query projected by W and the s-th unit vector as the key of position s.

    weight: W, (query_size, max_length). Differs from the paper: the softmax is over the S keys of the call.
    S > max_length raises an ArgumentError. The paper ignores the words after position max_length.

    >>> import regard, torch
    >>> score = regard.Location(query_size=3, max_length=10)
    >>> q, anything = torch.ones(2, 3), torch.randn(5, 4)
    >>> look = regard.Look(weights=True)
    >>> a = regard.attention(q, anything, score=score, look=look).weights
    >>> b = regard.attention(q, 7 * anything, score=score, look=look).weights
    >>> torch.equal(a, b)
    True
    """

    equation: ClassVar[str] = "(W q)_s"

    def __init__(self, query_size: int, max_length: int, heads: int | None = None):
        super().__init__()
        self.query_size, self.max_length, self.heads = query_size, max_length, heads
        self.weight = _matrix(query_size, max_length, heads)

    def project_query(self, query: Tensor) -> Tensor:
        return query @ self.weight

    def project_key(self, key: Tensor, start: int = 0) -> Tensor:
        position = torch.arange(start, start + key.shape[-2], device=key.device)
        unit = (position[:, None] == torch.arange(self.max_length, device=key.device)).to(key.dtype)
        return unit.expand(*key.shape[:-2], *unit.shape)

    def narrowed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        keys = key.shape[-2]
        return query[..., :keys], key[..., :keys]

    def extra_repr(self) -> str:
        return f"query_size={self.query_size}, max_length={self.max_length}, heads={self.heads}"

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        if keys > self.max_length:
            return (
                f"there are S = {keys} keys, but this Location has max_length={self.max_length}",
                f"S <= {self.max_length}",
                f"create it with Location(query_size={self.query_size}, max_length={keys})",
            )
        return _differs(self, (self.query_size, key_size), (query_size, key_size))

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> Location:
        return cls(query_size, max_length=1024, heads=heads)


SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "general": General,
    "additive": Additive,
    "concat": Concat,
    "cosine": Cosine,
    "location": Location,
}


def build_score(score: str | Score, query_size: int, key_size: int, heads: int | None = None) -> Score:
    """Create a score function for these widths from its name.

    score: a key of SCORES such as "general", or a Score, which is returned unchanged.
    heads: number of heads, if each head has its own parameters. Default: all heads share the parameters.

    >>> import regard
    >>> regard.build_score("general", query_size=3, key_size=5).weight.shape
    torch.Size([3, 5])
    """
    if isinstance(score, Score):
        return score
    if score not in SCORES:
        raise UnknownName("score", score, SCORES)
    return SCORES[score].build(query_size, key_size, heads)


def learned_in(score: Score) -> nn.Parameter | None:
    """Return the learned sharpness of Cosine, so that a layer can register it. None if it is not learned."""
    sharpness = getattr(score, "sharpness", None)
    return sharpness if isinstance(sharpness, nn.Parameter) else None


def _unit(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    # Avoid a division by 0. With an epsilon in the denominator, zero vectors have the gradient 1 / epsilon.
    return vectors / torch.where(length > 0, length, torch.ones_like(length))


def _matrix(rows: int, columns: int, heads: int | None) -> nn.Parameter:
    bound = math.sqrt(6.0 / max(rows + columns, 1))
    return nn.Parameter(torch.empty(*([heads] if heads else []), rows, columns).uniform_(-bound, bound))


def _vector(size: int, heads: int | None) -> nn.Parameter:
    bound = math.sqrt(3.0 / max(size, 1))
    return nn.Parameter(torch.empty(*([heads] if heads else []), size).uniform_(-bound, bound))


def _differs(score: Score, own: tuple[int, int], sizes: tuple[int, int]) -> tuple[str, str, str] | None:
    if own == sizes:
        return None
    name = type(score).__name__
    return (
        f"the widths of query and key do not match this {name}",
        f"D of query = {own[0]}, D of key = {own[1]}",
        f"create it with {name}(query_size={sizes[0]}, key_size={sizes[1]})",
    )
