"""Backend: one way to compute a forward, which can say why it will not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.call import Call, Forward

__all__ = ["Backend"]


def _none(call: Call) -> list[str]:
    return []


@dataclass(frozen=True)
class Backend:
    """reasons(call): why it cannot run this call, empty when it can. unasked(call): why `auto` passes it over
    although it can. run(call): the forward. device: the only one it runs on, if there is one.
    approximations(call): what it computes by an approximation, and how to get the exact result."""

    reasons: Callable[[Call], list[str]]
    run: Callable[[Call], Forward]
    unasked: Callable[[Call], list[str]] = _none
    about: str = ""
    device: str | None = None
    approximations: Callable[[Call], list[str]] = _none
