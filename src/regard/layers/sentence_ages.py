"""The ages of the sentences of a story, for the temporal encoding of Sukhbaatar et al. (2015)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["encode_ages", "noise_size", "sentence_ages", "shifted_ages"]


def sentence_ages(lengths: Tensor, size: int) -> Tensor:
    """Return the age of each sentence, (B, size): 1 for the last sentence of a story, 2 for the one before.

    lengths: (B,), the number of sentences of each story. The age of padding is 0 or less.

    >>> sentence_ages(torch.tensor([3, 1]), 3)
    tensor([[ 3,  2,  1],
            [ 1,  0, -1]])
    """
    return lengths.unsqueeze(1) - torch.arange(size, device=lengths.device)


def encode_ages(ages: Tensor, tables: Tensor) -> Tensor:
    """Return the embeddings of the ages of sentences, (B, S, n, D), from n embedding tables.

    The embeddings are computed by a matrix product. Its gradient has no atomic additions, so two runs on a
    GPU give exactly the same results.

    ages: (B, S), from sentence_ages(). An age that is larger than N has the embedding of age N.
    tables: (n, N, D), the embeddings of the ages 1 to N in each of n tables.

    >>> encode_ages(torch.tensor([[3, 1]]), torch.tensor([[[1.0], [2.0]]])).flatten().tolist()
    [2.0, 1.0]
    """
    count, most, width = tables.shape
    known_N = torch.arange(1, most + 1, device=ages.device)
    one_hot_BSN = (ages.clamp(1, most).unsqueeze(-1) == known_N).to(tables.dtype)
    return (one_hot_BSN @ tables.permute(1, 0, 2).flatten(1)).unflatten(-1, (count, width))


def noise_size(sentences: int, noise: float) -> int:
    """Return how many random numbers shifted_ages() needs for a story of up to `sentences` sentences.

    >>> noise_size(50, 0.1)
    6
    """
    return 1 + math.ceil(noise * sentences)


def shifted_ages(ages: Tensor, lengths: Tensor, noise: float, random: Tensor | None) -> Tensor:
    """Insert empty sentences into the stories at random, and return the new ages of the sentences, (B, S).

    The number of empty sentences in a story is random: between 0 and noise * length, rounded up. They are
    inserted one after the other, each at a uniformly distributed position. The sentences keep their order.

    ages: (B, S), from sentence_ages().
    lengths: (B,), the number of sentences of each story.
    noise: the maximum number of empty sentences, as a fraction of the length.
    random: (B, noise_size(S, noise)), uniform random numbers. The first column determines the number of empty
        sentences, the others their positions. None: draw them here.

    >>> lengths, random = torch.tensor([4]), torch.tensor([[0.7, 0.5, 0.1, 0.0, 0.0]])
    >>> shifted_ages(sentence_ages(lengths, 4), lengths, 1.0, random)
    tensor([[7, 6, 4, 3]])
    """
    if random is None:
        random = torch.rand(len(ages), noise_size(ages.shape[1], noise), device=ages.device)
    count_B1 = (random[:, :1] * ((noise * lengths).ceil() + 1).unsqueeze(1)).floor()
    shifted_BS = ages
    for number in range(1, random.shape[1]):
        # Before this insertion, the story has length + number - 1 sentences, so there are length + number
        # positions. At position p, the empty sentence is inserted before the last p sentences. So all
        # sentences with an age above p become older by 1.
        position_B1 = (random[:, number : number + 1] * (lengths.unsqueeze(1) + number)).floor()
        older_BS = (shifted_BS > position_B1) & (count_B1 >= number) & (ages > 0)
        shifted_BS = shifted_BS + older_BS.to(ages.dtype)
    return shifted_BS
