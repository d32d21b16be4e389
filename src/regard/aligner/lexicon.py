"""The table of translation probabilities: expected counts, a back-off to word prefixes, and similar strings.

The table has an entry for each pair of words that occur together in a sentence pair. Both directions share
its counts, because they agree on them (see agreement.py).
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from regard.aligner.vocabulary import LETTERS, LEVELS, Vocabulary

__all__ = ["BACKOFF", "Lexicon", "similarity", "sorted_keys"]

BACKOFF = 3.0
"""Weight of the back-off, in counts of the word that is translated."""

SHORTEST, SAME_LETTERS, LEAST_SIMILAR = 4, 3, 0.4
"""Words are compared if both have SHORTEST letters and the first SAME_LETTERS are equal. The count of a pair
of words that are less similar than LEAST_SIMILAR is 0."""

SHIFT = 32
"""A key is the number of a source word, shifted by this many bits, plus the number of a target word."""

PIECE = 1 << 19


def sorted_keys(pieces: list[Tensor]) -> Tensor:
    """Return the union of sorted keys, sorted.

    >>> sorted_keys([torch.tensor([1, 4]), torch.tensor([2, 4])])
    tensor([1, 2, 4])
    """
    keys = numpy.concatenate([piece.numpy() for piece in pieces])
    keys.sort()  # torch.unique() takes three times as long
    return torch.from_numpy(keys[numpy.concatenate(([True], keys[1:] != keys[:-1]))])


class Lexicon:
    """The entries of the table, and the probabilities that follow from expected counts.

    Entry 0 is for padding; its probability is 0.

    source, target: the vocabularies.
    keys: (N - 1,), the keys of the entries from 1 on, sorted.
    prior: (N - 1,), counts from pairs that were seen before; None for 0.
    """

    def __init__(self, source: Vocabulary, target: Vocabulary, keys: Tensor, prior: Tensor | None = None):
        zero = torch.zeros(1)
        self.keys, self.size = keys, len(keys) + 1
        self.source_N = torch.cat((zero.int(), (keys >> SHIFT).int()))
        self.target_N = torch.cat((zero.int(), (keys & (1 << SHIFT) - 1).int()))
        self.sizes = len(source), len(target)
        self.prior_N = similarity(source, target, self.source_N, self.target_N)
        if prior is not None:
            self.prior_N[1:] += prior
        self.levels = [self._level(source, target, level) for level in range(LEVELS)]

    def _level(self, source: Vocabulary, target: Vocabulary, level: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pair of prefixes of each entry, (N,), and for each pair its two prefixes."""
        (first_V, count), (second_V, sizes) = source.prefixes(level), target.prefixes(level)
        if count * sizes < 1 << 31:
            first_V, second_V = first_V.int(), second_V.int()  # half of the memory
        pair_N = torch.index_select(first_V * sizes, 0, self.source_N)
        pair_N += torch.index_select(second_V, 0, self.target_N)
        pairs, number_N = torch.unique(pair_N, return_inverse=True)
        return number_N.int(), (pairs // sizes).int(), (pairs % sizes).int()

    def probabilities(self, counts_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the translation probability of each entry in both directions, (N,) and (N,).

            t(f | e) = (c(e, f) + B . mean_k c(e_k, f_k) / c(e_k)) / (c(e) + B)

        c are expected counts; e_k and f_k are the prefixes of level k; B is BACKOFF. The back-off is the
        probability of the prefix of f, not of f itself, so the sum over f can exceed 1.

        counts_N: (N,), the expected count of each entry, to which the prior is added.
        """
        counts_N = counts_N + self.prior_N
        counts_N[0] = 0
        forward_N, backward_N = torch.zeros_like(counts_N), torch.zeros_like(counts_N)
        for number_N, first_P, second_P in self.levels:
            counts_P = torch.zeros(len(first_P)).index_add_(0, number_N, counts_N)
            for sum_N, side_P in ((forward_N, first_P), (backward_N, second_P)):
                conditional_P = _conditional(counts_P, side_P)
                sum_N += torch.index_select(conditional_P, 0, number_N)
        sides = (forward_N, self.source_N, self.sizes[0]), (backward_N, self.target_N, self.sizes[1])
        for sum_N, word_N, size in sides:
            total_V = torch.zeros(size).index_add_(0, word_N, counts_N)
            sum_N.mul_(BACKOFF / LEVELS).add_(counts_N)
            sum_N /= torch.index_select(total_V + BACKOFF, 0, word_N)
            sum_N[0] = 0
        return forward_N, backward_N


def _conditional(counts_P: Tensor, side_P: Tensor) -> Tensor:
    """Return the counts of pairs of prefixes, divided by the sum over all pairs with the same prefix."""
    total = torch.zeros(int(side_P.max()) + 1).index_add_(0, side_P, counts_P)
    return counts_P / torch.index_select(total, 0, side_P).clamp(min=1e-9)


def similarity(source: Vocabulary, target: Vocabulary, source_N: Tensor, target_N: Tensor) -> Tensor:
    """Return the prior count of each pair of words, (N,): 1 for equal words, and less for similar words.

    Names, numbers and cognates are similar. The similarity is the length of the common prefix, divided by the
    mean length; it is 0 for words that are too short or not similar enough. Entry 0 is padding.

    >>> source, target = Vocabulary(["7", "médecine"]), Vocabulary(["7", "medicine", "media"])
    >>> similarity(source, target, torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 2]))
    tensor([0.0000, 1.0000, 0.0000, 0.0000, 0.4615])
    """
    (letters_s, length_s), (letters_t, length_t) = source.letters(), target.letters()
    known = {form: number for number, form in enumerate(target.forms)}
    same_V = torch.tensor([known.get(form, -1) for form in source.forms], dtype=torch.int32)
    result_N = (torch.index_select(same_V, 0, source_N.int()) == target_N).float()
    # Only words with the same beginning are compared letter by letter.
    beginnings = dict[bytes, int]()

    def begins(letters: numpy.ndarray, lengths: numpy.ndarray, unlike: int) -> Tensor:
        numbers = [
            beginnings.setdefault(row.tobytes(), len(beginnings)) if length >= SHORTEST else unlike
            for row, length in zip(letters[:, :SAME_LETTERS], lengths.tolist(), strict=True)
        ]
        return torch.tensor(numbers, dtype=torch.int32)

    begin_s, begin_t = begins(letters_s, length_s, -1), begins(letters_t, length_t, -2)
    alike = torch.index_select(begin_s, 0, source_N.int()) == torch.index_select(begin_t, 0, target_N.int())
    places = alike.nonzero()[:, 0]
    for at in range(0, len(places), PIECE):
        some = places[at : at + PIECE]
        first, second = source_N[some].numpy(), target_N[some].numpy()
        lengths = length_s[first] + length_t[second]
        equal = numpy.logical_and.accumulate(letters_s[first] == letters_t[second], 1)
        equal &= numpy.arange(LETTERS) < numpy.minimum(length_s[first], length_t[second])[:, None]
        ratio = 2 * equal.sum(1) / lengths
        values = torch.from_numpy(numpy.where(ratio >= LEAST_SIMILAR, ratio, 0).astype(numpy.float32))
        result_N[some] = torch.maximum(result_N[some], values)
    result_N[0] = 0
    return result_N
