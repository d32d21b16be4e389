"""Memory: keys and values that are projected once and used in many attention() calls."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.dimensions import check_tensors
from regard.errors import ArgumentError, message
from regard.masks.mask import Mask, as_mask, cleaned, known_true
from regard.scores import ScaledDot, Score

__all__ = ["Memory", "prepare", "projected"]


@dataclass(frozen=True, eq=False, repr=False)
class Memory:
    """Projected keys, values and a mask. prepare() returns a Memory, and attention() takes it as its key.

    key: (B, H, S, D), the keys, projected by `score`.
    value: (B, H, S, E).
    score: the score function that compares queries with these keys.
    mask: a mask that applies to every query. attention() combines it with its argument `mask`.
    key_size: width of the keys before projection.
    cleaned: whether keys and values behind the lengths of the mask are 0. If not, attention() sets them to 0
        for backends that read them.

    `key` and `value` lack the head or batch dimension if the inputs of prepare() lack it. A Memory is
    immutable: `append` and `reorder` return a new Memory.

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
    cleaned: bool = True

    def __repr__(self) -> str:
        shapes = f"key={tuple(self.key.shape)}, value={tuple(self.value.shape)}"
        return f"Memory({shapes}, score={self.score!r}, mask={self.mask!r})"

    @property
    def length(self) -> int:
        """The number of keys, S."""
        return self.key.shape[-2]

    def append(self, key: Tensor, value: Tensor | None = None) -> Memory:
        """Return a new Memory with n more keys and values at the end, as in the key-value cache of a decoder.

        key: the n new keys before projection, (..., n, Dk).
        value: the n new values, (..., n, E). Default: the key.
        """
        value = key if value is None else value
        check_tensors("Memory.append()", key=key, value=value)
        if key.shape[-1] != self.key_size or key.shape[:-2] != self.key.shape[:-2]:
            letters = "BSD" if self.key.dim() == 3 else "BHSD"
            raise ArgumentError(
                message(
                    "Memory.append()",
                    "the new keys do not match the shape of the memory",
                    {"key": (key, letters), "memory": (self.key, letters)},
                    f"leading dimensions {tuple(self.key.shape[:-2])} and width D = {self.key_size}",
                )
            )
        if not self.mask.only("causal", "window", "condition"):
            raise ArgumentError(
                message(
                    "Memory.append()",
                    f"the mask of this memory ({', '.join(self.mask.parts)}) is for a fixed number of keys",
                    expected="a memory prepared without padding(), documents() or a mask tensor",
                    hint="pass this mask to attention() at each step instead",
                )
            )
        return replace(
            self,
            key=torch.cat((self.key, projected(self.score, key, self.length).to(self.key.dtype)), -2),
            value=torch.cat((self.value, value), -2),
        )

    def to(self, device: torch.device | str) -> Memory:
        """Return a copy with keys, values and mask on another device. The score function is not moved."""
        device = torch.device(device)
        return replace(self, key=self.key.to(device), value=self.value.to(device), mask=self.mask.to(device))

    def detach(self) -> Memory:
        """Return a copy whose keys and values are detached: no gradient flows through them."""
        return replace(self, key=self.key.detach(), value=self.value.detach())

    def reorder(self, index: Tensor) -> Memory:
        """Return a new Memory with selected sequences of the batch, such as the beams that a search keeps.

        index: (B',). Sequence i of the new memory is sequence index[i] of this memory.
        """
        batch = self.key.shape[0] if self.key.dim() > 2 else 0
        call, expected = "Memory.reorder()", f"an integer tensor (B',) with 0 <= index < B = {batch}"
        check_tensors(call, index=index)
        if not batch:
            problem = f"this memory has no batch dimension, its keys have the shape {tuple(self.key.shape)}"
            raise ArgumentError(message(call, problem, expected="keys (B, S, D) or (B, H, S, D)"))
        if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
            hint = "to select by a condition: index=condition.nonzero()[:, 0]"
            hint = hint if index.dtype == torch.bool else ""
            problem = "index is not a list of positions"
            raise ArgumentError(message(call, problem, {"index": (index, "B")}, expected, hint))
        try:
            key = self.key.index_select(0, index)
        except (IndexError, RuntimeError):
            outside = [each for each in index.tolist() if not 0 <= each < batch]
            if not outside:
                raise
            problem = f"index has {outside[0]}, which is out of range"
            raise ArgumentError(message(call, problem, expected=expected)) from None
        value = self.value.index_select(0, index)
        return replace(self, key=key, value=value, mask=self.mask.reordered(index))


def prepare(
    key: Tensor, value: Tensor | None = None, *, score: Score | None = None, mask: Mask | Tensor | None = None
) -> Memory:
    """Project keys once, so that many attention() calls can use them, for example every decoding step.

    key: (B, H, S, Dk), or (B, S, Dk) or (S, Dk).
    value: (B, H, S, E), with the same leading dimensions as key. Default: the key.
    score: the score function that compares queries with these keys. Default: ScaledDot().
    mask: a mask that applies to every query, such as padding(lengths). attention() combines it with its
        argument `mask`.

    Returns a Memory. Keys that padding(lengths) hides have no effect on results, even if they are NaN or inf.

    >>> import regard, torch
    >>> states, lengths = torch.randn(2, 5, 6), torch.tensor([5, 3])
    >>> memory = regard.prepare(states, score=regard.Additive(4, 6), mask=regard.padding(lengths))
    >>> regard.attention(torch.randn(2, 1, 4), memory).output.shape
    torch.Size([2, 1, 6])
    """
    score = ScaledDot() if score is None else score
    value = key if value is None else value
    if not (isinstance(key, Tensor) and isinstance(value, Tensor)):
        check_tensors("prepare()", key=key, value=value)
    whole = as_mask(mask, key.dim()).to(key.device)
    _check_prepared(key, value, score, whole)
    if whole.lengths is not None:
        key, value = cleaned(key, value, Mask(lengths=whole.lengths), queries=1, start=0, heads=1)
    return Memory(projected(score, key), value, score, whole, key.shape[-1])


def projected(score: Score, key: Tensor, start: int = 0) -> Tensor:
    """Return the keys, projected by the score function. start: position of the first key.

    If a key contains NaN or inf, its projection is NaN. So the output of a query that sees this key is NaN.
    Such a key is not really projected: 0 is projected instead, and the result is replaced by NaN. Otherwise,
    a masked key with NaN would make the gradients of the score function NaN, because 0 * NaN is NaN.
    """
    if type(score).project_key is Score.project_key:
        return key
    finite = key.isfinite().all(-1, keepdim=True)
    if known_true(finite):
        return score.project_key(key, start)
    return torch.where(finite, score.project_key(torch.where(finite, key, 0.0), start), torch.nan)


def _check_prepared(key: Tensor, value: Tensor, score: Score, mask: Mask) -> None:
    if not isinstance(score, Score):
        hint = "to create a score function by name, use build_score(name, query_size, key_size)"
        raise ArgumentError(message("prepare()", f"score is {score!r}", expected="a Score", hint=hint))
    shown = {
        "key": (key, "BSD" if key.dim() == 3 else "BHSD"),
        "value": (value, "BSE" if key.dim() == 3 else "BHSE"),
    }
    width = getattr(score, "key_size", key.shape[-1])
    problem, expected, hint = "", "", ""
    if not key.is_floating_point() or not value.is_floating_point():
        problem, expected = "key and value do not have floating-point dtypes", "floating-point tensors"
        hint = "embed token ids first, for example with nn.Embedding"
    elif key.dim() not in (2, 3, 4) or key.shape[:-1] != value.shape[:-1]:
        problem, expected = (
            "the shapes of key and value do not match",
            "(B, H, S, D) and (B, H, S, E), or both without heads, or without heads and batch",
        )
    elif width != key.shape[-1]:
        problem, expected = f"the key width does not match this {type(score).__name__}", f"D of key = {width}"
    elif mask.batch not in (1, key.shape[0]) and key.dim() > 2:
        problem, expected = f"the mask has batch size {mask.batch}", f"the B of key, {key.shape[0]}"
    elif overlong := mask.overlong(key.shape[-2]):
        problem, expected = overlong, "0 <= length <= S"
    if problem:
        raise ArgumentError(message("prepare()", problem, shown, expected, hint))
