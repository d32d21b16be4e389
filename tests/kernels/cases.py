"""Small cases for the interpreter: every pair of values of two factors occurs (pairwise testing)."""

from __future__ import annotations

from torch import Tensor

import regard
from tests.agreement.cases import FACTORS, Case, covering

__all__ = ["SMALL", "Unprojected"]


class Unprojected(regard.Score):
    """Additive score without projections of query and key."""

    combine = "additive"

    def __init__(self, vector: Tensor):
        self.vector = vector

    def mixing_vector(self) -> Tensor:
        return self.vector


SMALL: list[Case] = covering(
    {
        **FACTORS,
        "score": ["additive", "concat"],
        "mask": [
            "none",
            "causal",
            "padding",
            "causal padding",
            "window",
            "causal window",
            "documents",
            "table",
        ],
        "bias": ["none", "learned tensor", "t5", "-inf"],
        "size": [(1, 19), (5, 35), (18, 5)],
        "width": [4, 10],
        "value": ["narrow", "wide"],
        "heads": [(1, 1), (2, 2), (2, 1)],
        "dtype": ["float32", "bfloat16", "float16"],
    }
)
