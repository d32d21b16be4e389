"""explain(): which backend attention() would use, and why it would not use the others.

It also names the looking pass: the function that computes the fields requested by `look`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.attention import attention
from regard.backends import BACKENDS, choose_backend
from regard.call import Call
from regard.checking import check
from regard.dimensions import one_row
from regard.errors import UnknownKeyword, answer_torch_keywords
from regard.look import Look
from regard.looking import PASSES, choose_pass
from regard.memory import Memory

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, repr=False)
class Explanation:
    """The result of explain().

    backend: name of the backend that attention() would use.
    looking: name of the looking pass, which computes the fields requested by `look`; None without `look`.
    refused: for each backend that cannot run the call, or that "auto" does not select, a list of reasons.

    >>> import regard, torch
    >>> explanation = regard.explain(torch.ones(1, 4), torch.ones(3, 4), select=regard.Best())
    >>> explanation.backend, explanation.refused["blocked"]
    ('reference', ['computes Soft and Sparse only, block by block, not Best'])
    """

    backend: str
    looking: str | None
    refused: dict[str, list[str]]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [f"backend: {self.backend} ({BACKENDS[self.backend].about})"]
        width = max(map(len, BACKENDS))
        for name in BACKENDS:
            reasons = "; ".join(self.refused.get(name, []))
            mark = "->" if name == self.backend else "  "
            state = reasons or ("selected" if name == self.backend else "could run")
            lines.append(f"{mark} {name.ljust(width)}  {state}")
        if self.looking is not None:
            lines.append(f"looking: {self.looking} ({PASSES[self.looking].about})")
        return "\n".join(lines)


@answer_torch_keywords
def explain(query: Tensor, key: Tensor | Memory, value: Tensor | None = None, **options: Any) -> Explanation:
    """Return which backend attention() would use for these arguments, and why it would not use the others.

    explain() takes the same arguments as attention(), but computes no output. Print the result to read it.

    >>> import regard, torch
    >>> x = torch.ones(1, 3, 4)
    >>> print(regard.explain(x, x, score=regard.Additive(4, 4)))
    backend: blocked (plain PyTorch, block by block; memory linear in length)
       short           computes inner products, but this score is additive; ...
    -> blocked         selected
       reference       could run
    """
    name = options.pop("backend", "auto")
    options.pop("site", None), options.pop("role", None)
    if isinstance(query, Tensor) and query.dim() == 1:
        query = query[None]
        options |= {name: one_row(options[name]) for name in ("mask", "bias") if name in options}
    call = _call(query, key, value, **options)
    chosen = choose_backend(call, name)
    reasons = {
        each: backend.reasons(call) or backend.not_requested(call) for each, backend in BACKENDS.items()
    }
    looking = choose_pass(call, call.look) if isinstance(call.look, Look) and call.look.requested else None
    refused = {each: why for each, why in reasons.items() if why}
    return Explanation(chosen, looking, refused)


def _call(query: Tensor, key: Tensor | Memory, value: Tensor | None, **options: Any) -> Call:
    defaults = inspect.signature(attention).parameters
    for name in options:
        if name not in defaults:
            raise UnknownKeyword("argument of explain()", name, defaults)
    values = {name: each.default for name, each in defaults.items()} | options
    names = ("score", "mask", "bias", "softcap", "select", "start", "dropout", "look")
    return check(query, key, value, **{name: values[name] for name in names})
