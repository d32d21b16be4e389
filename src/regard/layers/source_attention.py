"""SourceAttention: the attention of a recurrent decoder to the encoded source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.attention import attention
from regard.errors import ArgumentError, message
from regard.masks.constructors import dense, padding
from regard.masks.mask import Mask
from regard.memory import Memory, prepare
from regard.options.attention_options import ScoreOption, SelectOption, build_layer_score, select_argument
from regard.roles import CROSS_ATTENTION
from regard.scores import Location, Score, learned_in
from regard.select import build_select

__all__ = ["SourceAttention", "attend", "build_source_score", "local_mask"]


class SourceAttention(nn.Module):
    """Attention of a recurrent decoder to the states of the encoder: a base class or a layer of models.

    c_i = sum_j alpha_ij v_j,  alpha_i = select_j(score(q_i, k_j)),  k_j = h_j, or W h_j with `narrow`

    h_j is the state of the encoder for word j of the source, v_j its value, and q_i the query of step i. The
    score functions are in regard/scores.py, the selections in regard/select/.

    >>> layer = SourceAttention().set_up(query_size=3, key_size=4, score="dot")
    >>> memory = layer.remember(torch.randn(2, 5, 4), torch.tensor([5, 2]))
    >>> layer.attend(torch.randn(2, 1, 3), memory, 0).output.shape
    torch.Size([2, 1, 4])
    """

    site, role = "decoder.cross", CROSS_ATTENTION
    score: Any
    narrow: nn.Linear | None
    select: Any

    def set_up(
        self,
        query_size: int,
        key_size: int,
        score: ScoreOption = "additive",
        select: SelectOption = "softmax",
        hidden: int | None = None,
    ) -> SourceAttention:
        """Create the score function, with nearly uniform weights at first, and the selection; return self.

        score: a name, a mapping such as {"name": "cosine", "sharpness": 9.0}, or a Score.
        select: a name, a mapping such as {"name": "softmax", "temperature": 0.5}, or a Select.
        hidden: hidden size of "additive" and "concat", unless the mapping sets `hidden`.
        """
        built, narrow = build_source_score(score, query_size, key_size, hidden)
        self.use(built if isinstance(score, Score) else near_uniform(built), narrow, select)
        return self

    def set_up_narrowed(
        self, query_size: int, key_size: int, score: ScoreOption, select: SelectOption
    ) -> int:
        """Like set_up(), but `narrow` projects the states, keys and values alike; return their size then."""
        narrows = not isinstance(score, Score) and build_layer_score(score, query_size, key_size).mismatch(
            query_size, key_size, 1
        )
        self.narrow = nn.Linear(key_size, query_size, bias=False) if narrows else None
        size = query_size if narrows else key_size
        self.use(build_layer_score(score, query_size, size), self.narrow, select)
        return size

    def use(self, score: Score, narrow: nn.Linear | None, select: SelectOption) -> None:
        """Attend with this score function and selection. narrow: the projection of the keys, or None."""
        self.score, self.narrow, self.select = score, narrow, build_select(select)
        self.sharpness = learned_in(score)
        self.longest_source = score.max_length if isinstance(score, Location) else None

    def remember(self, states: Tensor, lengths: Tensor | None = None, values: Tensor | None = None) -> Memory:
        """Return the source as a Memory; keys are projected once for all steps of the decoder.

        states: (B, S, M), the states of the encoder.
        lengths: (B,), number of tokens of each source. Default: all S.
        values: (B, S, E). Default: the states.
        """
        keys = states if self.narrow is None else self.narrow(states)
        mask = None if lengths is None else padding(lengths)
        return prepare(keys, states if values is None else values, score=self.score, mask=mask)

    def attend(self, query: Tensor, memory: Memory, position: int, **options: Any) -> Attended:
        """Attend from decoder states (R, n, D) to the source; for R rows of B sources, see attend().

        position: the step of the first query, from 0.
        options: other arguments of attention().
        """
        own = {**select_argument(self.select, self.training), "site": self.site, "role": self.role}
        return attend(query, memory, start=position, **{**own, **options})


def build_source_score(
    score: ScoreOption, query_size: int, key_size: int, hidden: int | None = None
) -> tuple[Score, nn.Linear | None]:
    """Create a score function, and the projection of the keys if it needs keys of the size of the query.

    For the arguments, see SourceAttention.set_up().
    """
    name = score.get("name") if isinstance(score, Mapping) else score
    if hidden is not None and name in ("additive", "concat"):
        score = {"hidden": hidden, **(score if isinstance(score, Mapping) else {"name": name})}
    built = build_layer_score(score, query_size, key_size)
    if built.mismatch(query_size, key_size, 1) is None:
        return built, None
    return build_layer_score(score, query_size, query_size), nn.Linear(key_size, query_size, bias=False)


def local_mask(query: Tensor, memory: Memory, position: int, reach: float) -> Mask:
    """Return the mask of local-m attention: step t sees the words from t - reach to t + reach.

    It is window(reach, reach) for each of the K beams of a source, whose queries follow one another in a call
    of attend().

    query: (B K, n, D), the queries.
    memory: keys and values of B sequences.
    position: the step of the first query, from 0.
    """
    beams = len(query) // max(len(memory.key), 1)
    step_T = torch.arange(position, position + query.shape[1], device=query.device)
    word_S = torch.arange(memory.length, device=query.device)
    return dense((step_T.repeat(beams)[:, None] - word_S).abs() <= reach)


def near_uniform(score: Score) -> Score:
    """Scale the initial parameters down, so that the attention weights are nearly uniform at first.

    With larger random parameters, some words would get high scores by chance. Training would then strengthen
    these random choices.
    """
    if isinstance(score, nn.Module):
        with torch.no_grad():
            for name, weight in score.named_parameters():
                weight.mul_(0.1 if name == "vector" or score.combine == "inner" else 0.5)
    return score


def attend(query: Tensor, memory: Memory, **options: Any) -> Attended:
    """Attend from K beams of each source to the memory of this source, without copying the memory.

    query: (B K, n, D). Row r attends to sequence r // K of the memory.
    memory: keys and values of B sequences.
    options: other arguments of attention(). `start` is the position of the first of the n queries.

    Returns an Attended with output (B K, n, E). The K beams of a source become K n queries of one attention()
    call. So the weights that record() returns have shape (B, K n, S).
    """
    rows, tokens, width = query.shape
    batch = memory.key.shape[0]
    if rows % max(batch, 1):
        raise ArgumentError(
            message(
                "step()",
                f"the state has {rows} rows, but {batch} sources are encoded",
                expected="a multiple of the number of sources",
            )
        )
    beams = rows // max(batch, 1) or 1
    attended = attention(query.reshape(batch, -1, width), memory, beams=beams, **options)
    return attended.but(output=attended.output.reshape(rows, tokens, -1))
