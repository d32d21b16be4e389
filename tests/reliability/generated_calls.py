"""Random attention calls: shapes, masks, biases, scores, scales and dtypes that a backend supports.

A backend that supports one call in 200 would need 200 random calls for each that it runs. So most calls are
drawn from the values that the backend supports. One call in ten is drawn from all values, because a backend
must also refuse the other calls, with an error that gives the reason.

Backends that compile their kernels would compile them for almost every random call: Triton and torch.compile
generate another kernel for another width, dtype, mask or layout, and Triton also if a size is 1 or divisible
by 16. So all calls of these backends are drawn from families. A family fixes what is compiled into the
kernels. The lengths, the start, the temperature, the scale and all values differ from call to call.
"""

from __future__ import annotations

import random
from typing import Any

from tests.agreement.cases import FACTORS, Case, Inputs

__all__ = ["FAMILIES", "SUPPORTED", "Calls"]

SCALES = (0.01, 1.0, 1.0, 1.0, 4.0)
"""The query is multiplied by one of these numbers."""

FREE = 0.1
"""The share of calls that are drawn from all values, whether the backend supports them or not."""

INNER = ["dot", "scaled_dot", "general", "cosine", "location"]
ADDITIVE = ["additive", "concat"]
HALF = ["bfloat16", "float16"]
SINGLE = ["float32", *HALF]
INTERVALS = ["none", "causal", "padding", "causal padding", "window", "causal window", "documents"]

SUPPORTED: dict[str, dict[str, list[Any]]] = {
    "short": {"score": INNER, "mask": INTERVALS[:4], "bias": ["none"], "dtype": SINGLE},
    "masked": {"score": INNER, "mask": INTERVALS[:6], "bias": ["none"], "dtype": SINGLE},
    "sdpa-cudnn": {"score": INNER, "bias": ["none", "tensor", "alibi", "-inf"], "dtype": HALF},
    "sdpa-flash": {"score": INNER, "mask": ["none", "causal"], "bias": ["none"], "dtype": HALF},
    "sdpa-efficient": {"score": INNER, "bias": ["none", "tensor", "alibi", "-inf"], "dtype": SINGLE},
    "sdpa-cpu": {"score": INNER, "bias": ["none", "tensor", "alibi", "-inf"]},
    "fused": {
        "score": ADDITIVE,
        "bias": ["none", "tensor", "learned tensor", "alibi", "t5", "-inf"],
        "dtype": SINGLE,
    },
    "flex": {
        "score": ["dot", "scaled_dot", "general", "cosine"],
        "bias": ["none", "tensor", "learned tensor", "alibi", "t5", "-inf"],
        "dtype": SINGLE,
    },
}
"""The values of factors that a backend supports; a factor that is not listed has all values."""

FAMILIES = {"short": 6, "masked": 6, "fused": 6, "flex": 3}
"""Number of families in a part, for backends that compile kernels."""

FAMILY_LENGTHS = {
    "short": (1, 0, 32, 96),
    "masked": (1, 0, 32, 144),
    "fused": (1, 0, 32, 144),
    "flex": (0, 32, 144),
}
"""The lengths that families are drawn from. flex compiles another kernel if a length is 1."""

WIDEST = {"short": 96, "sdpa-cudnn": 128, "flex": 64}
"""The largest width of query and value of these backends (flex: with gradients of a bias)."""


class Calls:
    """The random calls of one part of a test. The seed and the part determine them."""

    def __init__(self, backend: str, device: str, seed: int, part: int):
        self.backend, self.device = backend, device
        self.draw = random.Random(f"{seed} {backend} {part}")
        self.factors = FACTORS | SUPPORTED.get(backend, {})
        self.families = [self._family(number) for number in range(FAMILIES.get(backend, 0))]

    def next(self) -> Inputs:
        """Return the inputs of the next call."""
        draw = self.draw
        if self.families:
            choice = self._member(draw.choice(self.families))
        else:
            choice = self._any(FACTORS if draw.random() < FREE else self.factors)
        choice["temperature"] = draw.choice((1.0, draw.uniform(0.2, 5.0)))
        inputs = Inputs(Case(**choice), self.device)
        if choice["score"] != "cosine":  # cosine is invariant to scale, and its gradient shrinks with it
            inputs.query = inputs.query * draw.choice(SCALES)
        return inputs

    def _any(self, factors: dict[str, list[Any]]) -> dict[str, Any]:
        """Return a random value for every factor."""
        draw = self.draw
        choice = {name: draw.choice(values) for name, values in factors.items()}
        longest = draw.choice((4, 40, 200))
        key_heads = draw.randint(1, 3)
        choice |= {
            "size": (draw.randint(1, longest), draw.randint(1, longest)),
            "width": 2 * draw.randint(1, 70),
            "heads": (key_heads * draw.randint(1, 3), key_heads),
            "start": draw.choice((0, draw.randint(1, 50))),
        }
        if self.backend in WIDEST:
            choice["width"] = 2 * draw.randint(1, WIDEST[self.backend] // 2 - 2)
        if self.backend == "short":  # needs as many key heads as query heads
            choice["heads"] = (key_heads, key_heads)
        if factors.get("mask") == ["none", "causal"] and choice["mask"] == "causal":
            # These kernels support a causal mask for T = S and start = 0.
            choice |= {"size": (choice["size"][0],) * 2, "start": 0}
        return choice

    def _family(self, number: int) -> dict[str, Any]:
        """Return what is compiled into the kernels.

        size: the lengths T and S, rounded down to a multiple of 16, or 1 for a length that is always 1.
        """
        draw, lengths = self.draw, FAMILY_LENGTHS[self.backend]
        choice = self._any(self.factors)
        choice |= {"size": (draw.choice(lengths), draw.choice(lengths)), "start": draw.choice((0, 2))}
        if self.backend == "flex":  # needs at least 16 channels
            choice |= {"width": draw.choice((16, 36, 60)), "value": draw.choice(("same", "wide"))}
        if (
            number == 0 and self.backend == "fused"
        ):  # one family per part with gradients by the Fourier series
            choice |= {"size": (128, 144), "dtype": "bfloat16"}
        return choice

    def _member(self, family: dict[str, Any]) -> dict[str, Any]:
        """Return a call of this family, with other lengths."""
        draw = self.draw

        def near(length: int) -> int:
            # Odd: whether a stride is a multiple of 16 then depends on the width only.
            return 1 if length == 1 else length + draw.randrange(1 if length else 3, 16, 2)

        queries, keys = map(near, family["size"])
        return family | {"size": (queries, keys), "start": draw.randint(2, 15) if family["start"] else 0}
