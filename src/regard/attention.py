"""attention(): one function for every attention mechanism since 2014, in four steps.

    compare   compute a score for each pair of query and key
    mask      remove the keys that a query may not attend to
    select    turn scores into weights: soft, sparse or hard
    read      compute the weighted sum of the values

backends/reference.py implements these four steps directly; the other backends compute the same result faster.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from regard import sites
from regard.attended import Attended
from regard.backends import BACKENDS, choose_backend
from regard.backends.direct import attend_directly
from regard.call import Call
from regard.checking import check
from regard.dimensions import autocast_on, check_tensors, lower, one_row
from regard.errors import ArgumentError, answer_torch_keywords, message
from regard.look import Look
from regard.looking import look_at
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.positions import Bias
from regard.roles import Role
from regard.scores import Dot, ScaledDot, Score
from regard.select import Given, Select, Soft

__all__ = ["attention", "read"]

_SCORE, _SELECT = ScaledDot(), Soft()


@answer_torch_keywords
def attention(
    query: Tensor,
    key: Tensor | Memory,
    value: Tensor | None = None,
    *,
    score: Score = _SCORE,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Bias | None = None,
    softcap: float | None = None,
    select: Select = _SELECT,
    start: int = 0,
    beams: int = 1,
    dropout: float = 0.0,
    look: Look | None = None,
    backend: str = "auto",
    site: str = "attention",
    role: Role | None = None,
) -> Attended:
    """Compute attention of queries over keys and values.

    output_t = sum_s select(score(query_t, key_s) + bias_ts)_s value_s, over the keys s visible to query t

    query: (B, H, T, Dq). All inputs may lack the head dimension, (B, T, D), or head and batch dimensions,
        (T, D). The results then lack these dimensions too. A single query (D,), with key (S, D) and value
        (S, E), gives output (E,) and weights (S,); a mask or bias tensor is then (S,).
    key: (B, H, S, Dk), or a Memory from prepare(). Key and value may have fewer heads than the query if their
        number divides H (grouped-query attention).
    value: (B, H, S, E). Default: the key.
    score: the score function, which compares query and key, such as Additive(...). Default: ScaledDot().
    mask: a Mask, or a bool tensor that is True where a query may attend to a key.
    bias: a tensor added to the scores, broadcastable to (B, H, T, S), or a position scheme such as ALiBi.
    softcap: c, to replace each score by c * tanh(score / c), before the bias is added. Default: no cap.
    select: how to turn scores into weights, such as Sparse(). Default: Soft(), the softmax.
    start: position of the first query, for decoding with a cache; used by masks and position schemes.
    beams: number of sequences (beams of a beam search) that are concatenated along T, for intervene().
    dropout: probability of dropping a weight.
    look: what to return besides output and lse, such as the weights.
    backend: name of a backend; "auto" picks the fastest one that supports the call (see explain()).
    site: name of this call for record() and intervene().
    role: what queries and keys are, such as Role("cross", "target", "source"); recorded with the site.

    Returns an Attended; the result is its field `output`.

    A query that sees no key gets output 0, lse -inf and gradient 0. A key that no query may see has no effect
    on the result, even if it is NaN or inf. -inf in a bias tensor hides a key as a mask does. Output and lse
    are bitwise identical with and without `look`.

    >>> import regard, torch
    >>> key, value = 9 * torch.eye(2), torch.tensor([[1.0], [2.0]])
    >>> regard.attention(torch.eye(2), key, value).output
    tensor([[1.0017],
            [1.9983]])
    >>> regard.attention(torch.tensor([1.0, 0.0]), key, value).output
    tensor([1.0017])
    """
    if isinstance(query, Tensor) and query.dim() == 1 and not (isinstance(key, Tensor) and key.dim() == 1):
        options: dict[str, Any] = {"score": score, "softcap": softcap, "select": select, "start": start}
        options |= {"beams": beams, "dropout": dropout, "look": look, "backend": backend}
        options |= {"site": site, "role": role, "mask": one_row(mask), "bias": one_row(bias)}
        return attention(query[None], key, value, **options).of_one_query()
    if isinstance(key, Memory) and (value is not None or score is not _SCORE):
        problem = "a Memory already contains values and a score function"
        hint = "pass them to prepare(key, value, score=...) instead"
        raise ArgumentError(message("attention()", problem, hint=hint))
    if look is None and softcap is None and dropout == 0.0 and backend == "auto":
        attended = attend_directly(query, key, value, score, mask, bias, select, start, beams)
        if attended is not None:
            return attended
    call = check(
        query,
        key,
        value,
        score=score,
        select=select,
        mask=mask,
        bias=bias,
        softcap=softcap,
        start=start,
        dropout=dropout,
        look=look,
        leave_hidden=True,
    )
    if beams != 1:
        call = _with_beams(call, beams)
    return _attend(call, backend, site, role, query.dim())


def read(
    weights: Tensor,
    value: Tensor,
    *,
    start: int = 0,
    look: Look | None = None,
    site: str = "read",
    role: Role | None = None,
) -> Attended:
    """Compute the weighted sum of the values, as in the last step of attention(), with weights of your own.

    output_t = sum_s weight_ts value_s

    weights: (B, H, T, S).
    value: (B, H, S, E).
    start: the position of the first row, for intervene(), as in attention().

    weights and value may lack the head dimension, or head and batch dimensions. record() and intervene()
    apply to read() as they do to attention(). A neural Turing machine uses read() to read from its memory
    with shifted and sharpened weights.

    >>> import regard, torch
    >>> regard.read(torch.tensor([[0.25, 0.75]]), torch.tensor([[0.0], [4.0]])).output
    tensor([[3.]])
    """
    check_tensors("read()", weights=weights, value=value)
    keys = weights.shape[-1:]
    if weights.dim() != value.dim() or keys != value.shape[-2:-1] or weights.shape[:-2] != value.shape[:-2]:
        shown = {"weights": (weights, "BHTS"), "value": (value, "BHSE")}
        raise ArgumentError(
            message(
                "read()",
                "the shapes of weights and value do not match",
                shown,
                "the same B, H and S in weights and value",
            )
        )
    if weights.dtype != value.dtype or weights.device != value.device or not value.is_floating_point():
        shown = {"weights": (weights, "BHTS"), "value": (value, "BHSE")}
        raise ArgumentError(
            message(
                "read()",
                "weights and value have different dtypes or devices, or are not floating-point tensors",
                shown,
                "the same floating-point dtype and the same device",
            )
        )
    empty_query, empty_key = weights[..., :0], value[..., :0]
    call = check(empty_query, empty_key, value, score=Dot(), select=Given(weights), start=start, look=look)
    return _attend(call, "reference", site, role, weights.dim())


def _attend(call: Call, backend: str, site: str, role: Role | None, dims: int) -> Attended:
    """Run one attention() call on a backend, and return the output and the fields that `look` requests.

    The enclosing `with intervene()` statements edit the call before it runs. The enclosing `with record()`
    statements record its result.

    dims: number of dimensions of the user's query. The result has a head or batch dimension only if the query
        has it.
    """
    user_look, scopes = call.look, sites.scopes_at(site, role) if sites._any_open else []
    if scopes or user_look is not None:  # edits and looks read all keys
        call = call.cleaned()
    for scope in scopes:
        call = scope.applied(call)
    device = call.query.device.type
    if torch._C._is_any_autocast_enabled() and autocast_on(device):  # check() has already cast the inputs
        with torch.autocast(device, enabled=False):
            attended = _run(call, backend)
    else:
        attended = _run(call, backend)
    if dims == 4 and not scopes:
        return attended
    to_user = lower(dims)
    for scope in scopes:
        scope.keep(site, attended, call, to_user)
    return (attended.only(user_look, call.look) if scopes else attended).map(to_user)


def _run(call: Call, backend: str) -> Attended:
    """Run a call on a backend, and compute what its `look` requests."""
    chosen = BACKENDS[choose_backend(call, backend)]
    if call.uncleaned and not chosen.skips_hidden(call):
        call = call.cleaned(bounded=True)
    return look_at(call, chosen.run(call), call.look)


def _with_beams(call: Call, beams: int) -> Call:
    """Return the call with its field `beams` set: its T queries are `beams` sequences of equal length.

    intervene(), for example, uses this field to find the position of each query in its sequence. Masks and
    position schemes do not use it: for them, the T queries are one sequence.
    """
    queries = call.query.shape[2]
    if not isinstance(beams, int | torch.SymInt | Integral):
        problem, expected = f"beams is {beams!r}", "an integer, 1 or more"
        raise ArgumentError(message("attention()", problem, expected=expected))
    if beams < 1 or queries % beams:
        problem = f"T = {queries} is not divisible by beams = {beams}"
        raise ArgumentError(message("attention()", problem, expected="beams >= 1, T a multiple of beams"))
    return replace(call, beams=beams)
