"""Scores: how a query is compared with a key.

Every score in the literature is a projection of each side and one of two ways to combine them:

    inner      score_ts = scale * sum_d q_td k_sd        dot, scaled dot, general, cosine, location
    additive   score_ts = sum_a v_a tanh(q_ta + k_sa)    Bahdanau, Luong's concat, LSTMN, captioning

A score says which combine it uses and how it projects; kernels are written per combine, never per score.
To add one: write its class, and add its line to SCORES at the end.
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
    """Combine by the inner product: scale * q . k, of shape (B, H, T, S)."""
    return (query_BHTD * scale) @ key_BHSD.transpose(-2, -1)


def additive(query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor) -> Tensor:
    """Combine by a tanh layer: v . tanh(q + k), of shape (B, H, T, S). Holds B x H x T x S x A."""
    hidden_BHTSA = torch.tanh(query_BHTA.unsqueeze(-2) + key_BHSA.unsqueeze(-3))
    return (hidden_BHTSA * vector_HA[:, None, None, :]).sum(-1)


class Score:
    """How to compare: combine(project_query(q), project_key(k)); subclass it to make a new one.

    The default is the plain inner product of query and key as they are; override what differs.

    >>> import regard, torch
    >>> class Negative(regard.Score):
    ...     def project_query(self, query):
    ...         return -query
    >>> regard.attention(torch.eye(2), torch.eye(2), score=Negative()).output.argmax(-1)
    tensor([1, 0])
    """

    combine: ClassVar[str] = "inner"
    equation: ClassVar[str] = "q . k"
    heads: int | None = None  # for how many heads it was made, where each has parameters of its own

    def project_query(self, query: Tensor) -> Tensor:
        """Turn queries (..., T, Dq) into what is combined (..., T, D)."""
        return query

    def project_key(self, key: Tensor, start: int = 0) -> Tensor:
        """Turn keys (..., S, Dk) into what is combined (..., S, D); the first stands at position `start`.
        Done once by `prepare`."""
        return key

    def scale(self, query_size: int) -> float:
        """The factor of an inner product, given the width of the query."""
        return 1.0

    def mixing_vector(self) -> Tensor | None:
        """The vector v of an additive score, of shape (heads or 1, A); None for an inner one."""
        return None

    def narrowed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Both without columns that cannot matter, once both are projected."""
        return query, key

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        """(problem, expected, hint) where these sizes cannot be compared, or None."""
        if query_size == key_size:
            return None
        name = type(self).__name__
        return (
            f"query and key have different widths, and {name} compares them as they are",
            "D of query = D of key",
            f"General(query_size={query_size}, key_size={key_size}) learns to compare different widths",
        )

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> Score:
        """Make one for these widths: what `build_score` calls."""
        return cls()


@dataclass(frozen=True)
class Dot(Score):
    """Compare by the plain inner product.

    score(q, k) = q . k   (Luong et al. 2015, section 3.1, "dot")
    Reduces to inner with nothing projected and scale 1.

    >>> import regard, torch
    >>> x, look = torch.eye(2), regard.Look(weights=True)
    >>> regard.attention(x, x, score=regard.Dot(), look=look).weights
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """

    equation: ClassVar[str] = "q . k"


@dataclass(frozen=True)
class ScaledDot(Score):
    """Compare by the inner product over the root of its width, so that its variance stays 1.

    score(q, k) = q . k / sqrt(D)   (Vaswani et al. 2017, eq. 1)
    Reduces to inner with nothing projected and scale 1/sqrt(D).

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
    """Compare by the cosine of the angle, sharpened: the content addressing of the neural Turing machine.

    score(q, k) = beta * q . k / (|q| |k|)   (Graves et al. 2014, eq. 5 and 6)
    Reduces to inner with both sides normalised and beta multiplied into the query.

    sharpness: beta, one number or a tensor of the query's shape without its last size, (..., T).
    A vector of length zero has cosine 0 with everything.

    >>> import regard, torch
    >>> memory = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    >>> regard.attention(memory, memory, score=regard.Cosine(sharpness=9.0)).output
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
                    "the sharpness of Cosine does not fit the queries",
                    {"sharpness": (beta, "BHT"), "query": (query, "BHTD")},
                    "one number, or one for each query",
                    "sharpness has the shape of the query without its last size",
                )
            )
        return _unit(query) * (beta.unsqueeze(-1).to(query.dtype) if isinstance(beta, Tensor) else beta)

    def project_key(self, key: Tensor, start: int = 0) -> Tensor:
        return _unit(key)


class General(nn.Module, Score):
    """Compare through a learned matrix, so that query and key may have different widths.

    score(q, k) = q W k   (Luong et al. 2015, section 3.1, "general")
    Reduces to inner with the query projected by W.

    weight: (query_size, key_size), or (heads, query_size, key_size) with one matrix a head.

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
    """Compare through a small tanh network, the first attention of all.

    score(q, k) = v . tanh(W q + U k)   (Bahdanau et al. 2014, appendix A.1.2)
    Reduces to additive; U k does not depend on the query, so `prepare` computes it once.

    query_weight W: (query_size, hidden), key_weight U: (key_size, hidden), vector v: (hidden,),
    each with a leading size `heads` where that is given. hidden is query_size unless given.

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
        return self.vector if self.vector.dim() == 2 else self.vector[None]

    def extra_repr(self) -> str:
        return f"query_size={self.query_size}, key_size={self.key_size}, heads={self.heads}"

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        return _differs(self, (self.query_size, self.key_size), (query_size, key_size))

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> Additive:
        return cls(query_size, key_size, heads=heads)


class Concat(nn.Module, Score):
    """Compare through one layer over query and key laid end to end.

    score(q, k) = v . tanh(W [q; k])   (Luong et al. 2015, section 3.1, "concat")
    Reduces to additive: W [q; k] = W_q q + W_k k, where W_q and W_k are the two parts of W.

    weight W: (query_size + key_size, hidden), vector v: (hidden,), with a leading `heads` where given.

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
        return self.vector if self.vector.dim() == 2 else self.vector[None]

    def extra_repr(self) -> str:
        return f"query_size={self.query_size}, key_size={self.key_size}, heads={self.heads}"

    def mismatch(self, query_size: int, key_size: int, keys: int) -> tuple[str, str, str] | None:
        return _differs(self, (self.query_size, self.key_size), (query_size, key_size))

    @classmethod
    def build(cls, query_size: int, key_size: int, heads: int | None = None) -> Concat:
        return cls(query_size, key_size, heads=heads)


class Location(nn.Module, Score):
    """Score positions from the query alone: where to look does not depend on what is there.

    score(q, s) = (W q)_s   (Luong et al. 2015, eq. 8, "location")
    Reduces to inner with the query projected by W and the key of position s the s-th unit vector.

    weight W: (query_size, max_length). Differs from the paper: the softmax is over the keys that there are,
    and a memory longer than max_length is refused, where the paper leaves its last words unseen.

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
                f"there are {keys} keys, and this Location knows positions up to {self.max_length}",
                f"S <= {self.max_length}",
                f"make it with Location(query_size={self.query_size}, max_length={keys})",
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
    """Make a score from its name for these widths; a score that is one already is given back.

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
    """The parameter of a score that is not a module, which the layer that holds the score must register."""
    sharpness = getattr(score, "sharpness", None)
    return sharpness if isinstance(sharpness, nn.Parameter) else None


def _unit(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    # A zero vector stays zero and keeps a finite gradient, where an epsilon would give it 1 / epsilon.
    return vectors / torch.where(length > 0, length, torch.ones_like(length))


def _matrix(rows: int, columns: int, heads: int | None) -> nn.Parameter:
    bound = math.sqrt(6.0 / max(rows + columns, 1))
    return nn.Parameter(torch.empty(*([heads] if heads else []), rows, columns).uniform_(-bound, bound))


def _vector(size: int, heads: int | None) -> nn.Parameter:
    bound = math.sqrt(3.0 / max(size, 1))
    return nn.Parameter(torch.empty(*([heads] if heads else []), size).uniform_(-bound, bound))


def _differs(score: Score, own: tuple[int, int], given: tuple[int, int]) -> tuple[str, str, str] | None:
    if own == given:
        return None
    name = type(score).__name__
    return (
        f"this {name} was made for other widths",
        f"D of query = {own[0]}, D of key = {own[1]}",
        f"make it with {name}(query_size={given[0]}, key_size={given[1]})",
    )
