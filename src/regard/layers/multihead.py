"""MultiHead: multi-head attention (Vaswani et al. 2017, section 3.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.attention import attention
from regard.errors import ArgumentError, answer_torch_keywords, message, positive
from regard.layers.joint_linear import is_hooked, joint_linear, linear_without_bias
from regard.layers.multihead_arguments import check_arguments
from regard.masks.mask import Mask
from regard.memory import Memory, prepare
from regard.positions import Bias, Position, Rotary, build_position
from regard.roles import Role
from regard.scores import ScaledDot, Score, build_score, learned_in

__all__ = ["MultiHead"]


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
        positive("MultiHead()", dropout, width=width, heads=heads, key_heads=key_heads)
        if width % heads or heads % key_heads:
            raise ArgumentError(
                message(
                    "MultiHead()",
                    f"width={width}, heads={heads} and key_heads={key_heads} do not match",
                    expected="width a multiple of heads, heads a multiple of key_heads",
                )
            )
        size = width // heads
        self.heads, self.key_heads, self.dropout, self.site = heads, key_heads, dropout, "multihead"
        self.role: Role | None = None
        self.batch_first = batch_first
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(key_width or width, key_heads * size, bias)
        self.value = nn.Linear(value_width or key_width or width, key_heads * size, bias)
        self.output = nn.Linear(width, width, bias)
        self.score = build_score(score, size, size, heads if key_heads == heads else None)
        self.sharpness = learned_in(self.score)
        self.position = None if position is None else build_position(position, width, heads)
        if self.position is not None and self.position.acts == "embeddings":
            name = type(self.position).__name__
            raise ArgumentError(
                message(
                    "MultiHead()",
                    f"{name} is a position embedding, which is added to token embeddings",
                    expected="a scheme for queries and keys or for scores: Rotary, Relative, T5Bias, ALiBi",
                    hint=f"apply it to the embeddings before this layer: {name}(...)(embeddings)",
                )
            )
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
        alone = query.dim() == 2
        inputs: Any = (query, key, value)
        if alone or not self.batch_first:
            inputs = [self._batched(x, alone) if isinstance(x, Tensor) else x for x in inputs]
        attended = self._attend(*inputs, mask=mask, start=start, options=options)
        if alone:
            return attended.map(lambda tensor: tensor[0])
        return attended if self.batch_first else attended.but(output=attended.output.transpose(0, 1))

    def _attend(
        self,
        query: Tensor,
        key: Tensor | Memory | None,
        value: Tensor | None,
        *,
        mask: Mask | Tensor | None,
        start: int | None,
        options: dict[str, Any],
    ) -> Attended:
        """Implement forward() for batch-first tensors: query (B, T, width), key (B, S, ...)."""
        if start is None:
            start = max(0, key.length - query.shape[1]) if isinstance(key, Memory) else 0
        check_arguments(self, query, key, value, start, options)
        memory: Any
        modules: Any = self._modules
        if key is None and value is None:  # self-attention
            layers = modules["query"], modules["key"], modules["value"]
            projected, keys, values = joint_linear(query, layers)
            if type(self.score) is ScaledDot and self.position is None:
                memory = self._split(keys, self.key_heads), self._split(values, self.key_heads)
            else:
                memory = (self._memory(keys, values, 0),)
        else:
            (projected,) = joint_linear(query, (modules["query"],))
            memory = (
                key if isinstance(key, Memory) else self._remember(query if key is None else key, value),
            )
        attended = self._read(projected, memory, mask, start, options)
        return Attended(joint_linear(attended.output, (modules["output"],))[0], *attended[1:])

    def attend_itself(
        self,
        x: Tensor,
        past: Memory | None = None,
        *,
        mask: Mask | None = None,
        start: int = 0,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None, Memory]:
        """Self-attention of x (B, T, width) with a cache.

        past: keys and values of earlier positions, or None.
        start: position of the first query.

        Returns the output (B, T, width), a bias (width,) to be added to it, or None, and the extended cache.
        The same as memory = remember(x, past=past), then forward(x, memory, start=start), but query, key and
        value are projected together.
        """
        if is_hooked(self) or not self.batch_first:
            memory = self.remember(x, past=past)
            return self(x, memory, mask=mask, start=start, **options).output, None, memory
        check_arguments(self, x, None, None, 0, options)
        projected, keys, values = joint_linear(x, (self.query, self.key, self.value))
        memory = self._memory(keys, values, 0 if past is None else past.length, past)
        joined = self._read(projected, (memory,), mask, start, options).output
        return *linear_without_bias(joined, self.output), memory

    def attend_memory(
        self, x: Tensor, memory: Memory, *, start: int = 0, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attention from x (B, T, width) to a Memory, as forward(x, memory, start=start).

        Returns the output (B, T, width), and a bias (width,) to be added to it, or None.
        """
        if is_hooked(self) or not self.batch_first:
            return self(x, memory, start=start, **options).output, None
        check_arguments(self, x, memory, None, start, options)
        (projected,) = joint_linear(x, (self.query,))
        return linear_without_bias(self._read(projected, (memory,), None, start, options).output, self.output)

    def _read(
        self,
        projected: Tensor,
        memory: Sequence[Any],
        mask: Mask | Tensor | None,
        start: int,
        options: dict[str, Any],
    ) -> Attended:
        """Attend from projected queries (B, T, width). The output (B, T, width) is not yet projected.

        memory: a Memory, or keys and values.
        """
        query_BHTD = self._rotated(self._split(projected, self.heads), start)
        if isinstance(self.position, Bias):
            options["bias"] = self.position
        if self.training and self.dropout:
            options.setdefault("dropout", self.dropout)
        attended = attention(
            query_BHTD, *memory, mask=mask, start=start, site=self.site, role=self.role, **options
        )
        return Attended(attended.output.transpose(1, 2).flatten(-2), *attended[1:])

    def _batched(self, tensor: Tensor, alone: bool) -> Tensor:
        """Return an input of forward() with the batch first, (B, T, width).

        alone: whether the input is one sequence without a batch dimension, (T, width).
        """
        if alone:
            return tensor[None]
        return tensor if self.batch_first or tensor.dim() != 3 else tensor.transpose(0, 1)

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
        alone = key.dim() == 2
        key, value = self._batched(key, alone), None if value is None else self._batched(value, alone)
        return self._remember(key, value, past, start, mask)

    def _remember(
        self,
        key: Tensor,
        value: Tensor | None,
        past: Memory | None = None,
        start: int | None = None,
        mask: Mask | None = None,
    ) -> Memory:
        start = (past.length if past is not None else 0) if start is None else start
        if value is None:
            keys, values = joint_linear(key, (self.key, self.value))
        else:
            (keys,), (values,) = joint_linear(key, (self.key,)), joint_linear(value, (self.value,))
        return self._memory(keys, values, start, past, mask)

    def _memory(
        self, keys: Tensor, values: Tensor, start: int, past: Memory | None = None, mask: Mask | None = None
    ) -> Memory:
        """Return projected keys and values, (B, S, K D) and (B, S, K E), as a Memory; see remember()."""
        key_BKSD = self._rotated(self._split(keys, self.key_heads), start)
        value_BKSE = self._split(values, self.key_heads)
        if past is not None:
            return past.append(key_BKSD, value_BKSE)
        if type(self.score) is ScaledDot and key_BKSD.shape[:3] == value_BKSE.shape[:3]:
            if mask is None:
                return Memory(key_BKSD, value_BKSE, self.score, Mask(), key_BKSD.shape[3])
            if self.training and torch.is_grad_enabled() and key_BKSD.is_cuda and mask.only("lengths"):
                # In training, keys are used once, mostly by a backend that does not read hidden keys.
                size, own = key_BKSD.shape[3], mask.to(key_BKSD.device)
                return Memory(key_BKSD, value_BKSE, self.score, own, size, cleaned=False)
        return prepare(key_BKSD, value_BKSE, score=self.score, mask=mask)

    def extra_repr(self) -> str:
        layout = "" if self.batch_first else ", batch_first=False"
        heads = f"heads={self.heads}, key_heads={self.key_heads}"
        return f"{heads}, score={self.score!r}, dropout={self.dropout}{layout}"

    def _split(self, joined: Tensor, heads: int) -> Tensor:
        batch, length, width = joined.shape
        return joined.view(batch, length, heads, width // heads).transpose(1, 2)

    def _rotated(self, vectors: Tensor, start: int) -> Tensor:
        return self.position(vectors, start) if isinstance(self.position, Rotary) else vectors

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
        if not isinstance(layer, nn.MultiheadAttention):
            kind = type(layer).__name__
            raise ArgumentError(
                message("MultiHead.from_torch()", f"layer is a {kind}", expected="nn.MultiheadAttention")
            )
        if layer.bias_k is not None or layer.add_zero_attn:
            raise ArgumentError(
                message(
                    "MultiHead.from_torch()",
                    "layer has add_bias_kv or add_zero_attn set, which MultiHead does not support",
                    expected="add_bias_kv=False and add_zero_attn=False",
                )
            )
        own = cls(
            layer.embed_dim,
            layer.num_heads,
            key_width=layer.kdim,
            value_width=layer.vdim,
            dropout=layer.dropout,
            bias=layer.in_proj_bias is not None,
            batch_first=layer.batch_first if batch_first is None else batch_first,
        ).to(layer.out_proj.weight)
        weights = (
            layer.in_proj_weight.chunk(3)
            if layer.in_proj_weight is not None
            else (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        )
        with torch.no_grad():
            for linear, weight in zip((own.query, own.key, own.value), weights, strict=True):
                linear.weight.copy_(weight)
            own.output.weight.copy_(layer.out_proj.weight)
            if layer.in_proj_bias is not None:
                for linear, bias in zip(
                    (own.query, own.key, own.value), layer.in_proj_bias.chunk(3), strict=True
                ):
                    linear.bias.copy_(bias)
                own.output.bias.copy_(layer.out_proj.bias)
        return own.train(layer.training)
