"""replace_words(): replace some input words of a decoder by random words, to regularise training."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.data.tokenizers.tokenizer import SPECIALS

__all__ = ["replace_words"]


def replace_words(inputs_BT: Tensor, vocabulary_size: int, probability: float) -> Tensor:
    """Return a copy of token ids, (B, T). Each word is replaced by a random word with this probability.

    Use the result as the input of a decoder in training. The targets remain the original words. So the
    decoder learns to rely less on the previous words, and more on its memory (Xie et al. 2017, "Data Noising
    as Smoothing in Neural Network Language Models").

    PAD, UNK, BOS and EOS are kept. All words have the same probability of being drawn.

    >>> inputs = torch.tensor([[2, 7, 8, 0]])
    >>> replace_words(inputs, vocabulary_size=9, probability=0.0)
    tensor([[2, 7, 8, 0]])
    >>> replaced = replace_words(inputs, vocabulary_size=5, probability=1.0)  # token 4 is the only word
    >>> replaced
    tensor([[2, 4, 4, 0]])
    """
    specials = len(SPECIALS)
    random_BT = torch.randint_like(inputs_BT, specials, max(vocabulary_size, specials + 1))
    chosen_BT = torch.rand(inputs_BT.shape, device=inputs_BT.device) < probability
    return torch.where(chosen_BT & (inputs_BT >= specials), random_BT, inputs_BT)
