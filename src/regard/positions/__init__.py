"""Positions: where things are. Attention itself does not know order; a position scheme tells it.

Each scheme says where it acts:

    embeddings         noise, learned, sinusoidal    added to what enters the model
    queries and keys   rotary                        turns both before they are compared
    scores             relative, T5, ALiBi           added to the scores (attention(bias=scheme))

All count from `start`, so one token decoded at step t gets what it got in the whole sequence.
To add one: write its class, and add its line to POSITIONS at the end.
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
    """Make a position scheme from its name; one that is made already is given back.

    >>> import regard
    >>> regard.build_position("rotary", width=64, heads=4).size
    16
    """
    if isinstance(position, Position):
        return position
    if position not in POSITIONS:
        raise UnknownName("position scheme", position, POSITIONS)
    return POSITIONS[position].build(width, heads, length)
