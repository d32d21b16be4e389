"""MultiHead: multi-head attention (Vaswani et al. 2017, section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from regard.attended import Attended
from regard.attention import attention
from regard.errors import answer_torch_keywords
from regard.masks.mask import Mask
from regard.memory import Memory, prepare
from regard.options.model_checks import check_acts_on_heads, check_multihead, check_multihead_call
from regard.options.transformer_options import LayerSettings
from regard.positions import Bias, Position, Rotary, build_position
from regard.roles import Role
from regard.scores import Score, build_score, learned_in
from regard.torch_modules.multihead_weights import copied

__all__ = ["MultiHead", "TransformerLayers", "build_multihead"]


class MultiHead(nn.Module):
    """Multi-head attention: self-attention or cross-attention, with or without a key-value cache.

    head_h = attention(x W^Q_h, m W^K_h, m W^V_h),  output = [head_1; ...; head_H] W^O

    x is the query input, and m is the input for keys and values; in self-attention, m = x.

    width: size of queries and output.
    heads: number of heads.
    key_width: size of the key input. Default: width.
    value_width: size of the value input. Default: key_width.
    key_heads: number of key and value heads. Default: heads. With a smaller number, the layer computes
        grouped-query attention; with 1, multi-query attention.
    score: the score function, as a name in SCORES or a Score, for vectors of size width / heads.
    position: the position scheme, as a name in POSITIONS or a Position. It must act on queries and keys, or
        on scores.
    dropout: probability of dropping an attention weight in training.
    bias: whether the four linear layers have a bias.
    batch_first: if False, inputs and outputs have shape (T, B, width), as in torch.nn.MultiheadAttention.
        Attention weights, masks and memories always have the batch dimension first.

    The layer itself stores no key-value cache. The cache is a Memory that remember() returns. In this
    example, the last decoding step gives the same output as the last position of one pass over all tokens:

    >>> import regard, torch
    >>> layer, x = regard.MultiHead(width=8, heads=2, position="rotary"), torch.randn(1, 5, 8)
    >>> whole = layer(x, mask=regard.causal()).output
    >>> memory = None
    >>> for t in range(5):
    ...     memory = layer.remember(x[:, t : t + 1], past=memory)
    ...     step = layer(x[:, t : t + 1], memory, start=t).output
    >>> torch.allclose(step, whole[:, 4:], atol=1e-6)
    True
    """

    @answer_torch_keywords
    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        key_heads: int | None = None,
        score: str | Score = "scaled_dot",
        position: str | Position | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
    ):
        super().__init__()
        key_heads = key_heads or heads
        check_multihead(width, heads, key_heads, dropout)
        size = width // heads
        self.heads: int = heads
        self.key_heads: int = key_heads
        self.dropout, self.site = dropout, "multihead"
        self.role: Role | None = None
        self.batch_first = batch_first
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(key_width or width, key_heads * size, bias)
        self.value = nn.Linear(value_width or key_width or width, key_heads * size, bias)
        self.output = nn.Linear(width, width, bias)
        self.score = build_score(score, size, size, heads if key_heads == heads else None)
        self.sharpness = learned_in(self.score)
        self.position = None if position is None else build_position(position, width, heads)
        check_acts_on_heads(self.position)
        for linear in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(linear.weight)

    @answer_torch_keywords
    def forward(
        self,
        query: Tensor,
        key: Tensor | Memory | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        start: int | None = None,
        **options: Any,
    ) -> Attended:
        """Attend from query (B, T, width) to key and value (B, S, ...). The batch dimension may be missing.

        With batch_first=False, inputs are (T, B, width) and (S, B, ...), and the output is (T, B, width).

        key: a tensor, or a Memory from remember(). Default: the query (self-attention).
        value: a tensor. Default: the key.
        mask: as for attention().
        start: position of the first query. Default: 0. With a Memory, the default is S - T (but at least 0),
            so that the last query has the position of the last key.
        options: other arguments of attention(), such as look and backend.
        """
        check_multihead_call(self, query, key, value, start, options)
        projected = self.query(self._batched(query))
        memory = key if isinstance(key, Memory) else self.remember(query if key is None else key, value)
        if start is None:
            start = max(0, memory.length - projected.shape[1]) if isinstance(key, Memory) else 0
        heads = self.attend_heads(projected, memory, mask=mask, start=start, **options)
        attended = Attended(self.output(heads.output), *heads[1:])
        if query.dim() == 2:
            return attended.map(lambda tensor: tensor[0])
        return attended if self.batch_first else attended.but(output=attended.output.transpose(0, 1))

    def attend_heads(self, query: Tensor, memory: Memory, *, start: int, **options: Any) -> Attended:
        """Compute all heads and join them: [head_1; ...; head_H], (B, T, width), without W^O.

        query: the projected queries x W^Q, (B, T, width).
        """
        query_BHTD = self._split(query, self.heads)
        if isinstance(self.position, Rotary):
            query_BHTD = self.position(query_BHTD, start)
        if isinstance(self.position, Bias):
            options["bias"] = self.position
        if self.training and self.dropout:
            options.setdefault("dropout", self.dropout)
        attended = attention(query_BHTD, memory, start=start, site=self.site, role=self.role, **options)
        return Attended(attended.output.transpose(1, 2).flatten(-2), *attended[1:])

    def attend_rows(self, query: Tensor, memory: Memory, **options: Any) -> Tensor:
        """Return the output (R, T, width) of R = K B query sequences, of which K attend to each memory.

        The K T queries of a memory are those of one call, as in source_attention.attend().
        """
        query_BTM = query.reshape(memory.key.shape[0], -1, query.shape[-1])  # len() would fix B in an export
        beams = query.shape[0] // max(query_BTM.shape[0], 1) or 1
        return self(query_BTM, memory, beams=beams, **options).output.reshape(query.shape)

    def remember(
        self,
        key: Tensor,
        value: Tensor | None = None,
        *,
        past: Memory | None = None,
        start: int | None = None,
        mask: Mask | None = None,
    ) -> Memory:
        """Project keys and values once, and return them as a Memory (the key-value cache).

        key: (B, S, key_width), or (S, B, key_width) with batch_first=False.
        value: (B, S, value_width), or (S, B, value_width) with batch_first=False. Default: the key.
        past: an earlier Memory, or None. The result contains the keys and values of `past`, then the new
            ones.
        start: position of the first new key. Default: the length of `past`, or 0 without `past`.
        mask: a mask that later calls with this Memory apply to every query, such as padding(lengths).
        """
        keys = self.key(self._batched(key))
        values = self.value(self._batched(key if value is None else value))
        return self.remember_heads(keys, values, past=past, start=start, mask=mask)

    def remember_heads(
        self,
        keys: Tensor,
        values: Tensor,
        *,
        past: Memory | None = None,
        start: int | None = None,
        mask: Mask | None = None,
    ) -> Memory:
        """Return the projected keys m W^K and values m W^V, (B, S, key_heads D), as remember() does."""
        key_BKSD, value_BKSE = self._split(keys, self.key_heads), self._split(values, self.key_heads)
        if start is None:
            start = 0 if past is None else past.length
        if isinstance(self.position, Rotary):
            key_BKSD = self.position(key_BKSD, start)
        if past is not None:
            return past.append(key_BKSD, value_BKSE)
        return prepare(key_BKSD, value_BKSE, score=self.score, mask=mask)

    def extra_repr(self) -> str:
        layout = "" if self.batch_first else ", batch_first=False"
        heads = f"heads={self.heads}, key_heads={self.key_heads}"
        return f"{heads}, score={self.score!r}, dropout={self.dropout}{layout}"

    def _batched(self, tensor: Tensor) -> Tensor:
        """Return an input with the batch first, (B, T, width)."""
        if tensor.dim() == 2:
            return tensor[None]
        return tensor if self.batch_first else tensor.transpose(0, 1)

    def _split(self, joined: Tensor, heads: int) -> Tensor:
        """Split (B, T, heads D) into heads, (B, heads, T, D)."""
        return joined.unflatten(-1, (heads, -1)).transpose(1, 2)

    in_proj_bias, _qkv_same_embed_dim = None, False
    """nn.TransformerEncoderLayer reads these two attributes of its attention layer in eval mode. With these
    values, nn.TransformerEncoderLayer calls MultiHead.forward() instead of the fused attention of torch."""

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention, *, batch_first: bool | None = None) -> MultiHead:
        """Create a MultiHead with a copy of the weights of a torch.nn.MultiheadAttention.

        batch_first: the layout of inputs and outputs. Default: the layout of `layer`, so that the same inputs
            give the same outputs.

        The result can replace `self_attn` or `multihead_attn` in nn.TransformerEncoderLayer and
        nn.TransformerDecoderLayer, if these layers are called without masks. With src_mask,
        src_key_padding_mask or is_causal=True, the call raises ArgumentError, because MultiHead does not
        support the mask arguments of torch.

        >>> import regard, torch
        >>> theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 5, 8)
        >>> torch.allclose(regard.MultiHead.from_torch(theirs)(x).output, theirs(x, x, x)[0], atol=1e-6)
        True
        """
        return copied(cls, layer, batch_first)


def build_multihead(settings: LayerSettings, site: str, role: Role, *, causal: bool = False) -> MultiHead:
    """Build one attention layer of a Transformer.

    causal: whether it is self-attention that is causal. Cross-attention has no positions.
    """
    positions = role.kind == "self"
    score, position = settings.score_and_position(positions=positions, causal=causal)
    size, dropout = settings.size, settings.inner_dropout
    layer = MultiHead(size.width, size.heads, score=score, position=position, dropout=dropout)
    layer.site, layer.role = site, role
    if "projections" in settings.without:
        for linear in (layer.key, layer.value):  # K = V = X: identity matrices, which are not trained
            nn.init.eye_(linear.weight)
            nn.init.zeros_(linear.bias)
            linear.requires_grad_(False)
    return layer


class TransformerLayers(nn.ModuleList):
    """The layers of an encoder or a decoder of a Transformer, one after another, with their caches.

    For the equations of a layer, see TransformerLayer in models/transformer.py.
    """

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        norm: nn.Module,
        start: int = 0,
        past: Sequence[Memory] = (),
        sources: Sequence[Memory] = (),
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        """Return norm(output of the last layer), (R, T, M), and the self-attention caches of all layers.

        norm: the final layer normalisation; with post-norm nn.Identity(), because the layers end with one.
        past, sources: the arguments `past` and `source` of each layer; empty for None.
        """
        caches: list[Memory] = []
        for i, layer in enumerate(self):
            cache, source = past[i] if past else None, sources[i] if sources else None
            x, cache = layer(x, mask, start, cache, source)
            caches.append(cache)
        return norm(x), tuple(caches)

    def remember(self, x: Tensor, mask: Mask) -> tuple[Memory, ...]:
        """Return the encoded source x (B, S, M) as the memory of the cross-attention of each layer."""
        crossing = [layer.cross for layer in self if isinstance(layer.cross, MultiHead)]
        return tuple(cross.remember(x, mask=mask) for cross in crossing)
