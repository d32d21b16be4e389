"""next_tokens(): the most probable tokens that the rules permit. Of equally probable ones, the lowest ids."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import EOS
from regard.decoding.highest_values import sortable
from regard.kernels.choice import by_kernel

__all__ = ["Forbidden", "forbid", "log_probabilities", "next_tokens", "uses_kernel"]

BLOCK, FEWEST_SCORES = 64, 2**17
"""On a CPU, the highest scores of tensors with at least FEWEST_SCORES are found in blocks of this size, and
log_probabilities() overwrites such tensors."""

MOST_CANDIDATES = 32
"""The largest number of tokens per beam for which the Triton kernel is used."""


class Forbidden(NamedTuple):
    """Tokens that no output may have: their ids, and a vector (V,) with 1 for these tokens, else 0."""

    ids: Tensor
    flags: Tensor

    @classmethod
    def tokens(cls, ids: Tensor, size: int) -> Forbidden:
        """Return the tokens with these ids, of a vocabulary of this size."""
        return cls(ids, torch.zeros(size, dtype=torch.uint8, device=ids.device).index_fill_(0, ids, 1))


def uses_kernel(logits: Tensor, count: int) -> bool:
    """Return whether a Triton kernel selects the `count` most probable tokens."""
    return by_kernel(logits) and count <= MOST_CANDIDATES


def log_probabilities(logits: Tensor) -> Tensor:
    """Return logits.log_softmax(-1) in float32. Large float32 inference tensors are overwritten with it.

    Overwriting the logits reads and writes less memory.
    """
    large = logits.numel() >= FEWEST_SCORES and logits.dtype == torch.float32
    if not large or not logits.is_inference() or not _overwrites():
        return logits.float().log_softmax(-1)
    with torch.inference_mode():
        return torch.log_softmax(logits, -1, out=logits)


@functools.cache
def _overwrites() -> bool:
    """Return whether torch.log_softmax(x, -1, out=x) gives the right result, which is not documented."""
    logits = torch.arange(3 * 1000.0).sin_().view(3, 1000)
    expected = logits.log_softmax(-1)
    return torch.equal(torch.log_softmax(logits, -1, out=logits), expected)


def next_tokens(
    logits: Tensor, count: int, forbidden: Forbidden, generated: Tensor, minimum: int, forced: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log-probabilities and ids of tokens that include the `count` most probable ones of each beam.

    logits: (B, K, V).
    forbidden: the tokens that no output may have.
    generated: (B,), the number of tokens of each output.
    minimum: EOS is forbidden if an output would have fewer tokens than this.
    forced: (B, K), the token of a prefix. Its log-probability is the third result, (B, K).

    The results have shape (B, K, C), with C = `count` or a multiple of it, in any order. Forbidden tokens
    have -inf. If tokens have equal log-probabilities, those with the lowest ids are included.
    """
    if uses_kernel(logits, count):
        return _by_kernel(logits, count, forbidden, generated, minimum, forced)
    scores = logits.float().log_softmax(-1)
    forced_scores = None if forced is None else scores.gather(2, forced[..., None])[..., 0]
    forbid(scores, forbidden, generated, minimum)
    return *_highest(scores, count), forced_scores


def forbid(scores: Tensor, forbidden: Forbidden, generated: Tensor, minimum: int) -> None:
    """Set the log-probabilities (B, K, V) of forbidden tokens to -inf, in place.

    forbidden, generated, minimum: see next_tokens().
    """
    if scores.device.type == "cpu":  # NumPy takes less time for a few elements
        array, short = scores.detach().numpy(), generated.numpy() + 1 < minimum
        array[..., forbidden.ids.numpy()] = -np.inf
        array[short, :, EOS] = -np.inf
        return
    scores.index_fill_(-1, forbidden.ids, -torch.inf)
    if minimum > 1:
        end_BK = scores[:, :, EOS]
        end_BK.copy_(torch.where((generated + 1 < minimum)[:, None], -torch.inf, end_BK))


def _by_kernel(
    logits: Tensor, count: int, forbidden: Forbidden, generated: Tensor, minimum: int, forced: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    # Imported here, because it imports Triton.
    from regard.kernels.search.beam import token_candidates

    slots, beams, _ = logits.shape
    scores, tokens, lse = token_candidates(
        logits.flatten(0, 1), count, forbidden.flags, generated, minimum, EOS
    )
    forced_scores = None
    if forced is not None:
        forced_scores = logits.gather(2, forced[..., None])[..., 0].float() - lse.view(slots, beams)
    return scores.view(slots, beams, -1), tokens.view(slots, beams, -1), forced_scores


def _highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest scores of each row (..., V) and their indices, in any order.

    If scores equal to the lowest of them are left out, those with the lowest indices are returned.
    """
    size = scores.shape[-1]
    if count == 1:
        tokens = scores.argmax(-1, keepdim=True)
        return scores.gather(-1, tokens), tokens
    if scores.device.type == "cpu":
        values, tokens = _topk_of_blocks(scores, min(count + 1, size))
        if values.shape[-1] <= count:
            return values, tokens
        last, next_one = values[..., count - 1].numpy(), values[..., count].numpy()
        if not ((last == next_one) & (last > -np.inf)).any():
            return values[..., :count], tokens[..., :count]
    order = torch.arange(size, device=scores.device)
    tokens = sortable(scores, order).topk(min(count, size)).indices
    return scores.gather(-1, tokens), tokens


def _topk_of_blocks(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return scores.topk(count) on a CPU, faster for large tensors; indices of equal scores may differ.

    The `count` highest scores of a row are in the `count` blocks with the highest maxima.
    """
    size = scores.shape[-1]
    if scores.numel() < FEWEST_SCORES or size < 4 * BLOCK * count:
        values, indices = scores.topk(count)
        return values, indices
    blocks = size // BLOCK
    blocked = scores[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK))
    best = blocked.amax(-1).topk(count).indices[..., None]
    picked = blocked.gather(-2, best.expand(*best.shape[:-1], BLOCK)).flatten(-2)
    values, places = torch.cat((picked, scores[..., blocks * BLOCK :]), -1).topk(count)
    own = best[..., 0].gather(-1, (places // BLOCK).clamp(max=count - 1)) * BLOCK + places % BLOCK
    return values, torch.where(places < count * BLOCK, own, places + (blocks - count) * BLOCK)
