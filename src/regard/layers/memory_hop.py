"""MemoryHop: one attention of a memory network to the sentences of a story."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.attended import Attended
from regard.attention import attention
from regard.look import Look
from regard.masks import padding
from regard.roles import Role
from regard.scores import Dot
from regard.select import Linear, Select

__all__ = ["STORY_MEMORY", "HopNetwork", "MemoryHop"]

STORY_MEMORY = Role("memory", "question", "story")
"""The role of the attention of a memory network: the question attends to the sentences of the story."""

_DOT, _LINEAR = Dot(), Linear()
_SCORES = Look(weights=True, gradient=True)


class MemoryHop(nn.Module):
    """One hop of a memory network: attention of one query to the sentences of a story.

    A hop has no parameters.

    p_i = select(u . m_i),  o = sum_i p_i c_i       (Sukhbaatar et al. 2015, eq. 1 and 2)

    u is the query, m_i the key and c_i the value of sentence i.

    number: the number of the hop, from 0. record() and intervene() know hop 0 as "hop.0", hop 1 as "hop.1",
        and so on.

    >>> import torch
    >>> from regard.select import Soft
    >>> hop = MemoryHop(0)
    >>> story, lengths = torch.randn(2, 4, 3), torch.tensor([4, 2])
    >>> hop(torch.randn(2, 3), story, story, lengths, Soft()).output.shape
    torch.Size([2, 1, 3])
    """

    def __init__(self, number: int):
        super().__init__()
        self.site, self.role = f"hop.{number}", STORY_MEMORY

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor,
        select: Select,
        look: Look | None = None,
    ) -> Attended:
        """Attend to the sentences of B stories, with one query for each story.

        query: (B, D), the encoded question, or the state after the previous hop.
        key: (B, S, D), one key for each sentence.
        value: (B, S, E), one value for each sentence.
        lengths: (B,), the number of sentences of each story. The keys after them are padding.
        select: how scores become attention weights, for example Soft() for softmax.
        look: what to return besides the output (B, 1, E), such as the weights.
        """
        return attention(
            query.unsqueeze(1),
            key,
            value,
            score=_DOT,
            mask=padding(lengths),
            select=select,
            look=look,
            site=self.site,
            role=self.role,
        )

    def scores(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores u . m_i of B stories, (B, S), with gradients. See forward() for the arguments."""
        # With the selection Linear(), the weights are the scores themselves.
        weights_B1S: Tensor = self(query, key, value, lengths, _LINEAR, _SCORES).weights
        return weights_B1S.squeeze(1)


class HopNetwork(nn.Module):
    """Base class of memory networks, whose layers `hop` are the attention."""

    hop: Any  # nn.ModuleList of MemoryHop

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the attention sites of the hops, in order, for example ("hop.0", "hop.1")."""
        return tuple(str(each.site) for each in self.hop)
