"""Fertility: how many words of the other side a word is aligned with.

"not" is aligned with "ne" and "pas", but "the" should not be aligned with five words. Exact inference with
fertilities (IBM model 3) is not possible; this is its mean-field approximation with a Poisson distribution.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["LEAST", "MOST", "fertilities", "fertility_factors"]

LEAST, MOST = 0.5, 3.0
"""Range of the expected fertility of a word."""


def fertilities(aligned: Tensor, frequency: Tensor) -> Tensor:
    """Return the expected fertility of each word, (V,), with one added observation of fertility 1.

    aligned: (V,), the expected number of words aligned with each word.
    frequency: (V,), how often each word occurs.

    >>> import torch
    >>> fertilities(torch.tensor([5.0, 0.0]), torch.tensor([2.0, 9.0]))
    tensor([2.0000, 0.5000])
    """
    return ((aligned + 1) / (frequency + 1)).clamp(LEAST, MOST)


def fertility_factors(posteriors: Tensor, fertility: Tensor) -> Tensor:
    """Return the factors of emission probabilities that follow from the other words of a sentence, (B, T, S).

        factor(t, s) = P(n + 1) / P(n) = fertility(s) / (n + 1),    n = sum over t' != t of posterior(t', s)

    P(n) . n! is a Poisson distribution of the number n of target words aligned with s; the factor n + 1 of
    the permutations is left out twice, because the words have an order.

    posteriors: (B, T, S), of the previous iteration.
    fertility: (B, S), the expected fertility of each source word.

    The second target word makes s a less probable source of the first one:

    >>> import torch
    >>> fertility_factors(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[1.0]]))[0, :, 0]
    tensor([0.5000, 1.0000])
    """
    others_BTS = posteriors.sum(1, keepdim=True) - posteriors
    return fertility[:, None] / (others_BTS + 1)
