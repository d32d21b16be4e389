"""Position schemes. Without a position scheme, attention ignores the order of the tokens.

The attribute `acts` of a scheme says what it changes:

    embeddings         noise, learned, sinusoidal    added to the embeddings
    queries and keys   rotary                        rotates both before they are compared
    scores             relative, T5, ALiBi           added to the scores (attention(bias=scheme))

All schemes take the argument `start`, the position of the first token. So decoding step by step gives the
same result as running over the whole sequence. To add a scheme, write its class and add a line to POSITIONS
below.
"""

from __future__ import annotations

from regard.errors import UnknownName
from regard.positions.biases import ALiBi, Bias, Relative, T5Bias
from regard.positions.embedded import Learned, Noise, Sinusoidal
from regard.positions.position import Position
from regard.positions.rotary import Rotary

__all__ = [
    "POSITIONS",
    "ALiBi",
    "Bias",
    "Learned",
    "Noise",
    "Position",
    "Relative",
    "Rotary",
    "Sinusoidal",
    "T5Bias",
    "build_position",
]


POSITIONS: dict[str, type[Position]] = {
    "noise": Noise,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rotary": Rotary,
    "relative": Relative,
    "t5": T5Bias,
    "alibi": ALiBi,
}


def build_position(position: str | Position, width: int, heads: int, length: int = 1024) -> Position:
    """Create a position scheme from its name.

    position: a key of POSITIONS, such as "rotary", or a Position, which is returned unchanged.
    width, heads: width of the model and number of its attention heads.
    length: maximum number of positions, for "learned" and "noise". The other schemes have no maximum.

    >>> import regard
    >>> regard.build_position("rotary", width=64, heads=4).size  # width of a head, 64 / 4
    16
    """
    if isinstance(position, Position):
        return position
    if position not in POSITIONS:
        raise UnknownName("position scheme", position, POSITIONS)
    return POSITIONS[position].build(width, heads, length)
