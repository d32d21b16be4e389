"""Transformer: the encoder-decoder of Vaswani et al. (2017)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.layers.feedforward import FeedForward
from regard.layers.multihead import TransformerLayers, build_multihead
from regard.masks.constructors import causal, padding
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.models.base import Encoded, Model, State, words
from regard.options.attention_options import PositionOption
from regard.options.model_checks import check_transformer, checked
from regard.options.transformer_options import SIZES as SIZES
from regard.options.transformer_options import (
    LayerSettings,
    Size,
    TransformerOptions,
    find_size,
    layer_settings,
)
from regard.roles import CROSS_ATTENTION, DECODER_SELF, ENCODER_SELF

__all__ = ["Size", "Transformer", "TransformerLayer", "TransformerLayers"]


class Transformer(Model):
    """Encoder-decoder with self-attention and cross-attention (Vaswani et al. 2017).

    encoder layer: x + self(x), then x + FFN(x)
    decoder layer: x + self(x), causal, then x + cross(x, source), then x + FFN(x)

    size: a name (tiny, small, base, big) or a Size.
    position: a position scheme: a name, a mapping such as {"name": "rotary", "base": 500000.0}, a Position,
        or "none". Position embeddings are added to the token embeddings. The other schemes act in every
        self-attention layer.
    attention: the options `score` and `select` of every attention layer, and `without`, the parts to leave
        out, see TransformerOptions. The defaults are score="scaled_dot" and select="softmax". In eval mode,
        "hard" reads the value with the highest score.
    norm: where layer normalisation is applied to a sublayer f. "post": LayerNorm(x + f(x)), as in the paper.
        "pre": x + f(LayerNorm(x)), which trains more stably.
    activation: activation of the feed-forward layers: relu, gelu or swiglu.
    tie: "output" shares the weights of the target embedding and the output layer. "all" shares them with the
        source embedding too, and needs one vocabulary for both sides. "none" shares nothing.
    dropout: dropout probability of embeddings, and of the output of each sublayer before it is added to x.
    inner_dropout: dropout probability of attention weights, and inside the feed-forward layers. Default:
        dropout.
    longest: number of positions in the table of position embeddings, for "learned" and "noise".

    >>> from regard.data.batch import Batch
    >>> size = Size(width=8, heads=2, inner=16, layers=1)
    >>> model = Transformer(source_size=9, target_size=7, size=size, position="rotary")
    >>> model(Batch.collate([[4, 5], [6]], [[4], [5, 6]])).shape  # (B, T, V); T = 3 with EOS
    torch.Size([2, 3, 7])
    """

    options_type = TransformerOptions

    @checked(check_transformer)
    def __init__(
        self,
        source_size: int,
        target_size: int,
        size: str | Size = "base",
        *,
        position: PositionOption = "sinusoidal",
        norm: str = "pre",
        activation: str = "relu",
        tie: str = "output",
        dropout: float = 0.1,
        inner_dropout: float | None = None,
        longest: int = 1024,
        **attention: Any,
    ):
        super().__init__()
        size = find_size(size)
        self.source_size, self.target_size, self.width = source_size, target_size, size.width
        self.target = words(target_size, size.width, size.width**-0.5)
        self.source = self.target if tie == "all" else words(source_size, size.width, size.width**-0.5)
        dropouts = dropout, inner_dropout
        layer = layer_settings(Transformer, attention, size, position, norm, activation, dropouts, longest)
        self.position, self.longest_source, self.longest_target = layer.embedded, layer.longest, layer.longest
        self.without = layer.without
        self.encoder = TransformerLayers(TransformerLayer(layer, f"encoder.{i}") for i in range(size.layers))
        self.decoder = TransformerLayers(
            TransformerLayer(layer, f"decoder.{i}", causal=True, cross=True)
            for i in range(size.decoder_depth)
        )
        self.encoded = nn.LayerNorm(size.width) if norm == "pre" else nn.Identity()
        self.decoded = nn.LayerNorm(size.width) if norm == "pre" else nn.Identity()
        self.output = nn.Linear(size.width, target_size)
        if tie != "none":
            self.output.weight = self.target.weight
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        visible = padding(lengths)
        x_BSM, _ = self.encoder(self.embed(self.source, source), visible, self.encoded)
        return Encoded(lengths, self.decoder.remember(x_BSM, visible))

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        x_RTM = self.embed(self.target, tokens, state.position)
        mask = Mask() if "causal-mask" in self.without else causal()
        x_RTM, past = self.decoder(x_RTM, mask, self.decoded, state.position, state.past, encoded.memories)
        return State(state.position + tokens.shape[1], past=past), x_RTM

    def output_layer(self) -> nn.Module:
        return self.output

    def embed(self, table: nn.Embedding, tokens: Tensor, start: int = 0) -> Tensor:
        """Return the input of the first layer (B, T, M): sqrt(M) times the embeddings, plus positions."""
        x = table(tokens) * self.width**0.5
        return self.dropout(x if self.position is None else self.position(x, start))


class TransformerLayer(nn.Module):
    """One layer of a Transformer: self-attention, cross-attention (decoder only) and a feed-forward layer.

    causal: whether the self-attention is causal, as in a decoder.
    cross: whether the layer has cross-attention.
    """

    def __init__(self, settings: LayerSettings, name: str, causal: bool = False, cross: bool = False):
        super().__init__()
        size, dropout, width = settings.size, settings.inner_dropout, settings.size.width
        self.pre, self.select = settings.pre, settings.attention.selection
        role = DECODER_SELF if causal else ENCODER_SELF
        self.itself = build_multihead(settings, f"{name}.self", role, causal=causal)  # self-attention
        self.cross = build_multihead(settings, f"{name}.cross", CROSS_ATTENTION) if cross else None
        feeds = "feed-forward" not in settings.without
        self.feedforward = FeedForward(width, size.inner, settings.activation, dropout) if feeds else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(1 + cross + feeds))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        start: int = 0,
        past: Memory | None = None,
        source: Memory | None = None,
    ) -> tuple[Tensor, Memory]:
        """Return the output (R, T, M) and the self-attention cache, extended by x (R, T, M).

        mask: mask of the self-attention.
        start: position of the first query.
        past: self-attention cache; None at the first step.
        source: memory of the cross-attention, with B sequences. R is a multiple of B, for example in beam
            search.
        """
        select = self.select if self.training else self.select.deterministic()
        y = self._before(x, self.norms[0])
        memory = self.itself.remember(y, past=past)
        change = self.itself(y, memory, mask=mask, start=start, select=select).output
        x = self._after(x, change, self.norms[0])
        if self.cross is not None and source is not None:
            y = self._before(x, self.norms[1])
            change = self.cross.attend_rows(y, source, start=start, select=select)
            x = self._after(x, change, self.norms[1])
        if self.feedforward is not None:
            x = self._after(x, self.feedforward(self._before(x, self.norms[-1])), self.norms[-1])
        return x, memory

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Return the input of a sublayer f: x, or LayerNorm(x)."""
        return norm(x) if self.pre else x

    def _after(self, x: Tensor, change: Tensor, norm: nn.Module) -> Tensor:
        """Add the output of a sublayer f: x + f(LayerNorm(x)), or LayerNorm(x + f(x))."""
        x = x + self.dropout(change)
        return x if self.pre else norm(x)
