"""check(): turn the arguments of attention() into a Call, or raise an ArgumentError."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real

import torch
from torch import Tensor, nn

from regard.call import Call
from regard.dimensions import autocast_on, lift, lifted_mask
from regard.errors import ArgumentError, message
from regard.look import Look
from regard.masks.mask import Mask
from regard.memory import Memory, cleaned
from regard.positions import Bias
from regard.scores import Score
from regard.select import Select

__all__ = ["check", "cleaned_call"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_LETTERS = {"query": "BHTD", "key": "BHSD", "value": "BHSE"}
_WITHOUT_HEADS = {"query": "BTD", "key": "BSD", "value": "BSE"}


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
        backend runs that reads them, cleaned_call() sets them to 0.
    """
    _check_tensors(query, key, value, look)
    start, dropout = _python_numbers(start, dropout)
    _check_softcap(softcap)
    memory, raw_key, raw_value = None, key, key if value is None else value
    if isinstance(key, Memory):
        memory, raw_key, raw_value = key, key.key, key.value
    assert isinstance(raw_key, Tensor) and isinstance(raw_value, Tensor)
    query, raw_key, raw_value = _same_dtype(query, raw_key, raw_value)
    shown = _shown(query, raw_key, raw_value)
    _check_kinds(shown, score, select, bias, start, dropout)
    _check_shapes(query, raw_key, raw_value, shown)
    dims = query.dim()
    full_mask = hiding = lifted_mask(mask, dims).to(query.device)
    if memory:
        full_mask, score = memory.mask.to(query.device) & full_mask, memory.score
        # The keys that `hiding` masks are set to 0 below. `hiding` does not contain the lengths in
        # memory.mask if prepare() has already set the keys beyond these lengths to 0.
        hiding = replace(full_mask, lengths=hiding.lengths) if memory.cleaned else full_mask
    _check_score(score, query, raw_key, memory.key_size if memory else raw_key.shape[-1], shown)

    batch, heads, queries = lift(query).shape[:3]
    keys = raw_key.shape[-2]
    _check_mask(full_mask, select, query, (batch, heads, queries, keys), start, shown)
    full_mask, hiding = (each.simplified(queries, keys, start) for each in (full_mask, hiding))
    bias = _lifted_bias(bias, dims, (batch, heads, queries, keys), query.device, shown)
    added = bias if isinstance(bias, Tensor) else None
    hides = hiding if hiding.parts else None
    projects = memory is None and type(score).project_key is not Score.project_key
    uncleaned = leave_hidden and hides is not None and added is None and not projects
    if not uncleaned and (hides is not None or added is not None):
        raw_key, raw_value = cleaned(raw_key, raw_value, hides, queries, start, heads, added)
    projected_query, projected_key = (
        score.project_query(query),
        raw_key if memory else score.project_key(raw_key),
    )
    # Under autocast, a projection can return float32 even if its input is in half precision. Kernels need
    # query, key and value in one dtype, so query and key are converted to the dtype of value.
    projected_query, projected_key = (
        each.to(raw_value.dtype) for each in score.narrowed(projected_query, projected_key)
    )
    _check_bias(bias, heads, projected_query.shape[-1], raw_value.shape[-1], shown)
    vector = score.mixing_vector()
    if vector is not None:
        vector = (vector if vector.dim() == 2 else vector[None]).to(projected_query.dtype)
    return Call(
        query=lift(projected_query),
        key=lift(projected_key),
        value=lift(raw_value),
        combine=score.combine,
        scale=score.scale(query.shape[-1]),
        vector=vector,
        mask=full_mask,
        bias=bias,
        select=select.lifted(lift),
        start=start,
        dropout=dropout,
        look=look.checked(select, queries) if look is not None and look.requested else look,
        softcap=None if softcap is None else float(softcap),
        uncleaned=uncleaned,
    )


def cleaned_call(call: Call) -> Call:
    """Return the call with 0 for the keys and values that its mask hides, if check() has left them."""
    if not call.uncleaned:
        return call
    _, heads, queries, _ = call.sizes
    key, value = cleaned(call.key, call.value, call.mask, queries, call.start, heads)
    return replace(call, key=key, value=value, uncleaned=False)


def _check_bias(
    bias: Tensor | Bias | None, heads: int, width: int, values: int, shown: dict[str, tuple[Tensor, str]]
) -> None:
    """Raise ArgumentError if a position scheme does not match the heads, D = width, or E = values."""
    wrong = bias.mismatch(heads, width, values) if isinstance(bias, Bias) else None
    if wrong:
        raise ArgumentError(message("attention()", wrong[0], shown, wrong[1]))


def _check_softcap(softcap: float | None) -> None:
    """Raise ArgumentError if the soft cap of the scores is neither None nor a finite number above 0."""
    number = isinstance(softcap, Real) and not isinstance(softcap, bool)
    if softcap is None or (number and 0 < softcap < float("inf")):
        return
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


def _check_kinds(
    shown: dict[str, tuple[Tensor, str]],
    score: Score,
    select: Select,
    bias: object,
    start: int,
    dropout: float,
) -> None:
    def refuse(problem: str, expected: str, hint: str = "") -> None:
        raise ArgumentError(message("attention()", problem, shown, expected, hint))

    tensors = [tensor for tensor, _ in shown.values()]
    if not isinstance(score, Score):
        by_name = "to create a score function by name, use build_score(name, query_size, key_size)"
        hint = f"create one: {score.__name__}(...)" if isinstance(score, type) else by_name
        refuse(f"score is {score!r}", "a Score such as ScaledDot() or Additive(...)", hint)
    if not isinstance(select, Select):
        refuse(f"select is {select!r}", "a Select such as Soft(), Sparse() or Hard()")
    if bias is not None and not isinstance(bias, Tensor | Bias):
        refuse(
            f"bias is {bias!r}",
            "a tensor, or a position scheme that acts on scores: Relative, T5Bias or ALiBi",
        )
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


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, shown: dict[str, tuple[Tensor, str]]) -> None:
    def refuse(problem: str, expected: str, hint: str = "") -> None:
        raise ArgumentError(message("attention()", problem, shown, expected, hint))

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


def _check_tensors(query: object, key: object, value: object, look: object) -> None:
    for name, argument in {"query": query, "key": key, "value": value}.items():
        allowed = (Tensor, Memory) if name == "key" else (Tensor,)
        if not isinstance(argument, allowed) and not (name == "value" and argument is None):
            problem = f"{name} is of type {type(argument).__name__}"
            raise ArgumentError(
                message("attention()", problem, expected="a tensor", hint="use torch.as_tensor(...)")
            )
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


def _check_mask(
    mask: Mask,
    select: Select,
    query: Tensor,
    sizes: tuple[int, int, int, int],
    start: int,
    shown: dict[str, tuple[Tensor, str]],
) -> None:
    """Raise ArgumentError if the mask or the selection does not match a call of the sizes (B, H, T, S)."""
    problem = mask.problem(*sizes, start)
    if problem:
        expected, hint = _expected_of_mask(mask, sizes[0], sizes[3])
        raise ArgumentError(message("attention()", problem, shown, expected, hint))
    problem = select.problem(tuple(query.shape[:-1]))
    if problem:
        expected, hint = "one centre per query", "pass a centre with the shape query.shape[:-1]"
        raise ArgumentError(message("attention()", problem, shown, expected, hint))


def _expected_of_mask(mask: Mask, batch: int, keys: int) -> tuple[str, str]:
    """Return (expected, hint), two texts of the error message for a mask that does not match the call."""
    masks = (mask, *(mask.condition.parts() if mask.condition is not None else ()))
    if any(each.lengths is not None and each.lengths.shape[0] not in (1, batch) for each in masks):
        return f"one length for each of the B = {batch} sequences, or one length for all", ""
    if any(each.overlong(keys) for each in masks):
        return f"0 <= length <= S = {keys}", ""
    hint = "to mask padding: padding(lengths), or a bool tensor (B, S) as mask=tensor[:, None, None, :]"
    return "a mask that broadcasts to (B, H, T, S)", hint


def _lifted_bias(
    bias: Tensor | Bias | None,
    dims: int,
    sizes: tuple[int, int, int, int],
    device: torch.device,
    shown: dict[str, tuple[Tensor, str]],
) -> Tensor | Bias | None:
    if bias is None:
        return None
    own = [bias] if isinstance(bias, Tensor) else [*bias.parameters(), *bias.buffers()]
    if any(tensor.device != device for tensor in own):
        problem, hint = f"the bias is on {own[0].device}", "move it with bias.to(query.device)"
        raise ArgumentError(message("attention()", problem, shown, "bias on the device of query", hint))
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
        "the bias does not broadcast to the scores, or has a dtype that is not supported",
        "for one bias per head: bias[None]; for one bias per sequence: bias[:, None]",
    )
    if bias.dtype == torch.bool:
        problem, hint = "the bias has dtype bool", "pass a bool tensor as a mask: mask=..."
    raise ArgumentError(
        message(
            "attention()",
            problem,
            {**shown, "bias": (bias, "BTS" if dims == 3 else "BHTS")},
            f"a floating-point tensor (T, S), or broadcastable to (B, H, T, S) = {sizes}",
            hint,
        )
    )


def _check_score(
    score: Score, query: Tensor, key: Tensor, key_size: int, tensors: dict[str, tuple[Tensor, str]]
) -> None:
    """Raise ArgumentError if the score function `score` cannot compare query and key.

    It checks widths, number of heads, device and dtype.

    key_size: width of the keys before projection.
    tensors: the tensors to list in the error message; for each name, the tensor and one letter per dimension.
    """
    wrong = score.mismatch(query.shape[-1], key_size, key.shape[-2])
    heads = (query.shape[1], key.shape[1]) if query.dim() == 4 else (1, 1)
    name = type(score).__name__
    if score.heads is not None and heads != (score.heads, score.heads):
        wrong = (
            f"this {name} has parameters for {score.heads} heads, "
            f"but query has {heads[0]} heads and key has {heads[1]}",
            f"query (B, {score.heads}, T, D) and key (B, {score.heads}, S, D)",
            "to share the parameters among all heads, create the score function without heads=...",
        )
    parameter = next(score.parameters(), None) if isinstance(score, nn.Module) else None
    if parameter is not None and parameter.device != query.device:
        wrong = (f"{name} is on {parameter.device}", "one device", "move it with score.to(query.device)")
    elif parameter is not None and parameter.dtype != query.dtype and not autocast_on(query.device.type):
        dtype = str(parameter.dtype).removeprefix("torch.")
        hint = "use score.to(query.dtype) or torch.autocast"
        wrong = (f"{name} has {dtype} parameters", "parameters with the dtype of query", hint)
    if wrong:
        problem, expected, hint = wrong
        raise ArgumentError(message("attention()", problem, tensors, expected, hint))
