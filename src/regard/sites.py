"""Sites: named places of attention inside a model, where it can be watched and changed.

Every attention layer passes its name to the call as `site` ("decoder.3.cross"). A scope watches sites, edits
the calls made there, or both; record() is a scope that watches. Nothing is threaded through layers, and
nothing is kept that was not asked for.

The scopes are a plain list under a lock, not a context variable: context variables break graphs under
torch.compile, and thread-locals would miss the threads that run a model's parts.
"""

from __future__ import annotations

import fnmatch
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.call import Call
from regard.errors import ArgumentError, RegardError, RegardWarning, UnknownName, message
from regard.look import Look

__all__ = ["Record", "Scope", "name_sites", "record", "scope"]

Edit = Callable[[Call], Call]
Watch = Callable[[str, Call], None]

_scopes: list[Scope] = []
_lock = threading.Lock()


class Record(dict[str, list[Attended]]):
    """What was seen, by site: a list of Attended, in the order of the calls.

    called: the names of all sites that attention was called at, recorded or not, in the order of their first
    call.

    >>> import regard, torch
    >>> with regard.record() as seen:
    ...     _ = regard.attention(torch.eye(2), torch.eye(2), site="here")
    >>> seen["here"][0].weights.shape
    torch.Size([2, 2])
    """

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[str, None] = {}

    def __missing__(self, site: str) -> list[Attended]:
        raise UnknownName("site", site, self)


@dataclass(eq=False)
class Scope:
    """Watches the sites whose names match `at`, edits the calls made there, or both."""

    look: Look | None = None
    edit: Edit | None = None
    at: str = "*"
    watch: Watch | None = None
    seen: Record = field(default_factory=Record)

    def applied(self, call: Call) -> Call:
        """The call as this scope wants it: edited, and looked at in this scope's way too."""
        if self.edit is not None:
            call = self.edit(call)
        if self.look is None:
            return call
        return replace(call, look=self._look_at(call) | call.look)

    def keep(self, site: str, attended: Attended, call: Call, to_user: Callable[[Tensor], Tensor]) -> None:
        """Keep what this scope asked to see of a call; without gradients unless it asked for those."""
        if self.watch is not None:
            self.watch(site, call)
        if self.look is None:
            return
        found = attended.only(self._look_at(call), call.look).map(to_user)
        found = found if self.look.gradient else found.map(Tensor.detach)
        with _lock:
            self.seen.setdefault(site, []).append(found)

    def _look_at(self, call: Call) -> Look:
        """As much of this scope's look as the site can give."""
        assert self.look is not None
        return self.look.possible(call.select, call.sizes[2])


def scopes_at(site: str) -> list[Scope]:
    """The open scopes that watch or edit this site, the outermost first."""
    if not _scopes:
        return []
    if torch.compiler.is_compiling():
        raise RegardError(
            message(
                "record()",
                f"site '{site}' is inside a compiled region, which can be neither watched nor edited",
                hint="under record(), run the model uncompiled: torch.compiler.set_stance('force_eager')",
            )
        )
    scopes = tuple(_scopes)
    for each in scopes:
        each.seen.called[site] = None
    return [each for each in scopes if fnmatch.fnmatchcase(site, each.at)]


@contextmanager
def scope(
    look: Look | None = None, edit: Edit | None = None, at: str = "*", watch: Watch | None = None
) -> Iterator[Record]:
    """Open a scope: every attention at a matching site is watched and edited until it closes.

    look: what to keep of each call. edit: a function from a Call to the Call that is made instead. at: the
    sites, with * and ? as wildcards. watch: a function that is called after each call, with the name of the
    site and the Call. Unlike record(), it does not warn when nothing was called.
    """
    opened = Scope(look, edit, at, watch)
    with _lock:
        _scopes.append(opened)
    try:
        yield opened.seen
    finally:
        with _lock:
            _scopes.remove(opened)


def record(look: Look | None = None, at: str = "*") -> AbstractContextManager[Record]:
    """Record every attention call made inside a `with`, whatever model makes it; outputs do not change.

    look: what to keep of each call, the weights unless given. at: the sites to record, with * as wildcard.
    Gives a Record, a dict from the name of a site to what was seen there, call by call. If nothing was
    recorded by the end of the `with`, a RegardWarning lists the sites that were called; there is no warning
    when an exception ends it.

    >>> import regard, torch
    >>> layer = regard.MultiHead(width=8, heads=2)
    >>> with regard.record(regard.Look(entropy=True)) as seen:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> seen["multihead"][0].entropy.shape
    torch.Size([1, 2, 5])
    """
    if look is not None and not isinstance(look, Look):
        raise ArgumentError(
            message("record()", f"look is {look!r}", expected="a Look", hint="Look(weights=True)")
        )
    return _recording(Look(weights=True) if look is None else look, at)


@contextmanager
def _recording(look: Look, at: str) -> Iterator[Record]:
    with scope(look, at=at) as seen:
        yield seen
    if not seen:
        # The frames above this one are contextlib's and the `with` of the user.
        warnings.warn(nothing_matched("record()", "recorded", [at], seen.called), RegardWarning, stacklevel=3)


def nothing_matched(call: str, done: str, at: Iterable[str], called: Iterable[str]) -> str:
    """The message for a scope whose patterns matched no site: nothing was `done` there."""
    names = list(called)
    if names:
        problem = f"no site that was called matches {', '.join(map(repr, at))}: nothing was {done} there"
        return message(call, problem, hint=f"sites that were called: {', '.join(names)}")
    problem = f"no attention() call with a site ran inside the scope: nothing was {done}"
    hint = "nn.MultiheadAttention has no site: replace it with MultiHead.from_torch(layer)"
    return message(call, problem, hint=hint)


def name_sites(model: nn.Module) -> list[str]:
    """Give every attention layer of a model the name it has there, and return the names.

    >>> import regard, torch
    >>> model = torch.nn.ModuleDict({"self": regard.MultiHead(8, 2), "cross": regard.MultiHead(8, 2)})
    >>> regard.name_sites(model)
    ['self', 'cross']
    """
    names = []
    for name, module in model.named_modules():
        if name and isinstance(getattr(module, "site", None), str):
            module.site = name
            names.append(name)
    return names
