"""Twin: the base class of twins."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["Twin", "plain_class"]


class Twin(nn.Module):
    """Base of a twin: a subclass of a plain module that computes the same from the same parameters, faster.

    A twin has no state of its own: inside Twins, the class of a module is replaced by its twin, and the
    attributes stay. Where a call does not suit the twin, its method calls that of the plain class. What to
    check at each call: the mode, gradients, hooks (fast/hooks.py), record() and intervene() (scopes_at()),
    torch.func (in_transform()) and torch.compile.

    The class of a module can change while a method runs, if another thread leaves Twins. So methods of twins
    call functions, and `Plain.method(self, ...)` instead of super().
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy a module as its plain class, also inside Twins."""
        parts: Any = super().__reduce_ex__(protocol)
        make, (_, *arguments), *rest = parts
        return make, (plain_class(self), *arguments), *rest

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """Why the twin cannot replace this module; an empty list if it can."""
        return []


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, or the plain class if it is a twin now.

    >>> plain_class(nn.Linear(1, 1)).__name__
    'Linear'
    """
    kind = type(module)
    return kind.__mro__[1] if issubclass(kind, Twin) else kind
