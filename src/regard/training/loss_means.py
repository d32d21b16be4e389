"""Means of losses over several steps, weighted by target tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Means"]


class Means:
    """Means of losses over several steps, weighted by target tokens, and the speed of these steps.

    state() does not contain the speed, so after a resume, only the steps of the new process are measured.

    In the example, 30 tokens have the loss 2, and 10 tokens have the loss 6. Each step takes one second.

    >>> means = Means()
    >>> means.add(30, 1.0, 2.0, None, {})
    >>> means.add(10, 1.0, 6.0, None, {"guided": 0.5})
    >>> means.own(), means.parts(), means.speed()
    ({'loss': 3.0}, {'guided': 0.5}, 20.0)
    """

    def __init__(self) -> None:
        self.tokens = self.timed = 0
        self.seconds = 0.0
        self._own: dict[str, tuple[float, int]] = {}
        self._parts: dict[str, tuple[float, int]] = {}

    def add(
        self, tokens: int, seconds: float, loss: float, norm: float | None, parts: Mapping[str, float]
    ) -> None:
        """Add a step. If it has no target tokens, only its duration is added.

        loss: mean loss of the step.
        norm: gradient norm.
        parts: other losses by name.
        """
        self.seconds += seconds
        if not tokens:
            return
        self.tokens += tokens
        self.timed += tokens
        total, weight = self._own.get("loss", (0.0, 0))
        self._own["loss"] = total + loss * tokens, weight + tokens
        if norm is not None:
            total, weight = self._own.get("norm", (0.0, 0))
            self._own["norm"] = total + norm * tokens, weight + tokens
        for name, value in parts.items():
            total, weight = self._parts.get(name, (0.0, 0))
            self._parts[name] = total + value * tokens, weight + tokens

    def own(self) -> dict[str, float]:
        """The means of "loss" and of "norm" (gradient norm). A value that was never added is left out."""
        return {name: total / weight for name, (total, weight) in self._own.items()}

    def parts(self) -> dict[str, float]:
        """The means of the other losses, by name."""
        return {name: total / weight for name, (total, weight) in self._parts.items()}

    def speed(self) -> float | None:
        """Target tokens per second; None before any time has passed."""
        return self.timed / self.seconds if self.seconds > 0 else None

    def joined(self, other: Means) -> Means:
        """Return the means over the steps of this and of another Means object."""
        both = Means()
        both.tokens, both.timed = self.tokens + other.tokens, self.timed + other.timed
        both.seconds = self.seconds + other.seconds
        for each in (self, other):
            for into, sums in ((both._own, each._own), (both._parts, each._parts)):
                for name, (total, weight) in sums.items():
                    before, weighed = into.get(name, (0.0, 0))
                    into[name] = before + total, weighed + weight
        return both

    def state(self) -> dict[str, Any]:
        """The sums, without the speed, as values that JSON can store; restored() reads them."""
        return {"tokens": self.tokens, "own": dict(self._own), "parts": dict(self._parts)}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Means:
        """Return a Means object from the result of state()."""
        means = cls()
        means.tokens = int(state["tokens"])
        means._own, means._parts = (
            {name: (float(total), int(weight)) for name, (total, weight) in state[which].items()}
            for which in ("own", "parts")
        )
        return means
