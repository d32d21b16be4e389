"""Additive attention: run_inference(), run_forward() and run_backward(); the latter also as custom operators.

torch.compile does not trace into the operators. Outside of it, the functions take less time on the host.

output = softmax(scale * (v . tanh(q + k) + bias)) value, with dropout of the weights, and with masks by
lengths, window and documents. Other masks are a bias of -inf. Extra memory is
O(B (T + S) D). No tensor with B x T x S x D elements is allocated. A tensor with B x T x S elements is
allocated only if B (T + S) D is larger. The reductions use no atomics, so results are reproducible bit by
bit.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.kernels.additive_vector import sum_parts
from regard.kernels.backward_pass import Backward
from regard.kernels.forward_pass import Extra, Forward, Sight
from regard.kernels.launch import Shape
from regard.kernels.recording import recorder
from regard.kernels.replay import Tape, replayed, tape_of

__all__ = [
    "additive_backward",
    "additive_forward",
    "run_backward",
    "run_forward",
    "run_inference",
    "with_heads",
]

_SIGHT = "Tensor? lengths, Tensor? document_of_query, Tensor? document_of_key"
_PLACE = "SymInt start, SymInt? left, SymInt? right, float scale"
_EXTRA = "Tensor? bias, Tensor? seed, float dropout"


FEW_SCORES, FEW_ELEMENTS = 1 << 28, 1 << 26
"""Calls with at most this many scores and elements of the key are replayed (see replay.py). For larger calls,
the time on the device is longer than that on the host."""


def _run(
    function: Callable[..., tuple[Tensor, ...]], tensors: tuple[Tensor | None, ...], numbers: tuple[Any, ...],
    query: Tensor, key: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return function(*tensors, *numbers), replayed if the call is small enough."""
    if query.is_cuda and query.get_device() != torch._C._cuda_getDevice():
        with torch.cuda.device(query.device):  # where Triton launches kernels
            return _run(function, tensors, numbers, query, key)
    few = query.numel() // query.shape[-1] * key.shape[-2] <= FEW_SCORES and key.numel() <= FEW_ELEMENTS
    return replayed(function, tensors, numbers) if few else function(*tensors, *numbers)


def run_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    lengths: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    hold: bool,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute additive attention; return output, lse, norm and scores.

    query: (B, H, T, D), for B sequences of T queries with H heads; or (B, T, D), and key and value likewise.
    key: (B, K, S, D), for S keys with K key heads.
    value: (B, K, S, E).
    vector: v in the score v . tanh(q + k), (1 or H, D), or (D,).
    lengths, document_of_query, document_of_key, start, left, right: the mask, as in forward_pass.Sight.
    scale: the factor of the score.
    hold: whether to return the scores, so that the backward pass need not recompute them. If there are too
        many scores (see launch.Shape.held), they are not returned.
    bias, seed, dropout: as in forward_pass.Extra.

    Returns:
    output: (B, H, T, E), or (B, T, E) if the inputs have no head dimension.
    lse: (B, H, T) or (B, T), the log-sum-exp of the scores of each query.
    norm: (2, B, H, T), two numbers for each query: the maximum of its scores, and 1 / sum of
        exp(score - maximum). The backward pass recomputes the weights from them.
    scores: (B H, T, S) if they are kept, otherwise an empty tensor.
    """
    if left is None and right is None and document_of_query is None:
        start = 0  # not read
    tensors = (query, key, value, vector, lengths, document_of_query, document_of_key, bias, seed)
    numbers = (start, left, right, scale, hold, dropout)
    output, lse, norm, scores = _run(_forward, tensors, numbers, query, key)
    return output, lse, norm, scores


def run_inference(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
    document_of_query: Tensor | None, document_of_key: Tensor | None, start: int, left: int | None,
    right: int | None, scale: float, bias: Tensor | None, seed: Tensor | None, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute additive attention without what the backward pass needs; return output and lse.

    The arguments and results are those of run_forward().
    """
    if left is None and right is None and document_of_query is None:
        start = 0  # not read
    tensors = (query, key, value, vector, lengths, document_of_query, document_of_key, bias, seed)
    output, lse = _run(_inference, tensors, (start, left, right, scale, False, dropout), query, key)
    return output, lse


class KeptTapes:
    """The tapes of the calls of one plan. Finding one takes less time on the host than in replayed().

    All calls have the same shapes, dtypes, numbers and device, and neither bias nor dropout. So only the
    layouts of the tensors are compared.

    numbers: start, left, right and scale.
    of_inference, of_forward: a tape for each layout.
    of_backward: for each layout of the forward pass, a dict with a tape for each layout of the gradient.
    """

    MOST = 16  # maximum number of tapes in one dict; when it is reached, all are removed

    def __init__(self, numbers: tuple[Any, ...]):
        self.numbers = numbers
        self.of_inference: dict[Any, Tape] = {}
        self.of_forward: dict[Any, Tape] = {}
        self.of_backward: dict[Any, dict[Any, Tape]] = {}

    def inference(
        self, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None
    ) -> list[Tensor] | tuple[Tensor, ...]:
        """Compute run_inference(), by a tape if there is one for this layout."""
        inputs, addresses, layout = _described(query, key, value, vector, lengths)
        tape = self.of_inference.get(layout)
        if tape is not None and _can_run(tape, query):
            return (tape.one or tape).run(inputs, addresses)
        start, left, right, scale = self.numbers
        masks = (lengths, None, None, start, left, right)
        results = run_inference(query, key, value, vector, *masks, scale, None, None, 0.0)
        tensors = (query, key, value, vector, lengths, *[None] * 4)
        self._keep(self.of_inference, layout, _inference, tensors, (False, 0.0))
        return results

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None
    ) -> tuple[list[Tensor] | tuple[Tensor, ...], Any]:
        """Compute run_forward(), by a tape if there is one. Also return the argument `kept` of backward()."""
        inputs, addresses, layout = _described(query, key, value, vector, lengths)
        tape = self.of_forward.get(layout)
        if tape is not None and _can_run(tape, query):
            results = (tape.one or tape).run(inputs, addresses)
            addresses[4:4] = results[2].data_ptr(), results[3].data_ptr()
            tapes = self.of_backward.get(layout)
            if tapes is None:
                tapes = self.of_backward[layout] = {}
            return results, (tapes, addresses)
        start, left, right, scale = self.numbers
        masks = (lengths, None, None, start, left, right)
        first = run_forward(query, key, value, vector, *masks, scale, True, None, None, 0.0)
        tensors = (query, key, value, vector, lengths, *[None] * 4)
        self._keep(self.of_forward, layout, _forward, tensors, (True, 0.0))
        return first, None

    def backward(
        self, doutput: Tensor, saved: tuple[Tensor, ...], others: bool, kept: Any
    ) -> list[Tensor] | None:
        """Compute run_backward() by a tape; return None if there is none.

        saved: query, key, value, vector, norm, scores, and the lengths if there are any.
        others: whether gradients of key, value or vector are needed.
        kept: the second result of forward().
        """
        tapes, known = kept
        inputs = [doutput, *saved]
        addresses = [each.data_ptr() for each in inputs]
        if addresses[1:] != known:  # hooks of saved tensors have replaced them
            return None
        tape = tapes.get((doutput.stride(), addresses[0] % 16, others))
        if tape is None or not _can_run(tape, doutput):
            return None
        return (tape.one or tape).run(inputs, addresses)

    def keep_backward(self, doutput: Tensor, saved: tuple[Tensor, ...], others: bool, kept: Any) -> None:
        """Keep the tape of a backward pass, if replayed() has recorded one. Arguments: see backward()."""
        tapes, known = kept
        if [each.data_ptr() for each in saved] != known:
            return
        lengths = None if len(saved) == 6 else saved[6]
        key = (doutput.stride(), doutput.data_ptr() % 16, others)
        tensors = (doutput, *saved[:6], lengths, None, None, None, None)
        self._keep(tapes, key, _backward, tensors, (others, 0.0, False))

    def _keep(
        self, tapes: dict[Any, Tape], key: Any, function: Any, tensors: tuple[Tensor | None, ...],
        more: tuple[Any, ...],
    ) -> None:  # fmt: skip
        """Keep the tape of such a call, if there is one. more: the numbers after `scale`."""
        start, left, right, scale = self.numbers
        start = 0 if left is None and right is None else start
        tape = tape_of(function, tensors, (start, left, right, scale, *more))
        if tape is None:
            return
        if len(tapes) >= self.MOST:
            tapes.clear()
        if len(self.of_backward) >= 2 * self.MOST:
            self.of_backward.clear()
        tapes[key] = tape


def _described(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None
) -> tuple[list[Tensor], list[int], tuple[Any, ...]]:
    """Return the tensors that are not None, their addresses, and their layout: strides and alignment."""
    inputs, bits, dtype = [query, key, value, vector], 0, None
    if lengths is not None:
        inputs.append(lengths)
        dtype = lengths.dtype
    addresses = [each.data_ptr() for each in inputs]
    for address in addresses:
        bits |= address
    alignment = bits % 16 and tuple(each % 16 for each in addresses)
    return inputs, addresses, (alignment, dtype, *[each.stride() for each in inputs])


def _can_run(tape: Tape, tensor: Tensor) -> bool:
    """Whether a kept tape can be run now, for tensors on the device of this tensor."""
    if not tape.valid or recorder() is not None:
        return False
    return not tensor.is_cuda or tensor.get_device() == torch._C._cuda_getDevice()


def _inference(*arguments: Any) -> tuple[Tensor, ...]:
    """run_inference(), with tensors first. replayed() needs this order."""
    return _forward(*arguments)[:2]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
    document_of_query: Tensor | None, document_of_key: Tensor | None, bias: Tensor | None,
    seed: Tensor | None, start: int, left: int | None, right: int | None, scale: float, hold: bool,
    dropout: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """run_forward(), with tensors first. replayed() needs this order."""
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    extra, tensors = Extra(bias, seed, dropout), with_heads(query, key, value, vector)
    output, lse, norm, scores = Forward(*tensors, sight, scale, hold, extra=extra).run()
    return (output, lse, norm, scores) if query.dim() == 4 else (output[:, 0], lse[:, 0], norm, scores)


def with_heads(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return query, key and value as (B, H, ...) if they are (B, ...), and vector as (1, D) if it is (D,)."""
    if query.dim() == 3:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    return query, key, value, vector if vector.dim() == 2 else vector.unsqueeze(0)


additive_forward = torch.library.custom_op(
    "regard::additive_forward",
    run_forward,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, Tensor vector, {_SIGHT}, {_PLACE}, bool hold, {_EXTRA})"
    " -> (Tensor output, Tensor lse, Tensor norm, Tensor scores)",
)


@additive_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, vector: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    hold = rest[7]
    shape = Shape.of(query, key, value)
    batch, heads, queries, keys = shape.batch, shape.heads, shape.queries, shape.keys
    held = hold and shape.held
    new = torch.float32
    return (
        value.new_empty(batch, heads, queries, shape.depth),
        query.new_empty(batch, heads, queries, dtype=new),
        query.new_empty(2, batch, heads, queries, dtype=new),
        query.new_empty((batch * heads, queries, keys) if held else (0,), dtype=new),
    )


def run_backward(
    doutput: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    norm: Tensor,
    scores: Tensor,
    lengths: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    others: bool,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Backward pass of run_forward(): return the gradients of query, key, value, vector and bias.

    doutput: gradient of the output, (B, H, T, E).
    norm, scores: the results of run_forward() with these names.
    others: whether to compute the gradients of key, value and vector too. If False, only the gradient of the
        query is computed, and these three results are empty tensors.
    learned: whether to compute the gradient of the bias. If False, it is an empty tensor.

    The other arguments are those of run_forward().
    """
    if left is None and right is None and document_of_query is None:
        start = 0  # not read
    tensors = (
        doutput, query, key, value, vector, norm, scores, lengths, document_of_query, document_of_key, bias,
        seed,
    )  # fmt: skip
    numbers = (start, left, right, scale, others, dropout, learned)
    dquery, dkey, dvalue, dvector, dbias = _run(_backward, tensors, numbers, query, key)
    return dquery, dkey, dvalue, dvector, dbias


def _backward(
    doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, norm: Tensor, scores: Tensor,
    lengths: Tensor | None, document_of_query: Tensor | None, document_of_key: Tensor | None,
    bias: Tensor | None, seed: Tensor | None, start: int, left: int | None, right: int | None, scale: float,
    others: bool, dropout: float, learned: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """run_backward(), with tensors first. replayed() needs this order."""
    flat = query.dim() == 3, vector.dim() == 1
    query, key, value, vector = with_heads(query, key, value, vector)
    doutput = doutput.unsqueeze(1) if flat[0] else doutput
    gradients = _backward_with_heads(
        doutput, query, key, value, vector, norm, scores,
        Sight(lengths, document_of_query, document_of_key, start, left, right), Extra(bias, seed, dropout),
        scale, others, learned,
    )  # fmt: skip
    dquery, dkey, dvalue, dvector, dbias = gradients
    if flat[0]:
        dquery, dkey, dvalue = (each[:, 0] if each.dim() == 4 else each for each in (dquery, dkey, dvalue))
    return dquery, dkey, dvalue, dvector[0] if flat[1] and others else dvector, dbias


def _backward_with_heads(
    doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, norm: Tensor, scores: Tensor,
    sight: Sight, extra: Extra, scale: float, others: bool, learned: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """run_backward() for tensors with a head dimension."""
    parts = _query_parts(query, key, scores, sight, extra)
    if parts > 1:
        return _backward_in_parts(
            parts, doutput, query, key, value, vector, norm, scores, sight.lengths, scale, others
        )
    forward = Forward(query, key, value, vector, sight, scale, hold=False, back=True, extra=extra)
    return Backward(forward, doutput, norm, scores, others, learned).run()


MANY_QUERIES, ROWS_OF_PART = 1024, 64
"""If there are at least MANY_QUERIES queries, and 16 times as many as keys, they are split into parts of
ROWS_OF_PART queries for the backward pass. The kernels for the gradients of key and value run one program for
some keys and all queries, which would use a small part of the GPU."""


def _query_parts(query: Tensor, key: Tensor, scores: Tensor, sight: Sight, extra: Extra) -> int:
    """Return the number of parts that the queries are split into for the backward pass; 1 for no split."""
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    placed = sight.document_of_query is not None or sight.left is not None or sight.right is not None
    if placed or extra.bias is not None or extra.seed is not None or not scores.numel():
        return 1  # what a query sees depends on its position
    if heads > 1 or queries < max(MANY_QUERIES, 16 * keys) or queries % ROWS_OF_PART:
        return 1
    return queries // ROWS_OF_PART if batch * queries // ROWS_OF_PART <= 65535 else 1


def _backward_in_parts(
    parts: int, doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, norm: Tensor,
    scores: Tensor, lengths: Tensor | None, scale: float, others: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """run_backward() with the queries of each sequence split into parts, as heads that share keys and values.

    All heads have the same keys and values, by a stride of 0, so that they are not copied. The gradients that
    the heads have for them are added.
    """
    batch, _, queries, _ = query.shape
    rows, keys = queries // parts, key.shape[2]
    doutput, query = (each.reshape(batch, parts, rows, each.shape[3]) for each in (doutput, query))
    key, value = (each.expand(-1, parts, -1, -1) for each in (key, value))
    sight = Sight(lengths, None, None, 0, None, None)
    forward = Forward(query, key, value, vector, sight, scale, hold=False, back=True)
    norm, scores = norm.reshape(2, batch, parts, rows), scores.reshape(batch * parts, rows, keys)
    dquery, dkey, dvalue, dvector, dbias = Backward(forward, doutput, norm, scores, others).run()
    if others:
        dkey, dvalue = map(_summed, (dkey, dvalue))
    return dquery.reshape(batch, 1, queries, -1), dkey, dvalue, dvector, dbias


def _summed(gradients: Tensor) -> Tensor:
    """Return the sum over the parts of a gradient (B, parts, S, D), as (B, 1, S, D)."""
    total = gradients.new_empty(gradients[:, :1].shape)
    sum_parts(gradients.transpose(0, 1), total)
    return total


additive_backward = torch.library.custom_op(
    "regard::additive_backward",
    run_backward,
    mutates_args=(),
    schema="(Tensor doutput, Tensor query, Tensor key, Tensor value, Tensor vector, "
    f"Tensor norm, Tensor scores, {_SIGHT}, {_PLACE}, bool others, {_EXTRA}, bool learned)"
    " -> (Tensor dquery, Tensor dkey, Tensor dvalue, Tensor dvector, Tensor dbias)",
)


@additive_backward.register_fake
def _(
    doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    others, bias, learned = rest[9], rest[10], rest[13]
    gradients = (each.new_empty(each.shape if others else (0,)) for each in (key, value, vector))
    dbias = query.new_empty(0, dtype=torch.float32) if bias is None or not learned else torch.empty_like(bias)
    return query.new_empty(query.shape), *gradients, dbias
