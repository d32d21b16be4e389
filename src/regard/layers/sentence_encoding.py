"""Encode sentences as sums of word embeddings: bag of words, or position encoding (memory networks).

Both encodings are linear in the embeddings. With a small vocabulary, they are computed as one matrix product
of word counts and embeddings. This is faster than a table lookup for each word. It is also reproducible on a
GPU: the gradient of the matrix product has no atomic additions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.options.model_checks import ENCODINGS, known

__all__ = ["DENSE_WORDS", "encode_sentences", "encode_story", "position_weights", "with_null_sentences"]

DENSE_WORDS = 2048
"""If the vocabulary has at most this many words, sentences are encoded by a matrix product of word counts."""

SCALE = 2.0
"""Factor of the weights of the position encoding. With it, the mean of the weights is about 1, as in the
program of the authors."""

KNOWN = 2
"""The id of the first known word. The ids 0 (padding) and 1 (unknown word) have the embedding zero."""


def position_weights(words: int, width: int) -> Tensor:
    """Return the weights of the position encoding, (words, width).

    l_kj = 2 [(1 - j/J) - (k/d)(1 - 2j/J)]             (Sukhbaatar et al. 2015, section 4.1, times 2)

    words: J, the number of words in the sentence. The index j of a word goes from 1 to J.
    width: d, the embedding size. The index k of a dimension goes from 1 to d.

    Differs from the paper: the factor 2. With it, the mean of the weights is about 1, as in the program that
    the authors published (MemN2N-babi-matlab).

    >>> position_weights(2, 4)
    tensor([[1.0000, 1.0000, 1.0000, 1.0000],
            [0.5000, 1.0000, 1.5000, 2.0000]])
    """
    place_J1 = torch.arange(1, words + 1)[:, None] / words
    part_d = torch.arange(1, width + 1) / width
    return SCALE * ((1 - place_J1) - part_d * (1 - 2 * place_J1))


def encode_sentences(
    tokens: Tensor, tables: Tensor, encoding: str = "position", sentence_words: int = 0
) -> Tensor:
    """Encode sentences with one or more embedding tables.

        m = sum_j l_j * (A x_j)     position encoding
        m = sum_j A x_j             bag of words

    A x_j is the embedding of word j. The vectors l_j are the rows of position_weights(); * is elementwise.

    tokens: (..., W), word ids, padded with 0. The embedding of padding and of unknown words (id 1) is zero.
        An unknown word still counts as a word, so the other words keep their positions.
    tables: (n, V, D), the embedding tables.
    encoding: "position" or "bag".
    sentence_words: the sentence length for position_weights(). 0: each sentence has its real length.

    Returns one vector for each sentence and table, (..., n, D).

    >>> tables = torch.ones(1, 5, 2)
    >>> encode_sentences(torch.tensor([[3, 4, 3, 0]]), tables, "bag")
    tensor([[[3., 3.]]])
    >>> encode_sentences(torch.tensor([3, 4]), tables) - position_weights(2, 2).sum(0)
    tensor([[0., 0.]])
    """
    known("encoding", encoding, ENCODINGS)
    count, vocabulary, width = tables.shape
    side_VM = tables.permute(1, 0, 2).reshape(vocabulary, count * width)
    known_W = (tokens >= KNOWN).to(tables.dtype)
    place_W = torch.arange(1, tokens.shape[-1] + 1, device=tokens.device, dtype=tables.dtype) * known_W
    words_1: Tensor | int = sentence_words or (tokens > 0).sum(-1, keepdim=True).clamp(min=1)
    part_M = (torch.arange(1, width + 1, device=tokens.device, dtype=tables.dtype) / width).repeat(count)
    if vocabulary <= DENSE_WORDS:
        sum_M = _dense(tokens, side_VM, known_W, place_W, words_1, part_M, encoding)
    else:
        sum_M = _looked_up(tokens, side_VM, known_W, place_W, words_1, part_M, encoding)
    return sum_M.unflatten(-1, (count, width))


def encode_story(
    sentences: Tensor, question: Tensor, tables: Tensor, encoding: str = "position", sentence_words: int = 0
) -> tuple[Tensor, Tensor]:
    """Encode the sentences of stories, (B, S, n, D), and the questions, (B, n, D), with n embedding tables.

    sentences, question: word ids, (B, S, W) and (B, W).

    For the other arguments, see encode_sentences().
    """
    tokens_BSW = torch.cat((sentences, question.unsqueeze(1)), 1)
    encoded_BSnD = encode_sentences(tokens_BSW, tables, encoding, sentence_words)
    return encoded_BSnD[:, :-1], encoded_BSnD[:, -1]


def with_null_sentences(story: Tensor, lengths: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Pad each story with zero vectors to `slots` sentences (Sukhbaatar et al. 2015, section 4.2).

    A hop can attend to these null sentences. A story with more sentences, and slots = 0, change nothing.

    story: (B, S, n, D), the sentences of each story, encoded with n embedding tables.
    lengths: (B,), the number of sentences of each story.

    Returns the padded stories and their lengths, which include the null sentences.

    >>> story, lengths = with_null_sentences(torch.ones(1, 2, 1, 1), torch.tensor([1]), slots=3)
    >>> story.flatten().tolist(), lengths.tolist()
    ([1.0, 0.0, 0.0], [3])
    """
    if not slots:
        return story, lengths
    size = story.shape[1]
    real_BS = torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)
    real_BSnD = story * real_BS[..., None, None].to(story.dtype)
    missing = (0, 0, 0, 0, 0, max(slots - size, 0))
    return torch.nn.functional.pad(real_BSnD, missing), lengths.clamp(min=slots)


def _dense(
    tokens: Tensor,
    side_VM: Tensor,
    known_W: Tensor,
    place_W: Tensor,
    words_1: Tensor | int,
    part_M: Tensor,
    encoding: str,
) -> Tensor:
    """Compute encode_sentences() as a matrix product of word counts and embeddings.

    The position encoding of J words with the embeddings a_1 ... a_J is, in dimension k of d,

        2 (1 - k/d) sum_j a_jk - 2 (1 - 2k/d) sum_j (j/J) a_jk

    So the sentence needs only two numbers for each word of the vocabulary: how often the word occurs, and the
    sum of its positions j. Both numbers are sums of integers, which are exact in any order of addition.
    """
    zeros_V = known_W.new_zeros(*tokens.shape[:-1], len(side_VM))
    counts_V = torch.scatter_add(zeros_V, -1, tokens, known_W)
    if encoding == "bag":
        return counts_V @ side_VM
    places_V = torch.scatter_add(zeros_V, -1, tokens, place_W) / words_1
    both_2V = torch.cat((counts_V, places_V), -1)
    return both_2V @ torch.cat((side_VM * (SCALE * (1 - part_M)), side_VM * (SCALE * (2 * part_M - 1))))


def _looked_up(
    tokens: Tensor,
    side_VM: Tensor,
    known_W: Tensor,
    place_W: Tensor,
    words_1: Tensor | int,
    part_M: Tensor,
    encoding: str,
) -> Tensor:
    """Compute encode_sentences() by looking up the embedding of each word.

    Used for vocabularies that are too large for the word counts of _dense().
    """
    embedded_WM = torch.nn.functional.embedding(tokens, side_VM)
    counted_M = (known_W.unsqueeze(-2) @ embedded_WM).squeeze(-2)
    if encoding == "bag":
        return counted_M
    placed_M = ((place_W / words_1).unsqueeze(-2) @ embedded_WM).squeeze(-2)
    return SCALE * (counted_M * (1 - part_M) + placed_M * (2 * part_M - 1))
