"""MemoryHop: one read of a story by a memory network, with any selection."""

from __future__ import annotations

from torch import Tensor, nn

from regard.attended import Attended
from regard.attention import attention
from regard.look import Look
from regard.masks import padding
from regard.roles import Role
from regard.scores import Dot
from regard.select import Select

__all__ = ["STORY_MEMORY", "MemoryHop"]

STORY_MEMORY = Role("memory", "question", "story")
"""The role of the attention of a memory network: the question attends to the sentences of the story."""

_DOT = Dot()


class MemoryHop(nn.Module):
    """One hop of a memory network: attention of one query over the sentences of a story. It has no weights.

    p_i = select(u . m_i),  o = sum_i p_i c_i       (Sukhbaatar et al. 2015, eq. 1 and 2)

    number: the number of the hop, from 0; its site is "hop.0", "hop.1" and so on.

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
        """Read the story.

        query: (B, D).
        key, value: (B, S, D) and (B, S, E).
        lengths: (B,), the number of sentences of each story; the other keys are padding.
        select: how scores become weights.
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
