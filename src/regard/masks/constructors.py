"""Constructors of masks: causal, padding, window, documents, where, dense. mask.py has the class Mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

import torch
from torch import Tensor

from regard.errors import ArgumentError, message
from regard.masks.conditions import Asked
from regard.masks.mask import Mask, dense

__all__ = ["causal", "dense", "documents", "padding", "where", "window"]

Ids = Tensor | Sequence[Sequence[int]]


def causal() -> Mask:
    """Let each query see its own position and what is before it: key j <= query i, i counted from `start`.

    >>> import regard
    >>> regard.causal().dense(queries=2, keys=4, start=1)[0, 0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0]], dtype=torch.int32)
    """
    return Mask(causal=True)


def padding(lengths: Tensor | Sequence[int]) -> Mask:
    """Hide the keys past each sequence's length.

    lengths: (B,), integers from 0 to S. A length that is negative or more than S, the number of keys, raises
    an ArgumentError: the first here, the second in the call that uses the mask. Lengths that are already on a
    GPU, or inside a torch.compile region, are not checked, because that would synchronise the device or break
    the graph; there a length of more than S hides no key, and a negative one hides all.

    >>> import regard, torch
    >>> regard.padding(torch.tensor([1, 3])).dense(queries=1, keys=3).squeeze().int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    lengths = torch.as_tensor(lengths)
    if lengths.dim() != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ArgumentError(
            message(
                "padding()",
                "lengths are whole numbers, one a sequence",
                {"lengths": (lengths, "BS")},
                "an integer tensor of shape (B,)",
                "from a bool tensor of real tokens: padding(real.sum(-1)), or mask=real[:, None, None, :]",
            )
        )
    return Mask(lengths=lengths, longest=_longest(lengths))


def _longest(lengths: Tensor) -> int | None:
    """The largest length, where it can be read at no cost; raises where one is negative."""
    if lengths.device.type != "cpu" or type(lengths) is not Tensor or torch.compiler.is_compiling():
        return None
    if not lengths.numel():
        return 0
    shortest, longest = (int(each) for each in lengths.aminmax())
    if shortest < 0:
        index = int(lengths.argmin())
        problem = f"lengths[{index}] = {shortest}"
        raise ArgumentError(message("padding()", problem, {"lengths": (lengths, "B")}, "0 <= length <= S"))
    return longest


def window(left: int | None = None, right: int | None = None) -> Mask:
    """Let each query see from `left` keys before it to `right` keys after it; None is no bound.

    window(d, d) is Luong's local-m (2015, section 3.2); causal() & window(left=d) is a sliding window.

    >>> import regard
    >>> regard.window(left=0, right=1).dense(queries=2, keys=3)[0, 0].int()
    tensor([[1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    bounds: list[int | None] = []
    for name, bound in (("left", left), ("right", right)):
        if bound is not None and (not isinstance(bound, int | Integral) or bound < 0):
            expected = "an integer, 0 or more, or None for no bound"
            raise ArgumentError(message("window()", f"{name} is {bound!r}", expected=expected))
        bounds.append(bound if bound is None or isinstance(bound, int) else int(bound))
    return Mask() if left is None and right is None else Mask(window=(bounds[0], bounds[1]))


def documents(queries: Ids, keys: Ids | None = None) -> Mask:
    """Keep packed sequences apart: a query sees the keys of its own document.

    queries: (B, N), the document of each query position; keys: (B, S), likewise (the same unless given).

    >>> import regard, torch
    >>> regard.documents(torch.tensor([[7, 7, 9]])).dense(queries=3, keys=3)[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    keys = queries if keys is None else keys
    queries, keys = torch.as_tensor(queries), torch.as_tensor(keys)
    if not (queries.is_floating_point() or keys.is_floating_point()):
        queries, keys = queries.long(), keys.long()  # not all kinds of whole numbers can be sorted
    if queries.dim() != 2 or keys.dim() != 2:
        shown = {"queries": (queries, "BN"), "keys": (keys, "BS")}
        raise ArgumentError(message("documents()", "ids are (B, N)", shown, "two sizes each"))
    return Mask(documents=(queries, keys))


def where(may_see: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Mask:
    """Ask any question of (batch, head, query position, key position), given as index tensors.

    may_see: returns a bool tensor; its four arguments broadcast to (B, H, T, S).

    >>> import regard
    >>> even = regard.where(lambda batch, head, query, key: (query - key) % 2 == 0)
    >>> even.dense(queries=2, keys=4)[0, 0].int()
    tensor([[1, 0, 1, 0],
            [0, 1, 0, 1]], dtype=torch.int32)
    """
    if not callable(may_see):
        problem = f"may_see is of type {type(may_see).__name__}"
        hint = "a bool tensor is a mask as it is: mask=tensor"
        raise ArgumentError(
            message("where()", problem, expected="a function of four index tensors", hint=hint)
        )
    return Mask(question=Asked(may_see))
