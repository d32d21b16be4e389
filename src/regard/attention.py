"""attention(): every attention mechanism since 2014 is this call.

    compare   score each query against each key
    mask      drop the keys a query may not see
    select    turn scores into weights: softly, sparsely, or hard
    read      sum the values by those weights

backends/reference.py is these four verbs as code; the other backends compute the same faster.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from regard import sites
from regard.attended import Attended
from regard.backends import BACKENDS, choose_backend
from regard.call import Call
from regard.checking import check
from regard.dimensions import autocast_on, lower
from regard.errors import ArgumentError, answer_torch_keywords, message
from regard.look import Look
from regard.looking import look_at
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.positions import Bias
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
    select: Select = _SELECT,
    start: int = 0,
    beams: int = 1,
    dropout: float = 0.0,
    look: Look | None = None,
    backend: str = "auto",
    site: str = "attention",
) -> Attended:
    """Read a memory of keys and values through queries.

    output_t = sum_s select(score(query_t, key_s) + bias_ts)_s value_s, over the keys s that t may see

    query: (B, H, T, Dq). key: (B, H, S, Dk), or a Memory from prepare(). value: (B, H, S, E), the key itself
    unless given. (B, T, D) without heads and (T, D) without a batch are taken and answered in kind; key and
    value may have fewer heads than the query where the count divides (grouped heads).
    score: how to compare. mask: who may see whom, a Mask or a bool tensor, True for may see. bias: numbers
    (B, H, T, S) added to the scores, or a position scheme that acts on them. select: how scores become
    weights. start: the position of the first query, for causal masks, windows and positions when decoding
    with a cache. beams: how many sequences of queries stand side by side, T / beams of each, so that
    intervene() finds the place of every row. dropout: of weights. look: what to see of it. backend: "auto"
    takes the fastest that can; `explain` says which, and why not the others. site: the name under which
    record() sees this call.

    A row that may see nothing gives output 0, lse -inf and gradient 0. A key that no query may see never
    reaches the result, even NaN or inf. -inf in a bias tensor hides a key as a mask does. Output and lse are
    the same, bit for bit, with and without looking.

    >>> import regard, torch
    >>> regard.attention(torch.eye(2), 9 * torch.eye(2), torch.tensor([[1.0], [2.0]])).output
    tensor([[1.0017],
            [1.9983]])
    """
    if isinstance(key, Memory) and (value is not None or score is not _SCORE):
        raise ArgumentError(
            message(
                "attention()",
                "a Memory already holds its values and its score",
                hint="prepare(key, value, score=...)",
            )
        )
    call = check(query, key, value, score, mask, bias, select, start, dropout, look)
    if beams != 1:
        call = _side_by_side(call, beams)
    return _attend(call, backend, site, query.dim())


def read(weights: Tensor, value: Tensor, *, look: Look | None = None, site: str = "read") -> Attended:
    """Sum values by weights made elsewhere: the fourth verb alone, seen and edited like the other three.

    output_t = sum_s weight_ts value_s

    weights: (B, H, T, S), value: (B, H, S, E), or both without heads, or without a batch. The shifted and
    sharpened addresses of a neural Turing machine read this way.

    >>> import regard, torch
    >>> regard.read(torch.tensor([[0.25, 0.75]]), torch.tensor([[0.0], [4.0]])).output
    tensor([[3.]])
    """
    keys = weights.shape[-1:]
    if weights.dim() != value.dim() or keys != value.shape[-2:-1] or weights.shape[:-2] != value.shape[:-2]:
        shown = {"weights": (weights, "BHTS"), "value": (value, "BHSE")}
        raise ArgumentError(
            message("read()", "the sizes do not fit", shown, "S of weights = S of value, B and H alike")
        )
    if weights.dtype != value.dtype or weights.device != value.device or not value.is_floating_point():
        shown = {"weights": (weights, "BHTS"), "value": (value, "BHSE")}
        raise ArgumentError(
            message("read()", "the dtypes or devices differ", shown, "one floating dtype and one device")
        )
    given, nothing = Given(weights), value[..., :0]
    call = check(weights[..., :0], nothing, value, Dot(), None, None, given, 0, 0.0, look)
    return _attend(call, "reference", site, weights.dim())


def _attend(call: Call, backend: str, site: str, dims: int) -> Attended:
    """Let the open scopes edit the call, choose a backend, read, look, and tell the scopes."""
    own, scopes = call.look, sites.scopes_at(site)
    for scope in scopes:
        call = scope.applied(call)
    with _no_autocast(call):
        forward = BACKENDS[choose_backend(call, backend)].run(call)
        attended = look_at(call, forward, call.look)
    to_user = lower(dims)
    for scope in scopes:
        scope.keep(site, attended, call, to_user)
    return (attended.only(own, call.look) if scopes else attended).map(to_user)


def _side_by_side(call: Call, beams: int) -> Call:
    """The call with so many sequences of queries among its rows; causal masks and positions count on."""
    queries = call.query.shape[2]
    if beams < 1 or queries % beams:
        problem = f"{queries} queries are no {beams} sequences of one length"
        raise ArgumentError(message("attention()", problem, expected="T a multiple of beams"))
    return replace(call, beams=beams)


def _no_autocast(call: Call) -> AbstractContextManager[object]:
    """The dtypes were settled by check(); autocast must not change them again inside a backend."""
    device = call.query.device.type
    if not autocast_on(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)
