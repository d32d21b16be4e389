"""check(): turn the arguments of attention() into a Call, or raise an ArgumentError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from regard.call import Call
from regard.dimensions import autocast_on, check_tensors, lift
from regard.errors import ArgumentError, message
from regard.look import Look
from regard.masks.mask import Mask, as_mask, cleaned
from regard.memory import Memory
from regard.positions import Bias
from regard.scores import Score
from regard.select import Select, Soft

__all__ = ["check"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_LETTERS = {"query": "BHTD", "key": "BHSD", "value": "BHSE"}
_WITHOUT_HEADS = {"query": "BTD", "key": "BSD", "value": "BSE"}
_LOOKS = (Look, type(None))
_INTEGERS = (int, torch.SymInt)
_FLOATS = (float, int)

Tensors = tuple[Tensor, Tensor, Tensor]
"""Query, key and value as the user has passed them, which the error messages show."""


def check(
    query: Tensor,
    key: Tensor | Memory,
    value: Tensor | None = None,
    *,
    score: Score,
    select: Select,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Bias | None = None,
    softcap: float | None = None,
    start: int = 0,
    dropout: float = 0.0,
    look: Look | None = None,
    leave_hidden: bool = False,
) -> Call:
    """Check the arguments of attention(), project query and key, add missing dimensions; return a Call.

    leave_hidden: leave the keys and values that the mask hides as they are, if this is possible. Before a
        backend runs that reads them, Call.cleaned() sets them to 0.
    """
    memory = key if isinstance(key, Memory) else None
    raw_key: Any = key if memory is None else memory.key
    raw_value: Any = (raw_key if value is None else value) if memory is None else memory.value
    if not (_is_dense(query) and _is_dense(raw_key) and _is_dense(raw_value)) or not isinstance(look, _LOOKS):
        _refuse_kinds(query, key, value, look)
    if type(start) is not int or type(dropout) is not float:
        start, dropout = _python_numbers(start, dropout)
    if softcap is not None:
        softcap = _checked_softcap(softcap)
    autocast = torch._C._is_any_autocast_enabled() and autocast_on(query.device.type)
    if autocast:
        query, raw_key, raw_value = _same_dtype(query, raw_key, raw_value)
    tensors = (query, raw_key, raw_value)
    valid = (
        isinstance(score, Score)
        and isinstance(select, Select)
        and (bias is None or isinstance(bias, Tensor | Bias))
        and isinstance(start, _INTEGERS)
        and start >= 0
        and isinstance(dropout, _FLOATS)
        and 0.0 <= dropout < 1.0
    )
    if not (valid and _match(*tensors)):
        _check_options(tensors, score, select, bias, start, dropout)
        _check_shapes(*tensors)
    dims, queries, keys = query.dim(), query.shape[-2], raw_key.shape[-2]
    heads = query.shape[1] if dims == 4 else 1
    sizes = (query.shape[0] if dims > 2 else 1, heads, queries, keys)
    full_mask = hiding = as_mask(mask, dims)
    if memory is not None:
        score = memory.score
        if memory.mask.parts:
            full_mask = memory.mask & full_mask.to(query.device)
            # The keys that `hiding` masks are set to 0 below. `hiding` does not contain the lengths in
            # memory.mask if prepare() has already set the keys beyond these lengths to 0.
            hiding = replace(full_mask, lengths=hiding.lengths) if memory.cleaned else full_mask
    _check_score(score, tensors, raw_key.shape[-1] if memory is None else memory.key_size, autocast)
    if full_mask.parts:
        full_mask, hiding = full_mask.to(query.device), hiding.to(query.device)
        _check_mask(full_mask, tensors, sizes, start)
        simple = full_mask.simplified(queries, keys, start)
        hiding = simple if hiding is full_mask else hiding.simplified(queries, keys, start)
        full_mask = simple
    if not isinstance(select, Soft):
        _check_select(select, tensors)
        select = select.lifted(lift)
    if bias is not None:
        bias = _lifted_bias(bias, tensors, sizes)
    added = bias if isinstance(bias, Tensor) else None
    hides = hiding if hiding.parts else None
    projects = memory is None and type(score).project_key is not Score.project_key
    uncleaned = leave_hidden and hides is not None and added is None and not projects
    if not uncleaned and (hides is not None or added is not None):
        raw_key, raw_value = cleaned(raw_key, raw_value, hides, queries, start, heads, added)
    scale = score.scale(query.shape[-1])
    key = raw_key if memory is not None else score.project_key(raw_key)
    query, key = score.narrowed(score.project_query(query), key)
    if query.dtype is not raw_value.dtype or key.dtype is not raw_value.dtype:
        # Under autocast, a projection can return float32 even if its input is in half precision. Kernels need
        # query, key and value in one dtype, so query and key are converted to the dtype of value.
        query, key = query.to(raw_value.dtype), key.to(raw_value.dtype)
    if isinstance(bias, Bias):
        _check_bias(bias, tensors, heads, query.shape[-1])
    vector = score.mixing_vector()
    if vector is not None:
        vector = (vector if vector.dim() == 2 else vector[None]).to(query.dtype)
    if dims != 4:
        query, key, raw_value = lift(query), lift(key), lift(raw_value)
    return Call(
        query=query,
        key=key,
        value=raw_value,
        combine=score.combine,
        scale=scale,
        vector=vector,
        mask=full_mask,
        bias=bias,
        select=select,
        start=start,
        dropout=dropout,
        look=look.checked(select, queries) if look is not None and look.requested else look,
        softcap=softcap,
        uncleaned=uncleaned,
    )


def _is_dense(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_nested


def _match(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether dtypes, devices and shapes match, as _check_options() and _check_shapes() require."""
    of_query, of_key = query.shape, key.shape
    dims = len(of_query)
    if not (query.dtype is key.dtype is value.dtype and query.device == key.device == value.device):
        return False
    if query.dtype not in _DTYPES or dims != len(of_key) or of_key[:-1] != value.shape[:-1]:
        return False
    if dims == 4:
        heads = of_key[1]
        return bool(of_query[0] == of_key[0] and heads and of_query[1] % heads == 0)
    return dims == 2 or (dims == 3 and bool(of_query[0] == of_key[0]))


def _check_bias(bias: Bias, tensors: Tensors, heads: int, width: int) -> None:
    """Raise ArgumentError if a position scheme does not match the heads, D = width, or the values."""
    wrong = bias.mismatch(heads, width, tensors[2].shape[-1])
    if wrong:
        raise ArgumentError(message("attention()", wrong[0], _shown(*tensors), wrong[1]))


def _checked_softcap(softcap: float) -> float:
    """Return the soft cap of the scores. Raise ArgumentError unless it is a finite number above 0."""
    if isinstance(softcap, Real) and not isinstance(softcap, bool) and 0 < softcap < float("inf"):
        return float(softcap)
    expected = "None, or a finite number greater than 0, such as 50.0"
    raise ArgumentError(message("attention()", f"softcap is {softcap!r}", expected=expected))


def _python_numbers(start: int, dropout: float) -> tuple[int, float]:
    """Convert `start` and `dropout` from NumPy numbers to Python numbers; leave other types unchanged."""
    if not isinstance(start, int | torch.SymInt) and isinstance(start, Integral):
        start = int(start)
    if not isinstance(dropout, float | int) and isinstance(dropout, Real):
        dropout = float(dropout)
    return start, dropout


def _same_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under torch.autocast, cast the tensors to the autocast dtype, because kernels ignore autocast."""
    device = tensors[0].device.type
    if not autocast_on(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    cast = {torch.float32, torch.float16, torch.bfloat16}
    return tuple(tensor.to(dtype) if tensor.dtype in cast else tensor for tensor in tensors)


def _shown(query: Tensor, key: Tensor, value: Tensor) -> dict[str, tuple[Tensor, str]]:
    tensors = {"query": query, "key": key, "value": value}
    return {n: (t, (_WITHOUT_HEADS if t.dim() == 3 else _LETTERS)[n]) for n, t in tensors.items()}


def _check_options(
    tensors: Tensors,
    score: Score,
    select: Select,
    bias: object,
    start: int,
    dropout: float,
) -> None:
    def refuse(problem: str, expected: str, hint: str = "") -> None:
        raise ArgumentError(message("attention()", problem, _shown(*tensors), expected, hint))

    if not isinstance(score, Score):
        by_name = "to create a score function by name, use build_score(name, query_size, key_size)"
        hint = f"create one: {score.__name__}(...)" if isinstance(score, type) else by_name
        refuse(f"score is {score!r}", "a Score such as ScaledDot() or Additive(...)", hint)
    if not isinstance(select, Select):
        by_name = "to create a selection by name, use regard.select.build_select(name)"
        hint = f"create one: {select.__name__}(...)" if isinstance(select, type) else by_name
        refuse(f"select is {select!r}", "a Select such as Soft(), Sparse() or Hard()", hint)
    if bias is not None and not isinstance(bias, Tensor | Bias):
        expected = "a tensor, or a position scheme that acts on scores: Relative, T5Bias or ALiBi"
        if isinstance(bias, Sequence) or hasattr(bias, "__array__"):
            refuse(f"bias is of type {type(bias).__name__}", expected, "use torch.as_tensor(...)")
        refuse(f"bias is {bias!r}", expected)
    if not all(tensor.is_floating_point() for tensor in tensors):
        refuse(
            "not all tensors have a floating-point dtype",
            "floating-point tensors",
            "embed token ids first, for example with nn.Embedding",
        )
    if any(tensor.dtype not in _DTYPES for tensor in tensors):
        expected = "float64, float32, bfloat16 or float16"
        refuse("a tensor has a dtype that is not supported", expected, "cast with .to(torch.bfloat16)")
    if len({tensor.dtype for tensor in tensors}) > 1:
        refuse("the tensors have different dtypes", "one dtype", "use .to(query.dtype) or torch.autocast")
    if len({tensor.device for tensor in tensors}) > 1:
        refuse("the tensors are on different devices", "one device", "move them with .to(query.device)")
    if not isinstance(start, int | torch.SymInt) or start < 0:
        refuse(f"start is {start!r}", "the position of the first query: an integer, 0 or more")
    if not isinstance(dropout, float | int) or not 0.0 <= dropout < 1.0:
        refuse(f"dropout is {dropout!r}", "a probability, 0 <= dropout < 1")


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    def refuse(problem: str, expected: str, hint: str = "") -> None:
        raise ArgumentError(message("attention()", problem, _shown(query, key, value), expected, hint))

    dims = {query.dim(), key.dim(), value.dim()}
    if len(dims) > 1 or not dims <= {2, 3, 4}:
        refuse(
            f"query has {query.dim()} dimensions, key has {key.dim()}, value has {value.dim()}",
            "2, 3 or 4 dimensions, the same number for all: (T, D), (B, T, D) or (B, H, T, D)",
            "if each sequence has one query, pass query[:, None, :]",
        )
    if key.shape[-2] != value.shape[-2]:
        refuse("the numbers of keys and values differ", "S of key = S of value")
    if query.dim() >= 3 and not query.shape[0] == key.shape[0] == value.shape[0]:
        refuse(
            "the batch sizes differ",
            "B of query = B of key = B of value",
            "to use one sequence of keys for the whole batch, pass key.expand"
            f"({', '.join(['B', *['-1'] * (key.dim() - 1)])}), and the same for value",
        )
    if query.dim() == 4:
        heads, key_heads = query.shape[1], key.shape[1]
        if key_heads != value.shape[1]:
            refuse("key and value have different numbers of heads", "H of key = H of value")
        if key_heads == 0 or heads % key_heads:
            refuse(
                "the number of query heads is not a multiple of the number of key heads",
                "H of query is a multiple of H of key",
                "use, for example, 8 query heads with 8, 4, 2 or 1 key heads (grouped-query attention)",
            )


def _refuse_kinds(query: object, key: object, value: object, look: object) -> None:
    for name, argument in {"query": query, "key": key, "value": value}.items():
        allowed = (Tensor, Memory) if name == "key" else (Tensor,)
        if not isinstance(argument, allowed) and not (name == "value" and argument is None):
            check_tensors("attention()", **{name: argument})
        tensor = argument.value if isinstance(argument, Memory) else argument
        if isinstance(tensor, Tensor) and (tensor.is_nested or tensor.layout != torch.strided):
            kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
            hint = (
                "use tensor.to_padded_tensor(0.0) and mask=padding(lengths)"
                if tensor.is_nested
                else "use tensor.to_dense()"
            )
            raise ArgumentError(
                message("attention()", f"{name} is {kind}", expected="a dense tensor", hint=hint)
            )
    if look is not None and not isinstance(look, Look):
        problem = f"look is {look!r}"
        raise ArgumentError(
            message("attention()", problem, expected="a Look", hint="pass look=Look(weights=True)")
        )


def _check_mask(mask: Mask, tensors: Tensors, sizes: tuple[int, int, int, int], start: int) -> None:
    """Raise ArgumentError if the mask does not match a call of the sizes (B, H, T, S)."""
    problem = mask.problem(*sizes, start)
    if problem:
        expected, hint = _expected_of_mask(mask, sizes[0], sizes[3])
        raise ArgumentError(message("attention()", problem, _shown(*tensors), expected, hint))


def _check_select(select: Select, tensors: Tensors) -> None:
    """Raise ArgumentError if a tensor of the selection does not match the query."""
    problem = select.problem(tuple(tensors[0].shape[:-1]))
    if problem:
        expected, hint = "one centre per query", "pass a centre with the shape query.shape[:-1]"
        raise ArgumentError(message("attention()", problem, _shown(*tensors), expected, hint))


def _expected_of_mask(mask: Mask, batch: int, keys: int) -> tuple[str, str]:
    """Return (expected, hint), two texts of the error message for a mask that does not match the call."""
    masks = (mask, *(mask.condition.parts() if mask.condition is not None else ()))
    if any(each.lengths is not None and each.lengths.shape[0] not in (1, batch) for each in masks):
        return f"one length for each of the B = {batch} sequences, or one length for all", ""
    if any(each.overlong(keys) for each in masks):
        return f"0 <= length <= S = {keys}", ""
    if any(each.documents is not None for each in masks) and mask.table is None:
        hint = "for keys of another length than the queries: documents(queries, keys)"
        return f"one document id for each position, for 1 or B = {batch} sequences", hint
    hint = "to mask padding: padding(lengths), or a bool tensor (B, S) as mask=tensor[:, None, None, :]"
    return "a mask that broadcasts to (B, H, T, S)", hint


def _lifted_bias(bias: Tensor | Bias, tensors: Tensors, sizes: tuple[int, int, int, int]) -> Tensor | Bias:
    """Return a bias tensor with four dimensions. Raise ArgumentError if the bias does not match the call."""
    dims, device = tensors[0].dim(), tensors[0].device
    own = [bias] if isinstance(bias, Tensor) else [*bias.parameters(), *bias.buffers()]
    if any(tensor.device != device for tensor in own):
        problem, hint = f"the bias is on {own[0].device}", "move it with bias.to(query.device)"
        expected = "bias on the device of query"
        raise ArgumentError(message("attention()", problem, _shown(*tensors), expected, hint))
    if isinstance(bias, Bias):
        return bias
    lifted = bias
    if bias.dim() == 2:
        lifted = bias[None, None]
    elif bias.dim() == 3 and dims == 3:
        lifted = bias[:, None]
    broadcasts = lifted.dim() == 4 and all(
        size in (1, full) for size, full in zip(lifted.shape, sizes, strict=True)
    )
    if broadcasts and bias.dtype in _DTYPES:
        return lifted
    problem, hint = (
        "the meaning of a 3-D bias is ambiguous here"
        if bias.dim() == 3 and dims == 4
        else "the bias does not broadcast to the scores, or has a dtype that is not supported",
        "for one bias per head: bias[None]; for one bias per sequence: bias[:, None]",
    )
    if bias.dtype == torch.bool:
        problem, hint = "the bias has dtype bool", "pass a bool tensor as a mask: mask=..."
    raise ArgumentError(
        message(
            "attention()",
            problem,
            {**_shown(*tensors), "bias": (bias, "BTS" if dims == 3 else "BHTS")},
            f"a floating-point tensor (T, S), or broadcastable to (B, H, T, S) = {sizes}",
            hint,
        )
    )


def _check_score(score: Score, tensors: Tensors, key_size: int, autocast: bool) -> None:
    """Raise ArgumentError if the score function `score` cannot compare query and key.

    It checks widths, number of heads, device and dtype.

    key_size: width of the keys before projection.
    """
    query, key, _ = tensors
    wrong = score.mismatch(query.shape[-1], key_size, key.shape[-2])
    if score.heads is not None:
        heads = (query.shape[1], key.shape[1]) if query.dim() == 4 else (1, 1)
        if heads != (score.heads, score.heads):
            wrong = (
                f"this {type(score).__name__} has parameters for {score.heads} heads, "
                f"but query has {heads[0]} heads and key has {heads[1]}",
                f"query (B, {score.heads}, T, D) and key (B, {score.heads}, S, D)",
                "to share the parameters among all heads, create the score function without heads=...",
            )
    if isinstance(score, nn.Module):
        parameter = next(iter(score._parameters.values()), None)
        if parameter is None:  # it has none of its own
            parameter = next(score.parameters(), None)
        if parameter is not None and parameter.device != query.device:
            name = type(score).__name__
            wrong = (f"{name} is on {parameter.device}", "one device", "move it with score.to(query.device)")
        elif parameter is not None and parameter.dtype != query.dtype and not autocast:
            dtype = str(parameter.dtype).removeprefix("torch.")
            hint = "use score.to(query.dtype) or torch.autocast"
            wrong = (
                f"{type(score).__name__} has {dtype} parameters", "parameters with the dtype of query", hint
            )  # fmt: skip
    if wrong:
        problem, expected, hint = wrong
        raise ArgumentError(message("attention()", problem, _shown(*tensors), expected, hint))
