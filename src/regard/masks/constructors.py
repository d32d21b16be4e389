"""Functions that create masks: causal, padding, window, documents, where, dense."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, message
from regard.masks.conditions import Predicate
from regard.masks.mask import Mask, dense

__all__ = ["causal", "dense", "documents", "padding", "where", "window"]

Ids = Tensor | Sequence[Sequence[int]]


def causal() -> Mask:
    """Return a causal mask: a query at position i sees the keys j <= i.

    The position of a query is its row plus the argument `start` of attention(). In this example, the two
    queries have the positions 1 and 2. Mask.sees() in masks/mask.py compares the positions.

    >>> import regard
    >>> regard.causal().dense(queries=2, keys=4, start=1)[0, 0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0]], dtype=torch.int32)
    """
    return Mask(causal=True)


def padding(lengths: Tensor | Sequence[int]) -> Mask:
    """Return a padding mask: the queries of sequence b see only the first lengths[b] keys.

    lengths: (B,), integers from 0 to S, one per sequence of the batch. Or (1,): one length for all sequences.

    A negative length raises an ArgumentError here. A length above S raises an ArgumentError in attention().
    Lengths on a GPU, or inside torch.compile and vmap, are not checked, because a check would synchronise the
    device or break the graph. Then a length above S hides no key, and a negative length hides all keys.

    >>> import regard, torch
    >>> regard.padding(torch.tensor([1, 3])).dense(queries=1, keys=3).squeeze().int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    lengths = _tensor("padding()", "lengths", lengths)
    if lengths.dim() != 1 or not _has_integers(lengths) or lengths.dtype == torch.bool:
        raise ArgumentError(
            message(
                "padding()",
                "lengths must be integers, one per sequence",
                {"lengths": (lengths, "B" if lengths.dim() == 1 else "BS")},
                "an integer tensor of shape (B,)",
                "from a bool tensor that is True for tokens: padding(is_token.sum(-1)), "
                "or mask=is_token[:, None, None, :]",
            )
        )
    return Mask(lengths=lengths, longest=_longest(lengths))


def _tensor(call: str, name: str, numbers: Tensor | Sequence[Any]) -> Tensor:
    """Return the argument `name` of a call as a tensor; raise ArgumentError if torch cannot convert it."""
    if isinstance(numbers, Tensor):
        return numbers
    if isinstance(numbers, Sequence) and not len(numbers):
        return torch.empty(0, dtype=torch.long)  # torch converts an empty list to a float tensor
    try:
        return torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError):
        kind = type(numbers).__name__
        problem = f"torch.as_tensor() cannot convert {name}, an argument of type {kind}"
        raise ArgumentError(
            message(call, problem, expected="an integer tensor, or a list of integers")
        ) from None


def _has_integers(numbers: Tensor) -> bool:
    return not numbers.is_floating_point() and not numbers.is_complex()


def _longest(lengths: Tensor) -> int | None:
    """Return the largest length, or None if reading it would synchronise the device or break the graph.

    A negative length raises ArgumentError.
    """
    if lengths.device.type != "cpu" or type(lengths) is not Tensor or torch.compiler.is_compiling():
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(lengths):  # inside vmap, a length has many values
        return None
    if not lengths.numel():
        return 0
    shortest, longest = (int(each) for each in lengths.aminmax())
    if shortest < 0:
        index = int(lengths.argmin())
        problem = f"lengths[{index}] = {shortest} is negative"
        raise ArgumentError(message("padding()", problem, {"lengths": (lengths, "B")}, "0 <= length <= S"))
    return longest


def window(left: int | None = None, right: int | None = None) -> Mask:
    """Return a window mask: a query at position i sees the keys at positions i - left to i + right.

    left, right: number of keys before and after position i, 0 or more. None: no limit.

    window(d, d) is the local-m attention of Luong et al. (2015, section 3.2). causal() & window(left=d) is a
    sliding window.

    >>> import regard
    >>> regard.window(left=0, right=1).dense(queries=2, keys=3)[0, 0].int()
    tensor([[1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    bounds: list[int | None] = []
    for name, bound in (("left", left), ("right", right)):
        if bound is not None and (not isinstance(bound, int | Integral) or bound < 0):
            expected = "an integer, 0 or more, or None for no limit"
            raise ArgumentError(message("window()", f"{name} is {bound!r}", expected=expected))
        bounds.append(bound if bound is None or isinstance(bound, int) else int(bound))
    return Mask() if left is None and right is None else Mask(window=(bounds[0], bounds[1]))


def documents(queries: Ids, keys: Ids | None = None) -> Mask:
    """Return a mask for packed sequences: a query sees only the keys of its own document.

    queries: (B, N), the document id of each query position. N is at least start + T.
    keys: (B, S), the document id of each key. Default: `queries`.

    >>> import regard, torch
    >>> regard.documents(torch.tensor([[7, 7, 9]])).dense(queries=3, keys=3)[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    queries = _tensor("documents()", "queries", queries)
    keys = queries if keys is None else _tensor("documents()", "keys", keys)
    if _has_integers(queries) and _has_integers(keys):
        queries, keys = queries.long(), keys.long()  # torch cannot sort every integer dtype
    problem = "" if queries.dim() == keys.dim() == 2 else "the document ids must be 2-D"
    if queries.is_complex() or keys.is_complex():
        problem = "the document ids are complex numbers"
    if problem:
        shown = {"queries": (queries, "BN"), "keys": (keys, "BS")}
        expected = "integers, in queries (B, N) and keys (B, S)"
        hint = "for one sequence: documents(ids[None])" if queries.dim() == 1 else ""
        raise ArgumentError(message("documents()", problem, shown, expected, hint))
    return Mask(documents=(queries, keys))


def where(may_see: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Mask:
    """Return a mask computed by a function, like mask_mod in FlexAttention.

    may_see: a function of four index tensors (batch, head, query position, key position) that broadcast to
        (B, H, T, S). It returns a bool tensor, True where the query may see the key.

    >>> import regard
    >>> even = regard.where(lambda batch, head, query, key: (query - key) % 2 == 0)
    >>> even.dense(queries=2, keys=4)[0, 0].int()
    tensor([[1, 0, 1, 0],
            [0, 1, 0, 1]], dtype=torch.int32)
    """
    if not callable(may_see):
        problem = f"may_see is of type {type(may_see).__name__}"
        expected = "a function of four index tensors"
        hint = "pass a bool tensor to attention() directly: mask=tensor"
        raise ArgumentError(message("where()", problem, expected=expected, hint=hint))
    try:
        if not torch.compiler.is_compiling():  # which does not trace inspect.signature()
            inspect.signature(may_see).bind(*"bhij")
    except TypeError as error:
        expected = "a function of four index tensors: batch, head, query position and key position"
        raise ArgumentError(message("where()", f"may_see: {error}", expected=expected)) from None
    except ValueError:  # Python cannot read the signature of some functions in C
        pass
    return Mask(condition=Predicate(may_see))
