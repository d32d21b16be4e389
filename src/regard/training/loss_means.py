"""Means of losses over several training steps. Each step is weighted by its number of target tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Means"]


class Means:
    """Means of losses over several training steps, weighted by target tokens, and the speed of these steps.

    state() saves the means, but not the speed. After a run is resumed, speed() uses only the new steps.

    In this example, the first step has 30 target tokens and the loss 2. The second step has 10 target tokens
    and the loss 6. Each step takes one second:

    >>> means = Means()
    >>> means.add(30, 1.0, 2.0, None, {})
    >>> means.add(10, 1.0, 6.0, None, {"guided": 0.5})
    >>> means.own(), means.parts(), means.speed()
    ({'loss': 3.0}, {'guided': 0.5}, 20.0)
    """

    def __init__(self) -> None:
        self.tokens = self.timed = 0
        self.seconds = 0.0
        self._sums: dict[str, dict[str, tuple[float, int]]] = {"own": {}, "parts": {}}

    def add(
        self, tokens: int, seconds: float, loss: float, norm: float | None, parts: Mapping[str, float]
    ) -> None:
        """Add the values of one training step. If the step has no target tokens, only its duration is added.

        tokens: number of target tokens of the step.
        seconds: duration of the step.
        loss: mean loss per target token.
        norm: gradient norm. None if it was not computed.
        parts: other losses by name, such as "guided", also per target token.
        """
        self.seconds += seconds
        if not tokens:
            return
        self.tokens += tokens
        self.timed += tokens
        own = {"loss": loss} if norm is None else {"loss": loss, "norm": norm}
        for which, values in (("own", own), ("parts", parts)):
            for name, value in values.items():
                self._add(which, name, value * tokens, tokens)

    def _add(self, which: str, name: str, total: float, weight: int) -> None:
        before, weighed = self._sums[which].get(name, (0.0, 0))
        self._sums[which][name] = before + total, weighed + weight

    def own(self) -> dict[str, float]:
        """Return the means of "loss" and of "norm" (gradient norm), by name.

        A name is left out if no value was added for it.
        """
        return {name: total / weight for name, (total, weight) in self._sums["own"].items()}

    def parts(self) -> dict[str, float]:
        """Return the means of the losses that add() got as `parts`, by name, e.g. {"guided": 0.5}."""
        return {name: total / weight for name, (total, weight) in self._sums["parts"].items()}

    def speed(self) -> float | None:
        """Return the number of target tokens per second, or None if no step was added in this process."""
        return self.timed / self.seconds if self.seconds > 0 else None

    def joined(self, other: Means) -> Means:
        """Return a new Means object with the steps of this object and of `other`."""
        both = Means()
        both.tokens, both.timed = self.tokens + other.tokens, self.timed + other.timed
        both.seconds = self.seconds + other.seconds
        for each in (self, other):
            for which, sums in each._sums.items():
                for name, (total, weight) in sums.items():
                    both._add(which, name, total, weight)
        return both

    def state(self) -> dict[str, Any]:
        """Return the sums from which the means are computed, as a dict for JSON, to be read by restored()."""
        return {"tokens": self.tokens, **{which: dict(sums) for which, sums in self._sums.items()}}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Means:
        """Create a Means object from the result of state(), with the same means and no speed yet."""
        means = cls()
        means.tokens = int(state["tokens"])
        for which, sums in means._sums.items():
            sums.update({name: (float(total), int(weight)) for name, (total, weight) in state[which].items()})
        return means
