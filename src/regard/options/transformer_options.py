"""The sizes and options of Transformers, with their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from regard.errors import ArgumentError, UnknownName, message, positive
from regard.options.attention_options import (
    AttentionOptions,
    PositionOption,
    build_layer_score,
    build_model_position,
    check_position,
)
from regard.positions import Position
from regard.positions.embedded import Table
from regard.scores import Score

__all__ = [
    "NORMS",
    "REMOVABLE",
    "SIZES",
    "LayerSettings",
    "Size",
    "TransformerOptions",
    "find_size",
    "layer_settings",
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
        sizes = {"width": self.width, "heads": self.heads, "inner": self.inner}
        positive("Size()", **sizes, layers=self.layers, decoder_layers=self.decoder_depth)
        if self.width % self.heads:
            problem = f"width is {self.width} and heads is {self.heads}"
            raise ArgumentError(message("Size()", problem, expected="width = a multiple of heads"))

    @property
    def decoder_depth(self) -> int:
        """The number of decoder layers: decoder_layers, or layers."""
        return self.layers if self.decoder_layers is None else self.decoder_layers


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


@dataclass(frozen=True)
class LayerSettings:
    """Settings that all layers of a Transformer share.

    size: widths, and number of heads.
    position: the position scheme of the self-attention layers.
    pre: if True, layer normalisation comes before each sublayer. If False, it comes after each sublayer.
    activation: activation of the feed-forward layers: relu, gelu or swiglu.
    dropout: dropout probability of the output of each sublayer.
    inner_dropout: dropout probability of attention weights, and inside the feed-forward layers.
    attention: the score function and the selection of the attention layers.
    without: the parts that a layer does not have, see TransformerOptions.
    embedded: the position scheme that is added to the token embeddings, or None.
    longest: maximum number of positions, or None.
    """

    size: Size
    position: PositionOption
    pre: bool
    activation: str
    dropout: float
    inner_dropout: float
    attention: AttentionOptions
    without: tuple[str, ...] = ()
    embedded: Position | None = None
    longest: int | None = None

    def score_and_position(self, *, positions: bool, causal: bool) -> tuple[Score, Position | None]:
        """Return the score function and the position scheme of one attention layer.

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
        return deepcopy((score, position))


def layer_settings(
    model: type,
    attention: AttentionOptions | Mapping[str, Any],
    size: Size,
    position: PositionOption,
    norm: str,
    activation: str,
    dropouts: tuple[float, float | None],
    longest: int,
) -> LayerSettings:
    """Return the settings of the layers of a Transformer from the options of its class.

    attention: the options of the attention layers, or the keyword arguments that contain them.
    dropouts: the options dropout and inner_dropout.
    longest: number of positions of a table of position embeddings.
    """
    scheme = build_model_position(position, size.width, size.heads, longest)
    embedded = scheme is not None and scheme.acts == "embeddings"
    most = len(scheme.table) if embedded and isinstance(scheme, Table) else None
    if not isinstance(attention, AttentionOptions):
        attention = getattr(model, "options_type", AttentionOptions).checked(model, attention)
    dropout, inner = dropouts
    inner, without = dropout if inner is None else inner, tuple(getattr(attention, "without", ()))
    how = norm == "pre", activation, dropout, inner, attention, without
    return LayerSettings(size, None if embedded else position, *how, scheme if embedded else None, most)


def find_size(size: str | Size, call: str = "Transformer()") -> Size:
    """Return a Size, which can be given by its name: "tiny", "small", "base" or "big".

    call: name of the checked call in an error message.
    """
    if isinstance(size, Size):
        return size
    if not isinstance(size, str):
        raise ArgumentError(message(call, f"size is {size!r}", expected="a name or a Size"))
    if size not in SIZES:
        raise UnknownName("size of Transformer", size, SIZES)
    return SIZES[size]
