"""attend_directly(): frequent calls on a CPU, run without check() and choose_backend().

Checking the arguments and choosing a backend take longer than a small attention. This function recognises by
few comparisons a call in which nothing is wrong and for which "auto" would choose sdpa-cpu, or the path of
blocked for small inputs: a softmax without soft cap, dropout and look, with no mask, causal() or padding(),
or with a bias tensor and no mask. Such a call runs at once, with the result of the checked call, bit by bit.
For any other call the function returns None; attention() then checks the call, and raises the errors.

Nothing is kept from one call to the next, so a call with new sizes takes as long as a repeated one, and
whatever can change is read in each call.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from regard import sites
from regard.attended import Attended
from regard.backends import BACKENDS, blocked, sdpa
from regard.backends.transforms import once_differentiable_node
from regard.masks.mask import PLAIN, Mask, are_bounded
from regard.memory import Memory
from regard.positions import Bias
from regard.scores import Score
from regard.select import Select, Soft

__all__ = ["attend_directly"]

KNOWN = tuple(BACKENDS.values())
"""The backends among which this function knows what "auto" chooses. Users may change BACKENDS."""

DTYPES = sdpa.KERNELS["sdpa-cpu"].dtypes


def attend_directly(
    query: Tensor,
    key: Tensor | Memory,
    value: Tensor | None,
    score: Score,
    mask: Mask | Tensor | None,
    bias: Tensor | Bias | None,
    select: Select,
    start: int,
    beams: int,
) -> Attended | None:
    """Compute a frequent call; return None if attention() must check it, or if another backend runs it."""
    if torch.compiler.is_compiling() or sites._any_open or _is_transformed():
        return None
    if type(select) is not Soft or type(start) is not int or start < 0 or tuple(BACKENDS.values()) != KNOWN:
        return None
    key_size, cleaned = None, False
    if isinstance(key, Memory):
        if key.mask.parts:
            if mask is not None:
                return None
            mask, cleaned = key.mask, key.cleaned
        key_size, score, value, key = key.key_size, key.score, key.value, key.key
    elif value is None:
        value = key
    if not (_is_plain(query) and _is_plain(key) and _is_plain(value)):
        return None
    assert isinstance(key, Tensor) and isinstance(value, Tensor)
    dtype, of_query, of_key, of_value = query.dtype, query.shape, key.shape, value.shape
    if key.dtype is not dtype or value.dtype is not dtype or dtype not in DTYPES:
        return None
    dims = len(of_query)
    if dims not in (2, 3, 4) or len(of_key) != dims or of_key[:-1] != of_value[:-1]:
        return None
    batch = 1 if dims == 2 else of_query[0]
    heads, key_heads = (of_query[1], of_key[1]) if dims == 4 else (1, 1)
    queries, keys = of_query[-2], of_key[-2]
    if 0 in of_query or 0 in of_key or not of_value[-1] or (dims > 2 and of_key[0] != batch):
        return None
    if heads % key_heads or type(beams) is not int or beams < 1 or queries % beams:
        return None
    if not _suits(score, of_query, of_key, key_size, (heads, key_heads), dtype):
        return None
    is_causal, added, seeing = False, None, None
    if bias is not None:
        if mask is not None or score.combine != "inner" or not _is_plain(bias):
            return None
        added = _added(bias, (batch, heads, queries, keys)[-dims:], dtype, select.temperature)
        if added is None:
            return None
    elif mask is not None:
        if type(mask) is not Mask or not mask.only("causal", "lengths"):
            return None
        is_causal = mask.causal and start < keys - 1
        if is_causal and (start or queries < keys):
            return None
        lengths = mask.lengths
        if lengths is not None:
            if type(lengths) not in PLAIN or not lengths.is_cpu or lengths.shape[0] not in (1, batch):
                return None
            numbers = lengths.tolist()
            least = min(numbers)
            if least < 0 or max(numbers) > keys:
                return None
            if least < keys:
                if not (cleaned or are_bounded(key, value)):
                    return None
                visible = torch.arange(keys, device="cpu") < lengths.view(-1, 1, 1, 1)
                if not least:
                    seeing = (lengths > 0).view(-1, 1, 1)
                    visible = visible | ~seeing.unsqueeze(-1)
                wide = dtype if dtype is torch.float64 else torch.float32
                added = torch.where(visible, 0.0, -torch.inf).to(wide)
    tensors = (score.project_query(query), key, value)
    if score.combine == "additive":
        if is_causal or heads != key_heads:
            return None
        return _additive(tensors, score, added, seeing, select.temperature)
    if score.combine != "inner":
        return None
    return _inner(tensors, score.scale(of_query[-1]) / select.temperature, is_causal, added, seeing)


def _added(bias: Any, sizes: tuple[int, ...], dtype: torch.dtype, temperature: float) -> Tensor | None:
    """Return bias / temperature for the kernel of sdpa-cpu; None if it hides a key or has a gradient.

    sizes: the sizes of the scores: (T, S), or (B, H, T, S) if the query has four dimensions.
    """
    shape, wanted = bias.shape, sizes[-2:] if bias.dim() == 2 else sizes
    if bias.dtype is not dtype or dtype not in (torch.float32, torch.float64) or len(shape) != len(wanted):
        return None
    if (bias.requires_grad and torch.is_grad_enabled()) or bias.numel() == 0:
        return None
    if any(size not in (1, full) for size, full in zip(shape, wanted, strict=True)):
        return None
    if not float(bias.amin()) > -math.inf:
        return None
    added: Tensor = bias if temperature == 1.0 else bias / temperature
    return added


def _additive(
    tensors: tuple[Tensor, Tensor, Tensor], score: Score, bias: Tensor | None, seeing: Tensor | None,
    temperature: float,
) -> Attended | None:  # fmt: skip
    """Run an additive call by blocked.attend_small()."""
    query, key, value = tensors
    vector, dims = score.mixing_vector(), query.dim()
    if vector is None or not query.dtype is key.dtype is vector.dtype is value.dtype:
        return None
    if not blocked.few(query.shape[-2], query.numel() * key.shape[-2]):
        return None
    if dims == 2:
        query, key, value = query[None], key[None], value[None]
    if dims < 4 and bias is not None:
        bias, seeing = bias[:, 0], None if seeing is None else seeing[:, 0]
    output, lse = blocked.attend_small(query, key, value, vector, bias, seeing, temperature)
    return Attended(output, lse) if dims > 2 else Attended(output[0], lse[0])


def _inner(
    tensors: tuple[Tensor, Tensor, Tensor], scale: float, is_causal: bool, bias: Tensor | None,
    seeing: Tensor | None,
) -> Attended | None:  # fmt: skip
    """Run an inner product by the operator of sdpa-cpu, if it takes the tensors as they are."""
    query, key, value = tensors
    dims, keys, width = query.dim(), key.shape[-2], query.shape[-1]
    if query.dtype is not key.dtype or not width == key.shape[-1] == value.shape[-1]:
        return None
    if not all(each.is_contiguous() or each.stride(-1) == 1 for each in tensors):
        return None
    if dims == 3:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    elif dims == 2:
        query, key, value = query[None, None], key[None, None], value[None, None]
    output, lse = torch._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale
    )
    if output.grad_fn is not None:
        once_differentiable_node(output)
    if keys < sdpa.FEW_KEYS and lse.count_nonzero() < lse.numel():
        output, lse = sdpa.with_missing_nan(output, lse, query, key)
    if seeing is not None:
        output, lse = sdpa.empty_rows(output, lse, seeing)
    if dims == 4:
        return Attended(output, lse)
    if dims == 3:
        return Attended(output.squeeze(1), lse.squeeze(1))
    return Attended(output[0, 0], lse[0, 0])


def _is_plain(tensor: object) -> bool:
    """Whether this is a dense tensor on a CPU, with values that Python code may read."""
    if type(tensor) not in PLAIN:
        return False
    assert isinstance(tensor, Tensor)
    return tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested


def _suits(
    score: Score, of_query: torch.Size, of_key: torch.Size, key_size: int | None, heads: tuple[int, int],
    dtype: torch.dtype,
) -> bool:  # fmt: skip
    """Whether the score can compare these query and key.

    key_size: width of the keys before projection, if they are those of a Memory; otherwise None.
    """
    if not isinstance(score, Score) or (score.heads is not None and heads != (score.heads, score.heads)):
        return False
    kind = type(score)
    if kind.narrowed is not Score.narrowed:
        return False
    if key_size is None and (kind.project_key is not Score.project_key or score.combine == "additive"):
        return False
    if score.mismatch(of_query[-1], of_key[-1] if key_size is None else key_size, of_key[-2]) is not None:
        return False
    if not isinstance(score, nn.Module):
        return True
    parameter = next(iter(score._parameters.values()), None)
    return parameter is not None and parameter.dtype is dtype and parameter.is_cpu


def _is_transformed() -> bool:
    """Whether a transform, a tracer or autocast is active."""
    return bool(
        _interpreter_stack()
        or forward_ad._current_level >= 0
        or _dispatch_modes()
        or _tracing_state() is not None
        or _autocast_enabled()
    )


# As global names, because looking up the attributes of torch._C in each call takes time.
_interpreter_stack = torch._C._functorch.get_interpreter_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state
_autocast_enabled = torch._C._is_any_autocast_enabled
