"""Sites: named attention layers of a model, which can be recorded and edited.

Every attention layer passes its name to the call as `site` ("decoder.3.cross"). A scope watches sites, edits
the calls made there, or both; record() is a scope that watches. No argument is passed through the layers, and
only what a scope asks for is kept.

A scope applies to the thread that opened it. The scopes of a thread are an attribute of a threading.local,
because torch.compile guards on it: a compiled region raises in a thread with an open scope and runs in the
others. torch.compile cannot trace context variables, and does not guard on a threading.local with a default.
"""

from __future__ import annotations

import fnmatch
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.call import Call
from regard.errors import ArgumentError, RegardError, RegardWarning, UnknownName, message
from regard.look import Look

__all__ = ["Record", "Scope", "inherit_scopes", "name_sites", "record", "scope"]

Edit = Callable[[Call], Call]
Watch = Callable[[str, Call], None]

P = ParamSpec("P")
R = TypeVar("R")

_thread = threading.local()
"""`scopes`: a tuple, the scopes of this thread. The attribute is missing where none is open."""

_context: ContextVar[tuple[Scope, ...]] = ContextVar("regard.scopes", default=())
"""The same for autograd, whose threads get the context of the thread that called backward()."""

_open: tuple[Scope, ...] = ()
"""The open scopes of all threads in the order in which they were opened."""

# Flags for the fast path: torch.compile guards on the length of a tuple, and would recompile for each length.
_any_open = _any_shared = False
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
    all_threads: bool = False

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


def open_scopes() -> list[Scope]:
    """The scopes that apply to this thread, outermost first."""
    own = _own_scopes()
    if not own and not _any_shared:
        return []
    return [each for each in _open if each.all_threads or each in own]


def scopes_at(site: str) -> list[Scope]:
    """The open scopes of this thread that watch or edit this site, outermost first."""
    scopes = open_scopes() if _any_open else []
    if not scopes:
        return []
    if torch.compiler.is_compiling():
        raise RegardError(
            message(
                "record()",
                f"site '{site}' is inside a compiled region, which can be neither watched nor edited",
                hint="under record(), run the model uncompiled: torch.compiler.set_stance('force_eager')",
            )
        )
    for each in scopes:
        each.seen.called[site] = None
    return [each for each in scopes if fnmatch.fnmatchcase(site, each.at)]


def inherit_scopes(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that, in any thread, it runs under the scopes that are open here and now.

    For worker threads that serve one call. The order in which they append to a Record is not defined. A scope
    that has been closed by the time the function runs no longer applies.

    >>> import regard, torch
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> layer, batches = regard.MultiHead(width=8, heads=2), torch.randn(3, 1, 5, 8)
    >>> with ThreadPoolExecutor() as executor, regard.record() as seen:
    ...     outputs = list(executor.map(inherit_scopes(layer), batches))
    >>> len(seen["multihead"])
    3
    """
    scopes = _own_scopes()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before = _scopes_of_thread()
        _set_own_scopes(scopes)
        try:
            return function(*args, **kwargs)
        finally:
            _set_own_scopes(before)

    return run


def _own_scopes() -> tuple[Scope, ...]:
    """The scopes of this thread; in a backward pass also those of the thread that called backward().

    Activation checkpointing runs the forward pass again there, on CUDA in a thread of autograd.
    """
    own = _scopes_of_thread()
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
        return own
    if not torch._C._is_key_in_tls("context"):
        return own
    context: Context = torch._C._get_obj_in_tls("context")
    return (*own, *context.get(_context, ()))


def _scopes_of_thread() -> tuple[Scope, ...]:
    return getattr(_thread, "scopes", ())


def _set_own_scopes(scopes: tuple[Scope, ...]) -> None:
    if scopes:
        _thread.scopes = scopes
    elif hasattr(_thread, "scopes"):
        del _thread.scopes
    _context.set(scopes)


def _set_open(scopes: tuple[Scope, ...]) -> None:
    """Replace the open scopes of the process; the caller holds the lock."""
    global _open, _any_open, _any_shared
    _open, _any_open = scopes, bool(scopes)
    _any_shared = any(each.all_threads for each in scopes)


@contextmanager
def scope(
    look: Look | None = None,
    edit: Edit | None = None,
    at: str = "*",
    watch: Watch | None = None,
    *,
    all_threads: bool = False,
) -> Iterator[Record]:
    """Open a scope: attention at matching sites is watched and edited until it closes.

    look: what to keep of each call. edit: a function from a Call to the Call that is made instead. at: the
    sites, with * and ? as wildcards. watch: a function that is called after each call, with the name of the
    site and the Call. all_threads: apply to every thread of the process instead of this thread alone. Unlike
    record(), it does not warn when nothing was called.
    """
    opened = Scope(look, edit, at, watch, all_threads=all_threads)
    with _lock:
        _set_open((*_open, opened))
    if not all_threads:
        _set_own_scopes((*_scopes_of_thread(), opened))
    try:
        yield opened.seen
    finally:
        with _lock:
            _set_open(tuple(each for each in _open if each is not opened))
        _set_own_scopes(tuple(each for each in _scopes_of_thread() if each is not opened))


def record(
    look: Look | None = None, at: str = "*", *, all_threads: bool = False
) -> AbstractContextManager[Record]:
    """Record the attention calls made inside a `with`, whatever model makes them; outputs do not change.

    look: what to keep of each call, the weights unless given. at: the sites to record, with * as wildcard.
    all_threads: record the calls of every thread of the process. By default only those of the thread that
    runs the `with` are recorded, and those of the functions it gives to other threads by
    regard.sites.inherit_scopes. Returns a Record, a dict from the name of a site to what was seen there, call
    by call. If nothing was recorded by the end of the `with`, a RegardWarning lists the sites that were
    called; there is no warning when an exception ends it.

    >>> import regard, torch
    >>> layer = regard.MultiHead(width=8, heads=2)
    >>> with regard.record(regard.Look(entropy=True)) as seen:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> seen["multihead"][0].entropy.shape
    torch.Size([1, 2, 5])
    """
    if look is not None and not isinstance(look, Look):
        raise _not_a_look(look)
    return _recording(Look(weights=True) if look is None else look, at, all_threads)


def _not_a_look(look: object) -> ArgumentError:
    """The error for the first argument of record(), with the hint for what was probably meant."""
    problem, hint = f"look is a {type(look).__name__}", "record(Look(weights=True))"
    if isinstance(look, nn.Module):
        hint = "record() takes no model; it records every call inside it: with record() as seen: model(...)"
    elif isinstance(look, str):
        problem, hint = f"look is {look!r}", f"to record certain sites: record(at={look!r})"
    return ArgumentError(message("record()", problem, expected="a Look", hint=hint))


@contextmanager
def _recording(look: Look, at: str, all_threads: bool) -> Iterator[Record]:
    with scope(look, at=at, all_threads=all_threads) as seen:
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
