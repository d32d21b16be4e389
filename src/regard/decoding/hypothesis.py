"""Hypothesis: one output sentence of a search, with its scores and its attention."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from regard.data.batch import EOS, PAD, BatchRows
from regard.decoding.word_alignment import Place, averaged
from regard.roles import BySite

if TYPE_CHECKING:
    from regard.fast.search import RecordedAttention

ROOM = 4096
"""At the start of a search, SearchResult has room for at most this many tokens per hypothesis.

If hypotheses become longer, larger tensors are allocated.
"""


Compute = Callable[[], tuple[BySite[Tensor], dict[str, Tensor]]]
"""A function that returns the attention weights and the norms of the value vectors of each site."""


class LazyAttention:
    """Base class of dataclasses with the fields `attention` and `values`, which may be computed later.

    Reading attention from a GPU takes longer than a search, and many users read only the text.
    """

    @classmethod
    def with_lazy_attention(
        cls, compute: Compute, others: Callable[[], dict[str, Any]] | None = None, **values: Any
    ) -> Any:
        """Return an object whose attention and values are computed when one of them is first read.

        compute: a function that returns both.
        others: a function that returns further fields, which are computed when one of them is first read.
        values: all other fields of the dataclass, and further attributes.
        """
        result = object.__new__(cls)
        result.__dict__.update(values)
        result.__dict__["_compute"] = compute
        if others is not None:
            result.__dict__["_others"] = others
        return result

    def __getattr__(self, name: str) -> Any:
        """Compute a field; Python calls this method only for attributes that do not exist yet."""
        others = self.__dict__.get("_others")
        if others is not None and name not in ("attention", "values") and not name.startswith("_"):
            self.__dict__.update(others())
            self.__dict__.pop("_others", None)
        both = self._compute_attention() if name in ("attention", "values") else None
        if both is not None:
            self.__dict__.update(attention=both[0], values=both[1])
            # These attributes keep the memory of other hypotheses.
            for private in ("_compute", "_recorded", "_alignment"):
                self.__dict__.pop(private, None)
        if name not in self.__dict__:  # it exists if another thread has computed it in the meantime
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__[name]

    def _compute_attention(self) -> tuple[BySite[Tensor], dict[str, Tensor]] | None:
        """Return attention and values; None if they were computed already."""
        compute: Compute | None = self.__dict__.get("_compute")
        return None if compute is None else compute()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for copy.copy() and copy.deepcopy(), with the attention."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Hypothesis(LazyAttention):
    """One output sentence of a search: its tokens, their scores, and the attention while it was generated.

    tokens: the token ids. The last one is EOS, unless the sentence was cut at the maximum length.
    token_scores: the log-probability of each token under the model.
    ranking: the score that hypotheses are sorted by, with length and coverage penalties.
    attention: for each attention layer (site), the weights (T, S), or (H, T, S) with heads. At a
        cross-attention site, there is a row for each token and a column for each source token, EOS included.
    values: for each site, the norm of each value vector, (H, S).

    >>> from regard.decoding import Hypothesis
    >>> hypothesis = Hypothesis((7, 9, 3), (-0.5, -0.25, -0.25), ranking=-0.5)
    >>> hypothesis.score, hypothesis.finished, hypothesis.output_tokens
    (-1.0, True, (7, 9))
    """

    tokens: tuple[int, ...]
    token_scores: tuple[float, ...]
    ranking: float
    attention: BySite[Tensor] = field(default_factory=BySite, repr=False)
    values: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def all_of(
        cls,
        recorded: RecordedAttention | None,
        lengths: Iterable[int],
        tokens: Iterable[tuple[int, ...]],
        token_scores: Iterable[tuple[float, ...]],
        rankings: Iterable[float],
    ) -> list[Hypothesis]:
        """Return the hypotheses of a search. Their attention is read from recorded weights when it is needed.

        recorded: the weights of all hypotheses, in the same order. None: the hypotheses have no attention.
        lengths: the number of tokens of each hypothesis. The tuples of tokens and scores may be longer.
        """
        # The constructor takes longer, and a GPU is idle while the host creates the objects.
        hypotheses, new = list[Hypothesis](), object.__new__
        rows = zip(lengths, tokens, token_scores, rankings, strict=True)
        for number, (length, ids, scores, ranking) in enumerate(rows):
            hypothesis = new(cls)
            fields = hypothesis.__dict__
            fields["tokens"], fields["token_scores"] = ids[:length], scores[:length]
            fields["ranking"] = ranking
            if recorded is None:
                fields["_compute"] = lambda: (BySite(), {})
            else:
                fields["_recorded"], fields["_number"] = recorded, number
            hypotheses.append(hypothesis)
        return hypotheses

    def recorded_place(self) -> Place | None:
        """Return where the search recorded the attention; None if it did not, or if it was already read."""
        fields = self.__dict__
        recorded = fields.get("_recorded")
        return None if recorded is None else recorded.place(fields["_number"], len(self.tokens))

    def _compute_attention(self) -> tuple[BySite[Tensor], dict[str, Tensor]] | None:
        place = self.recorded_place()
        if place is None:
            return super()._compute_attention()
        return place.recorded.of_hypothesis(*place[1:])

    @property
    def score(self) -> float:
        """The log-probability of the sentence: the sum of its token scores."""
        return sum(self.token_scores)

    @property
    def alignment(self) -> tuple[int, ...]:
        """For each token, the index of the source token with the highest cross-attention weight.

        The weights are averaged over the recorded cross-attention layers and their heads. After a search on a
        GPU, this is much faster than reading `attention`: the indices of all hypotheses are computed at once.

        Raise ArgumentError if the search has recorded no cross-attention.

        >>> import torch
        >>> from regard.decoding import Hypothesis
        >>> weights = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.1, 0.8]])
        >>> Hypothesis((7, 3), (-0.5, -0.1), -0.6, {"decoder.cross": weights}).alignment
        (1, 2)
        """
        fields = self.__dict__
        recorded = fields.get("_recorded")
        if recorded is not None:
            aligned: tuple[int, ...] = (recorded.aligned or recorded.align_all())[fields["_number"]]
            return aligned[: len(fields["tokens"])]
        return tuple(averaged(self.attention).argmax(-1).tolist())

    @property
    def finished(self) -> bool:
        """True if the sentence ends with EOS; False if it was cut at the maximum length."""
        return self.tokens[-1:] == (EOS,)

    @property
    def output_tokens(self) -> tuple[int, ...]:
        """The token ids of the sentence, without the EOS at its end."""
        return self.tokens[:-1] if self.finished else self.tokens


@dataclass(frozen=True, eq=False)
class SearchResult(BatchRows):
    """The result of a search as tensors: K hypotheses for each of B sentences, best first.

    tokens: (B, K, L), token ids, padded with PAD.
    token_scores: (B, K, L), the log-probability of each token, padded with 0.
    ranking: (B, K), the score that hypotheses are sorted by; -inf for missing hypotheses if a sentence has
        fewer than K.
    """

    tokens: Tensor
    token_scores: Tensor
    ranking: Tensor

    @classmethod
    def empty(cls, sentences: int, per_sentence: int, longest: int, device: torch.device) -> SearchResult:
        """Return a result without hypotheses, with tensors of the shape (B, K, L).

        sentences: B.
        per_sentence: K, the number of hypotheses for each sentence.
        longest: L, the number of tokens for each hypothesis.
        """
        return cls(
            torch.full((sentences, per_sentence, longest), PAD, device=device),
            torch.zeros(sentences, per_sentence, longest, device=device),
            torch.full((sentences, per_sentence), -torch.inf, device=device),
        )

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each hypothesis, (B, K), EOS included."""
        return (self.tokens != PAD).sum(-1)

    @property
    def exists(self) -> Tensor:
        """True for the hypotheses that exist, (B, K): beam search can return fewer than K."""
        exists_BK = self.ranking > -torch.inf
        # The first one always exists, even if its log-probability is -inf by underflow.
        exists_BK[:, 0] = True
        return exists_BK

    def with_room_for(self, length: int, longest: int) -> SearchResult:
        """Return this result if its tensors have at least `length` tokens per hypothesis, else a padded copy.

        The copy has twice as many tokens per hypothesis, or `length` if that is more, but at most `longest`.
        """
        room = self.tokens.shape[-1]
        if length <= room:
            return self
        more = (0, min(max(length, 2 * room), longest) - room)
        return SearchResult(pad(self.tokens, more, value=PAD), pad(self.token_scores, more), self.ranking)

    def write(self, rows: Tensor, other: SearchResult) -> None:
        """Overwrite the hypotheses of b sentences of this result by those in `other`.

        rows: (b,), the index of each of these sentences in this result.
        other: a result for only these b sentences.
        """
        length = other.tokens.shape[-1]
        self.tokens[rows, :, :length] = other.tokens
        self.token_scores[rows, :, :length] = other.token_scores
        self.ranking[rows] = other.ranking

    def write_arrays(
        self,
        rows: slice | list[int],
        tokens: NDArray[Any],
        token_scores: NDArray[np.float32],
        ranking: NDArray[np.float32],
    ) -> None:
        """Overwrite the hypotheses of b sentences of this result with arrays. The result must be on the CPU.

        It uses NumPy, because PyTorch takes longer for small arrays.

        rows: the indices of these sentences in this result.
        tokens, token_scores, ranking: the fields of a result for only these b sentences.
        """
        length = tokens.shape[-1]
        self.tokens.numpy()[rows, :, :length] = tokens
        self.token_scores.numpy()[rows, :, :length] = token_scores
        self.ranking.numpy()[rows] = ranking


def rows_as_tuples(values: Tensor | NDArray[np.int32]) -> Iterable[tuple[Any, ...]]:
    """Return the rows of a tensor or an array, along its last dimension, as tuples of numbers.

    struct is several times as fast as tolist() and tuple().

    >>> list(rows_as_tuples(torch.tensor([[1, 2], [3, 4]])))
    [(1, 2), (3, 4)]
    """
    array = values.cpu().numpy() if isinstance(values, Tensor) else values
    if not array.size:
        return [()] * math.prod(array.shape[:-1])
    return struct.iter_unpack(f"{array.shape[-1]}{array.dtype.char}", array.tobytes())
