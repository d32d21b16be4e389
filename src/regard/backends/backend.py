"""Backend: one implementation of the forward pass, and the reasons why it cannot run a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.call import Call, Forward

__all__ = ["Backend"]


def _none(call: Call) -> list[str]:
    return []


@dataclass(frozen=True)
class Backend:
    """One implementation of the forward pass.

    reasons(call): why it cannot run this call; empty if it can.
    run(call): compute the forward pass.
    not_requested(call): why "auto" does not select it although it can run the call.
    about: a short description.
    device: the only device type that it supports; None for all.
    approximations(call): what it approximates, and how to get the exact result.
    """

    reasons: Callable[[Call], list[str]]
    run: Callable[[Call], Forward]
    not_requested: Callable[[Call], list[str]] = _none
    about: str = ""
    device: str | None = None
    approximations: Callable[[Call], list[str]] = _none
