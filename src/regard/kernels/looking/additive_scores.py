"""score_chunks(): the scores of additive attention, some query rows at a time, for the looking kernels."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from regard.kernels.additive.forward import Forward, Sight

__all__ = ["score_chunks"]


def score_chunks(
    query: Tensor, key: Tensor, vector: Tensor, sight: Sight, multiple: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of the first query and the scores v . tanh(q + k) of each chunk, (B, H, rows, S).

    query: (B, H, T, D). key: (B, K, S, D). vector: v, (1 or H, D).
    sight: the mask. Scores of hidden keys may be any number, or NaN.
    multiple: the number of rows of each chunk except the last one is a multiple of it; a multiple of 64.

    The scores of one chunk need about as much memory as query and key.
    """
    forward = Forward(query, key, key, vector, sight, 1.0, hold=False)
    shape = forward.shape
    if shape.kind == "decode":
        yield 0, forward.decoded().unflatten(0, (shape.batch, shape.heads))
        return
    prepared = forward.prepared()
    chunk = shape.queries if shape.held else max(shape.chunk // multiple * multiple, multiple)
    for first in range(0, shape.queries, chunk):
        scores = forward.scores(prepared, first, min(chunk, shape.queries - first))
        added = scores[0] if len(scores) == 1 else scores.sum(0)
        yield first, added.unflatten(0, (shape.batch, shape.heads))
