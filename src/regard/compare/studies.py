"""The studies of `regard compare`. To add a study: write its file, and add one line to STUDIES."""

from __future__ import annotations

from regard.compare.gradient_flow import GRADIENT
from regard.compare.hard_study import HARD
from regard.compare.layer_costs import COST
from regard.compare.length_study import LENGTH
from regard.compare.part_study import PARTS
from regard.compare.position_study import POSITIONS
from regard.compare.score_study import SCORES
from regard.compare.softmax_study import SOFTMAX
from regard.compare.study import Study

__all__ = ["QUICK_STUDIES", "STUDIES"]

STUDIES: dict[str, Study] = {
    "length": LENGTH,
    "gradient": GRADIENT,
    "cost": COST,
    "scores": SCORES,
    "softmax": SOFTMAX,
    "hard": HARD,
    "positions": POSITIONS,
    "parts": PARTS,
}

QUICK_STUDIES = ("length", "gradient", "cost")
"""The studies of --quick."""
