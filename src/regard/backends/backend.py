"""Backend: one implementation of attention, with a function that says why it cannot run a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.call import Call, Forward

__all__ = ["Backend"]


def _none(call: Call) -> list[str]:
    return []


def _no(call: Call) -> bool:
    return False


@dataclass(frozen=True)
class Backend:
    """One implementation of attention.

    reasons(call): why the backend cannot run this call, as a list of texts; empty if it can.
    run(call): compute the forward pass.
    not_requested(call): why "auto" skips the backend although it can run the call; empty if "auto" may select
        it.
    about: a short description.
    device: the only device type that the backend supports; None if it supports all types.
    skips_hidden(call): whether keys and values that the mask hides from all queries have no effect even if
        they are NaN, so that they need not be set to 0 before.
    """

    reasons: Callable[[Call], list[str]]
    run: Callable[[Call], Forward]
    not_requested: Callable[[Call], list[str]] = _none
    about: str = ""
    device: str | None = None
    skips_hidden: Callable[[Call], bool] = _no
