"""Memory: keys and values made ready once, read many times."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.dimensions import lift, lifted_mask
from regard.errors import ArgumentError, message
from regard.masks.mask import Mask
from regard.masks.tile import whole_tile
from regard.scores import ScaledDot, Score

__all__ = ["Memory", "cleaned", "prepare", "projected"]


@dataclass(frozen=True, eq=False, repr=False)
class Memory:
    """Keys as the score projects them, values, and who may see them: what `prepare` makes.

    key: (B, H, S, D), value: (B, H, S, E), with fewer sizes where they were prepared with fewer. Passed and
    returned, never changed: `append` and `reorder` give a new one.

    >>> import regard, torch
    >>> memory = regard.prepare(torch.randn(2, 3, 4))
    >>> memory.append(torch.randn(2, 1, 4)).length
    4
    """

    key: Tensor
    value: Tensor
    score: Score
    mask: Mask
    key_size: int

    def __repr__(self) -> str:
        shapes = f"key={tuple(self.key.shape)}, value={tuple(self.value.shape)}"
        return f"Memory({shapes}, score={self.score!r}, mask={self.mask!r})"

    @property
    def length(self) -> int:
        """How many keys there are."""
        return self.key.shape[-2]

    def append(self, key: Tensor, value: Tensor | None = None) -> Memory:
        """This memory with more keys and values after its own: the cache of a decoder.

        key: (..., n, Dk) before projection, value: (..., n, E), the key itself unless given.
        """
        value = key if value is None else value
        if key.shape[-1] != self.key_size or key.shape[:-2] != self.key.shape[:-2]:
            raise ArgumentError(
                message(
                    "Memory.append()",
                    "the keys are not like those before them",
                    {"key": (key, "BHSD"), "held": (self.key, "BHSD")},
                    f"sizes {tuple(self.key.shape[:-2])} before S, and width {self.key_size}",
                )
            )
        if not self.mask.only("causal", "window", "question"):
            raise ArgumentError(
                message(
                    "Memory.append()",
                    f"the mask of this memory ({', '.join(self.mask.parts)}) says how many keys there are",
                    expected="a memory prepared without lengths, documents or a tensor as mask",
                    hint="give such a mask to attention() at each step instead",
                )
            )
        return replace(
            self,
            key=torch.cat((self.key, projected(self.score, key, self.length).to(self.key.dtype)), -2),
            value=torch.cat((self.value, value), -2),
        )

    def reorder(self, index: Tensor) -> Memory:
        """The memory with its batch taken in another order, as beam search does. index: (B',)."""
        return replace(
            self,
            key=self.key.index_select(0, index),
            value=self.value.index_select(0, index),
            mask=self.mask.reordered(index),
        )


def prepare(
    key: Tensor, value: Tensor | None = None, *, score: Score | None = None, mask: Mask | Tensor | None = None
) -> Memory:
    """Make keys and values ready to be read at every step: projected once, cleaned once.

    key: (B, H, S, Dk), value: (B, H, S, E), the key itself unless given; (B, S, D) and (S, D) are taken too.
    score: ScaledDot() unless given. mask: what hides keys from every query, such as padding(lengths); a mask
    given to the call is added to it. Keys past their length never reach a result, NaN and inf included.

    >>> import regard, torch
    >>> states, lengths = torch.randn(2, 5, 6), torch.tensor([5, 3])
    >>> memory = regard.prepare(states, score=regard.Additive(4, 6), mask=regard.padding(lengths))
    >>> regard.attention(torch.randn(2, 1, 4), memory).output.shape
    torch.Size([2, 1, 6])
    """
    score = ScaledDot() if score is None else score
    value = key if value is None else value
    found = lifted_mask(mask, key.dim()).to(key.device)
    _check_prepared(key, value, score, found)
    if found.lengths is not None:
        key, value = cleaned(key, value, Mask(lengths=found.lengths), queries=1, start=0, heads=1)
    return Memory(projected(score, key), value, score, found, key.shape[-1])


def projected(score: Score, key: Tensor, start: int = 0) -> Tensor:
    """Keys as the score projects them. One that is not finite is NaN, and no gradient passes it: whether a
    query may see it is not known yet, and 0 times NaN would reach the score's parameters."""
    if type(score).project_key is Score.project_key:
        return key
    finite = key.isfinite().all(-1, keepdim=True)
    return torch.where(finite, score.project_key(torch.where(finite, key, 0.0), start), torch.nan)


def cleaned(
    key: Tensor,
    value: Tensor,
    mask: Mask,
    queries: int,
    start: int,
    heads: int,
    bias_BHTS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Keys and values with 0 where no query can see them, so NaN there cannot reach the result: those that
    the mask hides from every query, and those to which the bias adds -inf for every query."""
    batch, key_heads, keys = lift(key).shape[:3]
    seen = mask.seen_keys(whole_tile(queries, keys, start, batch, heads, key.device)) if mask.parts else None
    if bias_BHTS is not None and queries:
        by_bias = bias_BHTS.detach().amax(-2) != -torch.inf  # NaN, which is not -inf, hides nothing
        seen = by_bias if seen is None else seen & by_bias
    if seen is None:
        return key, value
    if seen.shape[1] not in (1, key_heads):
        seen = seen.unflatten(1, (key_heads, -1)).any(2)
    if key.dim() < 4:
        seen = seen[:, 0] if key.dim() == 3 else seen[0, 0]
    seen = seen.unsqueeze(-1)
    clean_key = torch.where(seen, key, 0.0)
    return clean_key, clean_key if value is key else torch.where(seen, value, 0.0)


def _check_prepared(key: Tensor, value: Tensor, score: Score, mask: Mask) -> None:
    if not isinstance(score, Score):
        hint = "build_score(name, query_size, key_size) makes one from its name"
        raise ArgumentError(message("prepare()", f"score is {score!r}", expected="a Score", hint=hint))
    shown = {
        "key": (key, "BSD" if key.dim() == 3 else "BHSD"),
        "value": (value, "BSE" if key.dim() == 3 else "BHSE"),
    }
    width = getattr(score, "key_size", key.shape[-1])
    problem, expected = "", ""
    if key.dim() not in (2, 3, 4) or key.shape[:-1] != value.shape[:-1]:
        problem, expected = (
            "keys and values do not fit each other",
            "(B, H, S, D) and (B, H, S, E), or fewer sizes",
        )
    elif width != key.shape[-1]:
        problem, expected = f"this {type(score).__name__} was made for other widths", f"D of key = {width}"
    elif mask.batch not in (1, key.shape[0]) and key.dim() > 2:
        problem, expected = f"the mask is for {mask.batch} sequences", f"B = {key.shape[0]}"
    elif overlong := mask.overlong(key.shape[-2]):
        problem, expected = overlong, "0 <= length <= S"
    if problem:
        raise ArgumentError(message("prepare()", problem, shown, expected))
