"""Transformer: the encoder-decoder of Vaswani et al. (2017)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import Tensor, nn

from regard.errors import ArgumentError, Setting, UnknownName, message, positive
from regard.layers.attention_options import (
    AttentionOptions,
    PositionOption,
    build_layer_score,
    build_model_position,
    check_position,
    select_argument,
)
from regard.layers.feedforward import FeedForward
from regard.layers.joint_linear import is_hooked
from regard.layers.multihead import MultiHead
from regard.layers.residual_stream import ResidualStream
from regard.layers.token_embedding import embed_tokens
from regard.masks.constructors import causal, padding
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.models.base import Encoded, Model, State, words
from regard.positions.embedded import Table
from regard.roles import CROSS_ATTENTION, DECODER_SELF, ENCODER_SELF

__all__ = [
    "NORMS",
    "REMOVABLE",
    "SIZES",
    "LayerSettings",
    "Size",
    "Transformer",
    "TransformerLayer",
    "TransformerOptions",
    "find_size",
    "run_layer",
]


@dataclass(frozen=True)
class Size:
    """The size of a Transformer.

    width: size of the embeddings, and of the output of each layer.
    heads: number of attention heads.
    inner: hidden width of the feed-forward layers.
    layers: number of encoder layers.
    decoder_layers: number of decoder layers (default: layers).

    >>> Size(width=128, heads=4, inner=256, layers=2).heads
    4
    """

    width: int
    heads: int
    inner: int
    layers: int
    decoder_layers: int | None = None

    def __post_init__(self) -> None:
        depth = self.layers if self.decoder_layers is None else self.decoder_layers
        sizes = {"width": self.width, "heads": self.heads, "inner": self.inner}
        positive("Size()", **sizes, layers=self.layers, decoder_layers=depth)
        if self.width % self.heads:
            problem = f"width is {self.width} and heads is {self.heads}"
            raise ArgumentError(message("Size()", problem, expected="width = a multiple of heads"))


SIZES = {
    "tiny": Size(width=128, heads=4, inner=256, layers=4),  # Wu et al. 2021, for small data sets
    "small": Size(width=256, heads=4, inner=1024, layers=4),
    "base": Size(width=512, heads=8, inner=2048, layers=6),  # Vaswani et al. 2017, table 3
    "big": Size(width=1024, heads=16, inner=4096, layers=6),
}
NORMS = ("pre", "post")
TIES = ("none", "output", "all")
REMOVABLE = ("causal-mask", "feed-forward", "projections")
"""Parts of a Transformer that the option `without` can leave out."""


@dataclass(frozen=True)
class TransformerOptions(AttentionOptions):
    """The options of the attention layers of a Transformer, and the parts that it does not have.

    without: names in REMOVABLE, for ablations. Without "causal-mask", the decoder sees the whole target in
        training. Without "feed-forward", a layer has attention only. Without "projections", keys and values
        are the inputs of the attention layer (K = V = X); only queries and outputs are projected.

    >>> TransformerOptions(without="projections").without
    ('projections',)
    """

    without: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = (self.without,) if isinstance(self.without, str) else tuple(self.without)
        for name in names:
            if name not in REMOVABLE:
                raise UnknownName("part of a Transformer", name, REMOVABLE)
        object.__setattr__(self, "without", names)


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
        inner_dropout = dropout if inner_dropout is None else inner_dropout
        chosen = _check_options(size, norm, tie, source_size, target_size)
        for each in (dropout, inner_dropout):
            positive("Transformer()", each, source_size=source_size, target_size=target_size)
        if longest < 2:
            expected = "2 or more: one token and EOS"
            raise ArgumentError(message("Transformer()", f"longest is {longest}", expected=expected))
        self.source_size, self.target_size, self.width = source_size, target_size, chosen.width
        self.target = words(target_size, chosen.width, chosen.width**-0.5)
        self.source = self.target if tie == "all" else words(source_size, chosen.width, chosen.width**-0.5)
        scheme = build_model_position(position, chosen.width, chosen.heads, longest)
        added = scheme is not None and scheme.acts == "embeddings"
        self.position = scheme if added else None
        inside = None if added else position
        options = TransformerOptions.checked("Transformer()", attention, signature(Transformer).parameters)
        self.without = tuple(options.without)
        if isinstance(scheme, Table):
            self.longest_source = self.longest_target = len(scheme.table)
        layer = LayerSettings(
            chosen, inside, norm == "pre", activation, dropout, inner_dropout, options, self.without
        )
        self.encoder = nn.ModuleList(TransformerLayer(layer, f"encoder.{i}") for i in range(chosen.layers))
        depth = chosen.layers if chosen.decoder_layers is None else chosen.decoder_layers
        self.decoder = nn.ModuleList(
            TransformerLayer(layer, f"decoder.{i}", decodes=True) for i in range(depth)
        )
        self.encoded = nn.LayerNorm(chosen.width) if norm == "pre" else nn.Identity()
        self.decoded = nn.LayerNorm(chosen.width) if norm == "pre" else nn.Identity()
        self.output = nn.Linear(chosen.width, target_size)
        if tie != "none":
            self.output.weight = self.target.weight
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        stream, visible = ResidualStream(self._embedded(self.source, source, 0)), padding(lengths)
        for layer in self.encoder:
            stream, _ = run_layer(layer, stream, visible)
        _, x_BSM = stream.normalized(self.encoded)
        crossing = [layer.cross for layer in self.decoder if isinstance(layer.cross, MultiHead)]
        return Encoded(lengths, tuple(cross.remember(x_BSM, mask=visible) for cross in crossing))

    def start(self, encoded: Encoded) -> State:
        return State()

    def output_layer(self) -> nn.Module:
        return self.output

    def features(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        stream, past = ResidualStream(self._embedded(self.target, tokens, state.position)), []
        mask = Mask() if "causal-mask" in self.without else causal()
        for i, layer in enumerate(self.decoder):
            before = state.past[i] if state.past else None
            stream, memory = run_layer(layer, stream, mask, state.position, before, encoded.memories[i])
            past.append(memory)
        _, features_RTM = stream.normalized(self.decoded)
        return State(state.position + tokens.shape[1], past=tuple(past)), features_RTM

    def _embedded(self, table: nn.Embedding, tokens: Tensor, start: int) -> Tensor:
        return embed_tokens(table, tokens, self.width**0.5, self.position, start, self.dropout)


@dataclass(frozen=True)
class LayerSettings:
    """Settings that all layers of a Transformer share.

    size: widths, and number of heads.
    position: the position scheme.
    pre: if True, layer normalisation comes before each sublayer. If False, it comes after each sublayer.
    activation: activation of the feed-forward layers: relu, gelu or swiglu.
    dropout: dropout probability of the output of each sublayer.
    inner_dropout: dropout probability of attention weights, and inside the feed-forward layers.
    attention: the score function and the selection of the attention layers.
    without: the parts that a layer does not have, see TransformerOptions.
    """

    size: Size
    position: PositionOption
    pre: bool
    activation: str
    dropout: float
    inner_dropout: float
    attention: AttentionOptions
    without: tuple[str, ...] = ()

    def build_attention(self, *, positions: bool, causal: bool = False) -> MultiHead:
        """Build one attention layer.

        positions: whether the layer uses the position scheme.
        causal: whether its self-attention is causal.

        A Score or Position from the caller is copied, so that layers do not share parameters.
        """
        width, heads = self.size.width, self.size.heads
        score = build_layer_score(self.attention.score, width // heads, width // heads, heads)
        position = None
        if positions:
            position = build_model_position(self.position, width, heads, causal=causal)
        check_position("Transformer()", position, score)
        score, position = deepcopy((score, position))
        layer = MultiHead(width, heads, score=score, position=position, dropout=self.inner_dropout)
        if "projections" in self.without:
            for linear in (layer.key, layer.value):  # K = V = X: identity matrices, which are not trained
                nn.init.eye_(linear.weight)
                nn.init.zeros_(linear.bias)
                linear.requires_grad_(False)
        return layer


class TransformerLayer(nn.Module):
    """One layer of a Transformer: self-attention, cross-attention (decoder only) and a feed-forward layer.

    decodes: whether the layer has cross-attention. If True, its self-attention is causal.
    causal: whether the self-attention is causal in a layer without cross-attention.
    """

    def __init__(self, settings: LayerSettings, name: str, decodes: bool = False, causal: bool = False):
        super().__init__()
        size, dropout, width = settings.size, settings.inner_dropout, settings.size.width
        self.pre, self.select = settings.pre, settings.attention.selection
        self.itself = settings.build_attention(positions=True, causal=decodes or causal)
        self.itself.site = f"{name}.self"
        self.itself.role = DECODER_SELF if decodes or causal else ENCODER_SELF
        self.cross = settings.build_attention(positions=False) if decodes else None
        if self.cross is not None:
            self.cross.site, self.cross.role = f"{name}.cross", CROSS_ATTENTION
        feeds = "feed-forward" not in settings.without
        self.feedforward = FeedForward(width, size.inner, settings.activation, dropout) if feeds else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(1 + decodes + feeds))
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
        stream, memory = self.run(ResidualStream(x), mask, start, past, source)
        return stream.total(), memory

    def run(
        self,
        stream: ResidualStream,
        mask: Mask,
        start: int = 0,
        past: Memory | None = None,
        source: Memory | None = None,
    ) -> tuple[ResidualStream, Memory]:
        """Like forward(), but the output of the last sublayer is not yet added to the stream."""
        first, last, select = self.norms[0], self.norms[-1], select_argument(self.select, self.training)
        stream, y = self._before(stream, first)
        change, bias, memory = self.itself.attend_itself(y, past, mask=mask, start=start, **select)
        stream = self._add(stream, change, bias, first)
        if self.cross is not None and source is not None:
            norm = self.norms[1]
            stream, y = self._before(stream, norm)
            # Move the K beams of each source to the query dimension, as in base.attend().
            folded = y.reshape(source.key.shape[0], -1, y.shape[-1])
            beams = len(y) // max(len(folded), 1) or 1
            change, bias = self.cross.attend_memory(folded, source, start=start, beams=beams, **select)
            stream = self._add(stream, change.reshape(y.shape), bias, norm)
        if self.feedforward is None:
            return stream, memory
        stream, y = self._before(stream, last)
        return self._add(stream, *self.feedforward.without_bias(y), last), memory

    def _before(self, stream: ResidualStream, norm: nn.Module) -> tuple[ResidualStream, Tensor]:
        """Return the stream, and the input of the next sublayer."""
        return stream.normalized(norm) if self.pre else (stream, stream.total())

    def _add(
        self, stream: ResidualStream, change: Tensor, bias: Tensor | None, norm: nn.Module
    ) -> ResidualStream:
        """Add the output of a sublayer and its bias to the stream."""
        if is_hooked(self.dropout):
            stream = stream.add(self.dropout(change if bias is None else change + bias.to(change.dtype)))
        else:
            stream = stream.add(change, bias, self.dropout.p if self.dropout.training else 0.0)
        return stream if self.pre else ResidualStream(stream.normalized(norm, wide=True)[1])


def run_layer(layer: Any, stream: ResidualStream, mask: Mask, *rest: Any) -> tuple[ResidualStream, Memory]:
    """Run a TransformerLayer on a residual stream; return the stream after it, and its self-attention cache.

    rest: start, past and source; see TransformerLayer.forward().
    """
    if not is_hooked(layer):
        return layer.run(stream, mask, *rest)
    x, memory = layer(stream.total(), mask, *rest)
    return ResidualStream(x), memory


def _check_options(size: str | Size, norm: str, tie: str, source_size: int, target_size: int) -> Size:
    for kind, name, names in (("norm", norm, NORMS), ("tie", tie, TIES)):
        if name not in names:
            raise UnknownName(kind, name, names)
    if tie == "all" and source_size != target_size:
        raise ArgumentError(
            message(
                "Transformer()",
                f'tie="all" needs equal vocabulary sizes, got {source_size} and {target_size}',
                hint=("train one tokenizer on both sides, or use ", Setting("build_model", "tie", "output")),
            )
        )
    if not isinstance(size, str | Size):
        raise ArgumentError(message("Transformer()", f"size is {size!r}", expected="a name or a Size"))
    return find_size(size) if isinstance(size, str) else size


def find_size(name: str) -> Size:
    """Return the Size of a Transformer by its name: "tiny", "small", "base" or "big"."""
    if name not in SIZES:
        raise UnknownName("size of Transformer", name, SIZES)
    return SIZES[name]
