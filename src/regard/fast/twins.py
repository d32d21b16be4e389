"""Twins: the faster classes of the modules of a model, used inside a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn

from regard.fast import enabled

__all__ = ["TWINS", "Twin", "Twins"]


class Twin(nn.Module):
    """Base of a twin: a subclass of a plain module that computes the same from the same parameters, faster.

    A twin has no state of its own: inside Twins, the class of a module is replaced by its twin, and the
    attributes stay. Where a call does not suit the twin, such as inside record(), its methods call super().
    """

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """Why the twin cannot replace this module; an empty list if it can."""
        return []


TWINS: dict[type[nn.Module], type[nn.Module]] = {}
"""The twin of each plain class. Subclasses by users have no twin, because they may change a method."""


class Twins:
    """Use the twins of a model inside the `with` block. Outside, the model has its plain classes.

    model: the model. Modules that replace others later are used as they are.

    chosen: the modules with a twin, and this twin.
    reasons: the names of the modules whose class has a twin that does not apply, and why.

    >>> from torch import nn
    >>> with Twins(nn.Linear(2, 2)) as twins:  # has no twin
    ...     twins.chosen
    []
    """

    def __init__(self, model: nn.Module):
        self.chosen: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = []
        self.reasons: dict[str, list[str]] = {}
        for name, module in model.named_modules():
            plain = type(module)
            twin: Any = TWINS.get(plain)
            if twin is None:
                continue
            why = twin.reasons(module) if enabled() else ["REGARD_FAST=0 is set"]
            if why:
                self.reasons[name] = why
            else:
                self.chosen.append((module, plain, twin))

    def __enter__(self) -> Twins:
        for module, _, twin in self.chosen:
            module.__class__ = twin
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, plain, _ in self.chosen:
            module.__class__ = plain
