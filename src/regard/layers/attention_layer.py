"""AttentionLayer: attention to inputs X.

The inputs, or learned projections of them, are the keys and values.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.attended import Attended, Top
from regard.attention import attention
from regard.roles import Role
from regard.scores import Score, build_score, learned_in

__all__ = ["AttentionLayer"]


class AttentionLayer(nn.Module):
    """Attend from one or more queries to inputs X, with any score function.

    e = score(q, k(X)),  a = softmax(e),  y = sum_i a_i v(X_i)

    query_size: size of the query q.
    input_size: size of the inputs X_i.
    score: the score function, as a name in SCORES or a Score.
    key_size: size of the keys k(X) = X W_k. Default: no projection, k(X) = X.
    value_size: size of the values v(X) = X W_v. Default: no projection, v(X) = X.

    >>> import regard, torch
    >>> layer = regard.AttentionLayer(query_size=4, input_size=6, key_size=4, value_size=8)
    >>> layer(torch.randn(2, 3, 4), torch.randn(2, 5, 6)).output.shape      # many queries
    torch.Size([2, 3, 8])
    >>> layer(torch.randn(4), torch.randn(5, 6)).output.shape               # one query
    torch.Size([8])
    """

    def __init__(
        self,
        query_size: int,
        input_size: int,
        *,
        score: str | Score = "scaled_dot",
        key_size: int | None = None,
        value_size: int | None = None,
    ):
        super().__init__()
        self.score = build_score(score, query_size, key_size or input_size)
        self.key = nn.Linear(input_size, key_size, bias=False) if key_size else nn.Identity()
        self.value = nn.Linear(input_size, value_size, bias=False) if value_size else nn.Identity()
        self.sharpness = learned_in(self.score)
        self.site = "attention_layer"
        self.role: Role | None = None

    def forward(self, query: Tensor, inputs: Tensor, **options: Any) -> Attended:
        """Attend from query to inputs.

        query: (B, T, query_size), or (B, query_size) for one query per sequence. If `inputs` is one sequence
            without a batch dimension, the query has none either.
        inputs: (B, S, input_size), or (S, input_size) for one sequence.
        options: other arguments of attention(), such as mask and look.
        """
        single = query.dim() == inputs.dim() - 1
        query = query.unsqueeze(-2) if single else query
        attended = attention(
            query,
            self.key(inputs),
            self.value(inputs),
            score=self.score,
            site=self.site,
            role=self.role,
            **options,
        )
        return _squeeze_queries(attended) if single else attended


def _squeeze_queries(attended: Attended) -> Attended:
    """Return the result of an attention() call with one query, without the query dimension (T = 1)."""
    top = attended.top and Top(attended.top.weights.squeeze(-2), attended.top.keys.squeeze(-2))
    rows = {
        name: getattr(attended, name) for name in ("lse", "alignment", "entropy", "chosen", "log_probability")
    }
    return attended.but(
        output=attended.output.squeeze(-2),
        weights=None if attended.weights is None else attended.weights.squeeze(-2),
        top=top,
        **{name: None if row is None else row.squeeze(-1) for name, row in rows.items()},
    )
