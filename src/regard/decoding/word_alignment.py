"""Compute word alignments from the attention weights of tokens, and write them in Pharaoh format.

Alignments and pictures show units: words, morphemes or characters.

The alignments of a batch are computed together: the weights are averaged over layers and heads where the
search recorded them, for example on a GPU, and copied to the host at once.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.tokenizers.tokenizer import clean
from regard.errors import ArgumentError, UnknownName, message
from regard.roles import CROSS, sites_matching
from regard.viewing.word_groups import SHOWN_SPACE, spelled, spelled_or_space

if TYPE_CHECKING:
    from regard.fast.search import RecordedAttention


UNITS = ("auto", "word", "morpheme", "character")
"""Values of Translator(unit=...).

"auto" means characters for a character tokenizer, morphemes for a morpheme tokenizer, and words otherwise.
"""


@dataclass(frozen=True)
class Units:
    """The alignment units of the source or of the target: words, morphemes or characters.

    name: "word", "morpheme" or "character".
    numbers: a function that takes the token ids of a text. It returns, for each token, the index of the word,
        morpheme or character that it belongs to.
    pieces: a function that takes the token ids of a text, and returns the text of each token. The texts of
        the tokens of a unit spell the unit.
    """

    name: str
    numbers: Callable[[Sequence[int]], list[int]]
    pieces: Callable[[Sequence[int]], list[str]]


def units_of(tokenizer: Any, requested: str = "auto") -> Units:
    """Return the alignment units for a tokenizer.

    requested: "word", "morpheme", "character", or "auto" (see UNITS). With "morpheme", a tokenizer of another
        kind has words: in a pair of Korean and English, only the Korean words have morphemes.

    Character tokenizers are used for dates, numbers, spelling or pronunciation. There, the source or the
    target is often a single word, so that an alignment of words would show nothing.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> [units_of(train_tokenizer(kind, ["3 May"])).name for kind in ("character", "word")]
    ['character', 'word']
    """
    if requested not in UNITS:
        raise UnknownName("unit of alignment", requested, UNITS)
    own = getattr(tokenizer, "unit", "word")
    if requested == "character" != own:
        problem = "unit is 'character', but this tokenizer is not a character tokenizer"
        raise ArgumentError(message("unit", problem, hint="use unit='auto' or unit='word'"))
    if own == "word" or requested not in ("auto", own):
        return Units("word", tokenizer.words, getattr(tokenizer, "word_pieces", tokenizer.pieces))
    return Units(own, tokenizer.units, tokenizer.pieces)


def check_units(source_tokenizer: Any, target_tokenizer: Any, requested: str) -> None:
    """Raise UnknownName or ArgumentError if two tokenizers do not have the requested alignment units."""
    units = [units_of(tokenizer, requested).name for tokenizer in (source_tokenizer, target_tokenizer)]
    if requested == "morpheme" and requested not in units:
        problem = "unit is 'morpheme', but neither tokenizer is a morpheme tokenizer"
        raise ArgumentError(message("unit", problem, hint="use unit='auto' or unit='word'"))


def count_units(tokenizer: Any, text: str, requested: str) -> int:
    """Return the number of alignment units of a text.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> count_units(train_tokenizer("character", ["3 May"]), "3  May", "auto")
    5
    """
    units = units_of(tokenizer, requested)
    if units.name != "morpheme":
        return len(text_units(text, units.name))
    (tokens,) = tokenizer.encode_lines([text])
    return max(units.numbers(tokens), default=-1) + 1


def text_units(text: str, unit: str) -> list[str]:
    """Return the words of a text, or its characters with ␣ for a space.

    >>> text_units("3  May", "word"), text_units("3  May", "character")
    (['3', 'May'], ['3', '␣', 'M', 'a', 'y'])
    """
    cleaned = clean(text)
    return cleaned.split() if unit == "word" else list(cleaned.replace(" ", SHOWN_SPACE))


def shown_units(text: str, pieces: tuple[str, ...], numbers: tuple[int, ...], unit: str) -> list[str]:
    """Return the words, morphemes or characters to show for a text.

    pieces: the text of each token.
    numbers: for each token, the index of the unit (word, morpheme or character) that it belongs to.

    Usually the tokens have as many units as the text, and the units of the text are returned. There are three
    other cases:

    - The units are morphemes. The tokens spell them, because their text differs: 갔다 has 가, 었 and 다.
    - Only the beginning of the text was tokenized (truncation). All units of the text are returned.
    - The tokenizer splits the text into words in a different way. The words that the tokens spell are
      returned.
    """
    count = max(numbers, default=-1) + 1
    units = [] if unit == "morpheme" else text_units(text, unit)
    if len(units) == count:
        return units
    parts: list[list[str]] = [[] for _ in range(count)]
    for piece, number in zip(pieces, numbers, strict=True):
        if number >= 0:
            parts[number].append(piece)
    from_tokens = [spelled(part) if unit == "word" else spelled_or_space(part) for part in parts]
    # <unk> can stand for any text.
    truncated = len(units) > count and all(
        "<unk>" in start or word.startswith(start.rstrip("\ufffd"))
        for word, start in zip(units, from_tokens, strict=False)
    )
    return units if truncated else from_tokens


class Block(NamedTuple):
    """The attention weights between the words of a line and its translation, or of one part of a long line.

    weights: (target words, source words).
    source: the index in the source line of the first source word of the part.
    target: the index in the target line of the first target word of the part.
    """

    weights: Tensor
    source: int = 0
    target: int = 0


@dataclass(frozen=True, eq=False)
class Alignment:
    """A word alignment: each target word is linked to the source word with the highest attention weight.

    str(alignment) is a line in Pharaoh format.

    blocks: the attention weights. Usually one Block; several if a long line was translated in parts, because
        there is no attention between parts.

    >>> import torch
    >>> from regard.decoding import align
    >>> weights = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.3, 0.2], [0.0, 0.1, 0.9], [0.4, 0.3, 0.3]])
    >>> alignment = align(weights, source_words=[0, 0, 1], target_words=[0, 0, 1, -1])
    >>> print(alignment)
    0-0 1-1
    >>> alignment.matrix
    tensor([[0.8500, 0.1500],
            [0.1000, 0.9000]])
    """

    blocks: tuple[Block, ...]

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """The links as pairs (index of the source word, index of the target word), counted from 0.

        A target word whose weights are all 0 has no link.
        """
        return tuple((source, target) for source, target, _ in self.weighted())

    def weighted(self, threshold: float | None = None) -> list[tuple[int, int, float]]:
        """Return the links as (index of source word, index of target word, weight), sorted by target word.

        threshold: return all links with at least this weight. A target word may then have several links or
            none. Default: one link for each target word, to the source word with the highest weight.

        >>> import torch
        >>> from regard.decoding import align
        >>> align(torch.tensor([[0.5, 0.25, 0.25]]), [0, 1, -1], [0]).weighted(threshold=0.2)
        [(0, 0, 0.5), (1, 0, 0.25)]
        """
        if threshold is not None and not 0 < threshold <= 1:
            expected = "0 < threshold <= 1, the minimum weight of a link"
            raise ArgumentError(message("weighted()", f"threshold is {threshold}", expected=expected))
        links = []
        for weights, first_source, first_target in self.blocks:
            if not weights.shape[1]:
                continue
            # numpy, because PyTorch takes longer for small arrays.
            matrix = _array(weights)
            if threshold is None:
                best = matrix.argmax(1)
                rows = np.flatnonzero(matrix[np.arange(len(best)), best] > 0)
                columns = best[rows]
            else:
                rows, columns = (matrix >= threshold).nonzero()
            values = matrix[rows, columns].tolist()
            for target, source, weight in zip(rows.tolist(), columns.tolist(), values, strict=True):
                links.append((first_source + source, first_target + target, weight))
        return links

    def written(self, threshold: float | None = None, probabilities: bool = False) -> str:
        """Return a line in Pharaoh format, such as "0-0 2-1".

        threshold: as in weighted().
        probabilities: add the weight of each link: "0-0:0.830 2-1:0.512". The weights of a target word sum to
            1 over all source words and EOS.
        """
        return pharaoh(self.weighted(threshold), probabilities)

    @property
    def matrix(self) -> Tensor:
        """The attention weights, (target words, source words). Between words of different parts, 0."""
        return self.corner(sys.maxsize)

    def corner(self, most: int) -> Tensor:
        """Return the first `most` rows and columns of `matrix`, without allocating the whole matrix."""
        rows = max((block.target + block.weights.shape[0] for block in self.blocks), default=0)
        columns = max((block.source + block.weights.shape[1] for block in self.blocks), default=0)
        matrix = torch.zeros(min(rows, most), min(columns, most))
        for weights, source, target in self.blocks:
            place = matrix[target : target + weights.shape[0], source : source + weights.shape[1]]
            place.copy_(weights[: place.shape[0], : place.shape[1]])
        return matrix

    def __str__(self) -> str:
        return self.written()

    @classmethod
    def joined(cls, parts: Iterable[Alignment]) -> Alignment:
        """Join the alignments of the parts of a line. Word indices are counted from the start of the line."""
        first, *others = parts = list(parts) or [cls(())]
        return cls(tuple(block for part in parts for block in part.blocks)) if others else first


def align(weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> Alignment:
    """Convert the attention weights of tokens (T, S) to a word alignment.

    The weight between two words is the sum over the tokens of the source word and the mean over the tokens of
    the target word.

    source_words, target_words: the index of the word that each token belongs to. Tokens with the index -1,
        such as EOS, are dropped. The weights of a target word are not renormalised, so they may sum to less
        than 1.
    """
    return align_batch(_array(weights.float())[None], [source_words], [target_words])[0]


def pharaoh(weighted: Iterable[tuple[int, int, float]], probabilities: bool = False) -> str:
    """Return links as a line in Pharaoh format.

    weighted: the links as (index of source word, index of target word, weight).
    probabilities: also write the weight of each link.

    >>> pharaoh([(0, 0, 0.83), (2, 1, 0.512)]), pharaoh([(0, 0, 0.83)], probabilities=True)
    ('0-0 2-1', '0-0:0.830')
    """
    return " ".join(
        f"{source}-{target}" + (f":{weight:.3f}" if probabilities else "")
        for source, target, weight in weighted
    )


def averaged(attention: Mapping[str, Tensor], site: str = CROSS, head: int | None = None) -> Tensor:
    """Average the attention of a hypothesis over sites and heads. Return one matrix (T, S).

    attention: for each site, the weights ([H,] T, S).
    site: the sites to average: a role, or names with * as wildcard.
    head: use only this head of each site. Default: the average of all heads.

    >>> import torch
    >>> from regard.decoding import averaged
    >>> seen = {"decoder.0.cross": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])}
    >>> averaged(seen), averaged(seen, "decoder.0.*", head=1)
    (tensor([[0.5000, 0.5000]]), tensor([[0., 1.]]))
    """
    matching = [attention[name] for name in sites_matching(attention, site)]
    if not attention:
        problem = "no attention was recorded"
        hint = "set look='cross', or use a model with attention (seq2seq has none)"
        raise ArgumentError(message("averaged()", problem, hint=hint))
    if not matching:
        raise UnknownName("site", site, attention)
    if head is None and matching[0].dim() == 3 and len({weights.shape for weights in matching}) == 1:
        return torch.stack(matching).mean((0, 1))  # the same, with fewer operations
    means = []
    for weights_HTS in (weights if weights.dim() == 3 else weights[None] for weights in matching):
        heads = len(weights_HTS)
        if head is not None and not -heads <= head < heads:
            raise UnknownName("head", head, map(str, range(heads)))
        means.append(weights_HTS.mean(0) if head is None else weights_HTS[head])
    return torch.stack(means).mean(0)


@dataclass(frozen=True)
class Choice:
    """Which attention weights an alignment is computed from.

    site: a role, or the name of an attention layer (site) with * as wildcard. The weights of several sites
        are averaged.
    head: the index of a head. Default: the mean over all heads.
    shifted: align a token with the weights of the next step, in which the token is the decoder input, instead
        of the step that generates the token. In a Transformer, the next step often attends to the source word
        that the token translates (Chen et al. 2020).

    >>> import torch
    >>> from regard.decoding import Choice
    >>> seen = {"decoder.0.cross": torch.tensor([[0.1, 0.9], [0.7, 0.3], [0.2, 0.8]])}
    >>> Choice(shifted=True).read(seen)
    tensor([[0.7000, 0.3000],
            [0.2000, 0.8000],
            [0.0000, 0.0000]])
    >>> print(Choice("decoder.0.cross", head=2, shifted=True))
    decoder.0.cross, head 2, one step later
    """

    site: str = CROSS
    head: int | None = None
    shifted: bool = False

    @classmethod
    def of(cls, choice: Choice | str) -> Choice:
        """Return the argument if it is a Choice; convert a str (a role or site names) to a Choice."""
        return choice if isinstance(choice, Choice) else cls(choice)

    def instead(
        self, site: str | None = None, head: int | None = None, shifted: bool | None = None
    ) -> Choice:
        """Return a Choice with these fields. If an argument is None, the field of this choice is kept.

        A new `site` resets `head` and `shifted` to their defaults, unless they are passed too: the best head
        of one site says nothing about another site.
        """
        base = self if site is None else Choice(site)
        return Choice(
            base.site, base.head if head is None else head, base.shifted if shifted is None else shifted
        )

    def read(self, attention: Mapping[str, Tensor]) -> Tensor:
        """Return one matrix (T, S) from the attention of a hypothesis, with a row for each target token.

        If `shifted` is true, the row of the last token is 0, because no step has this token as input. The
        last token is EOS, unless the hypothesis was cut at the maximum length.
        """
        weights_TS = averaged(attention, self.site, self.head)
        if not self.shifted:
            return weights_TS
        return torch.cat((weights_TS[1:], torch.zeros_like(weights_TS[:1])))

    def __str__(self) -> str:
        head = "all heads" if self.head is None else f"head {self.head}"
        return f"{self.site}, {head}{', one step later' if self.shifted else ''}"


def choices(attention: Mapping[str, Tensor], site: str = CROSS) -> list[Choice]:
    """Return every Choice for this attention: the average of all sites, each site, and each head of a site.

    Each is returned without and with `shifted`. The average is left out if there is only one site.

    >>> import torch
    >>> from regard.decoding import choices
    >>> for choice in choices({"decoder.0.cross": torch.ones(2, 1, 1)}):
    ...     print(choice)
    decoder.0.cross, all heads
    decoder.0.cross, all heads, one step later
    decoder.0.cross, head 0
    decoder.0.cross, head 0, one step later
    decoder.0.cross, head 1
    decoder.0.cross, head 1, one step later
    """
    matching = {name: attention[name] for name in sites_matching(attention, site)}
    places: list[tuple[str, int | None]] = [(site, None)] if len(matching) > 1 else []
    for name, weights in matching.items():
        heads = range(len(weights)) if weights.dim() == 3 and len(weights) > 1 else ()
        places += [(name, None), *((name, head) for head in heads)]
    return [Choice(name, head, shifted) for name, head in places for shifted in (False, True)]


def _array(weights: Tensor) -> NDArray[Any]:
    """Return weights as a numpy array, which has no bfloat16."""
    detached = weights.detach().cpu()
    return (detached.float() if detached.itemsize == 2 else detached).numpy()


Words = Callable[[], tuple[Sequence[int], Sequence[int]]]
"""A function that returns the index of the word of each source token, and of each target token."""


class Place(NamedTuple):
    """Where the attention weights of a hypothesis are recorded.

    recorded: the weights of all hypotheses of a search.
    row, rank: the index of the sentence, and of one of its hypotheses.
    length: the number of tokens of the hypothesis.
    """

    recorded: RecordedAttention
    row: int
    rank: int
    length: int


class BatchAlignments:
    """The word alignments of the translations of one call, computed when the first one is read.

    choice: which attention weights the alignments are computed from.
    """

    def __init__(self, choice: Choice):
        self.choice = choice
        self._waiting: list[tuple[Place, Words]] = []
        self._computed: list[Alignment | None] = []
        self._lock = threading.Lock()

    def add(self, place: Place, words: Words) -> Callable[[], Alignment | None]:
        """Add a hypothesis; return a function that returns its alignment.

        The alignment is None if the search has not recorded the weights that `choice` selects.

        words: a function that returns source_words and target_words, see align().
        """
        self._waiting.append((place, words))
        return functools.partial(self._alignment, len(self._waiting) - 1)

    def _alignment(self, number: int) -> Alignment | None:
        with self._lock:
            if self._waiting:
                self._computed = self._compute()
                self._waiting = []  # its entries keep the recorded weights in memory
        return self._computed[number]

    def _compute(self) -> list[Alignment | None]:
        """Return the alignments of all hypotheses that were added."""
        result: list[Alignment | None] = [None] * len(self._waiting)
        groups = dict[int, list[int]]()
        for number, (place, *_) in enumerate(self._waiting):
            groups.setdefault(id(place.recorded), []).append(number)
        for numbers in groups.values():
            places = [self._waiting[number][0] for number in numbers]
            words = [self._waiting[number][1]() for number in numbers]
            weights_nTS = places[0].recorded.averaged(places, self.choice.site, self.choice.head)
            if weights_nTS is None:
                continue
            if self.choice.shifted:
                # Each row gets the weights of the next step; that of the last token is 0. See Choice.read().
                weights_nTS = np.concatenate((weights_nTS[:, 1:], np.zeros_like(weights_nTS[:, :1])), 1)
                last = [place.length - 1 for place in places]
                weights_nTS[np.arange(len(last)), last] = 0
            sources, targets = zip(*words, strict=True)
            for number, alignment in zip(numbers, align_batch(weights_nTS, sources, targets), strict=True):
                result[number] = alignment
        return result


def align_batch(
    weights: NDArray[np.float32], source_words: Sequence[Sequence[int]], target_words: Sequence[Sequence[int]]
) -> list[Alignment]:
    """Return align() of n sentence pairs.

    weights: (n, T, S), the attention weights of tokens, at least 0. The values after the end of a target or
        of a source are not used.
    source_words, target_words: for each pair, the index of the word that each token belongs to; see align().
    """
    source_nS, first_source, source_sizes = _padded(source_words, weights.shape[2])
    target_nT, first_target, target_sizes = _padded(target_words, weights.shape[1])
    source_nSW = (source_nS[..., None] == np.arange(max(source_sizes))).astype(np.float32)
    target_nTW = (target_nT[..., None] == np.arange(max(target_sizes))).astype(np.float32)
    used_nTS = (target_nT >= 0)[:, :, None] & (source_nS >= 0)[:, None]
    target_nTW /= target_nTW.sum(1, keepdims=True).clip(min=1)
    words_nVW = target_nTW.transpose(0, 2, 1) @ np.where(used_nTS, weights, 0) @ source_nSW
    return [
        Alignment((Block(torch.from_numpy(words_VW[:height, :width]), source, target),))
        for words_VW, height, width, source, target in zip(
            words_nVW, target_sizes, source_sizes, first_source, first_target, strict=True
        )
    ]


def _padded(words: Sequence[Sequence[int]], length: int) -> tuple[NDArray[Any], list[int], list[int]]:
    """Return word indices as an array (n, length), the index of the first word, and the number of words.

    In the array, indices count from the first word of each row. Padding and tokens without a word have -1.
    """
    sizes_n1 = np.array([len(own) for own in words])[:, None]
    result = np.full((len(words), length), -1, np.int64)
    result[np.arange(length) < sizes_n1] = np.fromiter(itertools.chain.from_iterable(words), np.int64)
    has_word = result >= 0
    first = np.where(has_word, result, np.iinfo(np.int64).max).min(1, initial=np.iinfo(np.int64).max)
    first = np.where(has_word.any(1), first, 0)
    result = np.where(has_word, result - first[:, None], -1)
    return result, first.tolist(), (result.max(1, initial=-1) + 1).tolist()
