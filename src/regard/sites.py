"""Sites: named attention layers of a model, which can be recorded and edited.

Every attention layer passes its name, such as "decoder.3.cross", to attention() as `site`. A scope is a
context in which the calls at some sites are recorded or edited. record() and intervene() open a scope. The
model needs no extra argument. Only the values that a scope requests are stored.

By default, a scope applies to the thread that opened it. The scopes of a thread are stored in an attribute of
a threading.local. torch.compile guards on this attribute: compiled code raises an error in a thread with an
open scope, and runs in other threads. A context variable would not work, because torch.compile cannot trace
context variables. A default value of the attribute, in a subclass of threading.local, would not work either:
torch.compile does not guard on it.

A scope that an asyncio task has opened applies to this task and to the tasks that it creates inside the
scope, not to other tasks of the thread. A context variable, which new tasks inherit, tells them apart.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.call import Call
from regard.errors import ArgumentError, RegardError, RegardWarning, UnknownName, check_keywords, message
from regard.look import Look
from regard.roles import KINDS, BySite, Role, matches

__all__ = [
    "Record",
    "Scope",
    "declared_sites",
    "inherit_scopes",
    "name_sites",
    "open_scope",
    "record",
    "scope",
]

Edit = Callable[[Call], Call]
Watch = Callable[[str, Call], None]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Scope")

_thread = threading.local()
"""Thread-local storage. Its attribute `scopes` is a tuple of the open scopes of the current thread. If no
scope is open, the attribute does not exist."""

_context: ContextVar[tuple[Scope, ...]] = ContextVar("regard.scopes", default=())
"""The scopes that were opened in this context: in this thread, or in this asyncio task. The threads of
autograd can read the context variables of the thread that called backward()."""

UNNAMED = ("attention", "attention_layer", "multihead", "pool", "read")
"""The sites of layers and calls that have no name of their own."""

_open: tuple[Scope, ...] = ()
"""The open scopes of all threads in the order in which they were opened."""

# _any_open: whether any scope is open. _any_shared: whether any open scope applies to all threads. Code that
#     may be compiled reads only these two flags, not _open, because torch.compile would recompile for each
#     length of this tuple.
_any_open = _any_shared = False
_lock = threading.Lock()


class Record(BySite[list[Attended]]):
    """The result of record(): for each site name, a list of Attended, one per call, in order.

    called: the names of all sites that were called, recorded or not, in the order of their first call.
    roles: the roles of the called sites that declare a role.
    layers: for each recorded site in UNNAMED, the ids of the modules whose calls were recorded.
    unnamable: the sites in `layers` with a module that has no attribute `site`: name_sites() cannot name it.
    elsewhere: whether other threads or asyncio tasks, to which the scope does not apply, called attention().

    >>> import regard, torch
    >>> with regard.record() as seen:
    ...     _ = regard.attention(torch.eye(2), torch.eye(2), site="here")
    >>> seen["here"][0].weights.shape
    torch.Size([2, 2])
    """

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[str, None] = {}
        self.layers: dict[str, set[int]] = {}
        self.unnamable: set[str] = set()
        self.elsewhere = False

    def __missing__(self, site: str) -> list[Attended]:
        raise UnknownName("site", site, self)


@dataclass(eq=False)
class Scope:
    """The effect of one `with` statement of record() or intervene() on the attention() calls inside it.

    look: the fields to record of each call. None records nothing.
    edit: a function that gets the Call and returns a changed Call, which is run instead. None: no change.
    at: a pattern for the names of sites, with * and ? as wildcards, or a role such as "cross".
    watch: a function that is called after each call with the name of the site and the Call. None: no
        function.
    seen: the recorded results.
    all_threads: whether the scope applies to every thread, not only to the thread that opened it.
    output: whether to record the output of each call too. It can be much larger than the other fields.
    in_task: whether an asyncio task has opened the scope.
    """

    look: Look | None = None
    edit: Edit | None = None
    at: str = "*"
    watch: Watch | None = None
    seen: Record = field(default_factory=Record)
    all_threads: bool = False
    output: bool = False
    in_task: bool = field(default=False, init=False)

    def applied(self, call: Call) -> Call:
        """Apply this scope to a Call, and return the changed Call, which attention() then runs.

        If the scope has a function `edit`, it may change anything. Then the fields that the scope records are
        added to the field `look` of the Call, so that attention() computes them.
        """
        if self.edit is not None:
            call = self.edit(call)
        if self.look is None:
            return call
        return replace(call, look=self._look_at(call) | call.look)

    def keep(self, site: str, attended: Attended, call: Call, to_user: Callable[[Tensor], Tensor]) -> None:
        """Record the result of one attention() call in `seen`, and call the `watch` function of this scope.

        Only the fields that this scope requests are recorded. They are detached, unless look.gradient is
        True. `output` is recorded as None if the scope does not request it, so that its memory can be freed.

        to_user: a function that removes the head and batch dimensions that the query of the user did not
            have.
        """
        if self.watch is not None:
            self.watch(site, call)
        if self.look is None:
            return
        recorded = attended if self.output else attended.but(output=None)
        recorded = recorded.only(self._look_at(call), call.look).map(to_user)
        recorded = recorded if self.look.gradient else recorded.map(Tensor.detach)
        with _lock:
            self.seen.setdefault(site, []).append(recorded)
        if site in UNNAMED and (layer := _calling_layer()) is not None:
            self.seen.layers.setdefault(site, set()).add(id(layer))
            if not isinstance(getattr(layer, "site", None), str):
                self.seen.unnamable.add(site)

    def _look_at(self, call: Call) -> Look:
        """Return the look of this scope, without the fields and query rows that this call cannot provide."""
        assert self.look is not None
        return self.look.possible(call.select, call.sizes[2])


def open_scopes() -> list[Scope]:
    """Return the scopes of record() and intervene() that apply to this thread, outermost first."""
    own = _own_scopes()
    if not own and not _any_shared:
        if not torch.compiler.is_compiling():
            for each in _open:  # for the warning that nothing was recorded
                each.seen.elsewhere = True
        return []
    return [each for each in _open if each.all_threads or each in own]


def watched() -> bool:
    """Whether a scope of record() or intervene() is open and applies to this thread."""
    return _any_open and bool(open_scopes())


def editing() -> bool:
    """Whether a scope of intervene() is open and applies to this thread."""
    return _any_open and any(each.edit is not None for each in open_scopes())


def scopes_at(site: str, role: Role | None = None) -> list[Scope]:
    """Return the open scopes of this thread whose pattern matches this site or its role, outermost first.

    Also add the site to Record.called of each open scope. Raises RegardError if a scope is open and the call
    is in code that torch.compile compiles.
    """
    scopes = open_scopes() if _any_open else []
    if not scopes:
        return []
    if torch.compiler.is_compiling():
        raise RegardError(
            message(
                "record()",
                f"site '{site}' is inside a compiled region, where calls can be neither recorded nor edited",
                hint="under record(), run the model uncompiled: torch.compiler.set_stance('force_eager')",
            )
        )
    for each in scopes:
        each.seen.called[site] = None
        if role is not None:
            each.seen.roles[site] = role
    return [each for each in scopes if matches(each.at, site, role)]


def inherit_scopes(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function, so that the open scopes of this thread apply to it even if another thread calls it.

    Use it inside record() or intervene() to pass a function to other threads. The order in which threads
    append to a Record is not defined. A scope that is closed before the function runs no longer applies.

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
        before = _scopes_of_thread(), _context.get()
        _set_own_scopes(scopes, scopes)
        try:
            return function(*args, **kwargs)
        finally:
            _set_own_scopes(*before)

    return run


def _own_scopes() -> tuple[Scope, ...]:
    """Return the scopes of this thread, without those of other asyncio tasks.

    In a backward pass, add the scopes of the thread that called it.

    Activation checkpointing runs the forward pass again inside the backward pass. On CUDA, this happens in a
    thread of autograd, which has no open scopes.
    """
    own = _scopes_of_thread()
    if torch.compiler.is_compiling():
        return own
    if any(each.in_task for each in own):
        opened = _context.get()
        own = tuple(each for each in own if not each.in_task or each in opened)
    if torch._C._current_graph_task_id() == -1:
        return own
    if not torch._C._is_key_in_tls("context"):
        return own
    context: Context = torch._C._get_obj_in_tls("context")
    return (*own, *context.get(_context, ()))


def _scopes_of_thread() -> tuple[Scope, ...]:
    return getattr(_thread, "scopes", ())


def _set_own_scopes(scopes: tuple[Scope, ...], in_context: tuple[Scope, ...]) -> None:
    """Set the scopes of this thread, and those of this context."""
    if scopes:
        _thread.scopes = scopes
    elif hasattr(_thread, "scopes"):
        del _thread.scopes
    _context.set(in_context)


def _in_task() -> bool:
    """Whether an asyncio task is running in this thread."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.current_task() is not None
    except RuntimeError:  # no event loop is running
        return False


def _set_open(scopes: tuple[Scope, ...]) -> None:
    """Set the global _open to `scopes`, and update _any_open and _any_shared. The caller must hold _lock."""
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
    """Open a scope for a `with` statement: record or edit the attention() calls at matching sites.

    look: what to record of each call. Default: nothing.
    edit: a function that gets the Call and returns a changed Call, which is run instead.
    at: pattern for the names of sites, with * and ? as wildcards, or a role such as "cross".
    watch: a function that is called after each call with the name of the site and the Call.
    all_threads: whether the scope applies to every thread of the process, not only to this thread.

    Yields a Record. Unlike record(), this function does not warn if nothing was called.
    """
    with open_scope(Scope(look, edit, at, watch, all_threads=all_threads)) as opened:
        yield opened.seen


@contextmanager
def open_scope(opened: S) -> Iterator[S]:
    """Apply a Scope to the attention() calls inside a `with` statement, and yield this Scope.

    Use it instead of scope() for a subclass of Scope that records other values.
    """
    with _lock:
        _set_open((*_open, opened))
    if not opened.all_threads:
        opened.in_task = _in_task()
        _set_own_scopes((*_scopes_of_thread(), opened), (*_context.get(), opened))
    try:
        yield opened
    finally:
        with _lock:
            _set_open(tuple(each for each in _open if each is not opened))
        every = _scopes_of_thread(), _context.get()
        _set_own_scopes(*(tuple(each for each in some if each is not opened) for some in every))


@partial(check_keywords, hint="to choose what is recorded, pass a Look: record(Look(weights=True, top=3))")
def record(
    look: Look | None = None, at: str = "*", *, all_threads: bool = False, output: bool = False
) -> AbstractContextManager[Record]:
    """Record the attention() calls of any model inside a `with` statement, without changing the outputs.

    look: what to record of each call. Default: the weights.
    at: pattern for the names of the sites to record, with * and ? as wildcards, or a role: "self", "cross",
        "memory", "image" or "pool".
    all_threads: whether to record the calls of every thread of the process. By default, only the calls of
        this thread are recorded, and the calls of functions that it passes to other threads with
        regard.sites.inherit_scopes().
    output: whether to record the output of each call too. By default, the field `output` is None in the
        Record: the outputs of all layers can need more memory than everything else that is recorded.

    Yields a Record, a dict with a list of Attended for each site name, one per call. If nothing was recorded
    at the end of the `with` statement, a RegardWarning lists the sites that were called. Layers without a
    name of their own share a site, such as "multihead". If several of them were recorded, their calls are in
    one list, and a RegardWarning says so; name_sites() names them. A layer that is called twice is one site
    with two calls. There is no warning if an exception ends the `with` statement.

    >>> import regard, torch
    >>> layer = regard.MultiHead(width=8, heads=2)
    >>> with regard.record(regard.Look(entropy=True)) as seen:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> seen["multihead"][0].entropy.shape
    torch.Size([1, 2, 5])
    """
    if look is not None and not isinstance(look, Look):
        raise _not_a_look(look)
    if not isinstance(at, str):
        expected = f"a pattern for the names of sites, such as '*cross', or a role: {', '.join(KINDS)}"
        raise ArgumentError(message("record()", f"at is {at!r}", expected=expected))
    return _recording(Look(weights=True) if look is None else look, at, all_threads, output)


def _not_a_look(look: object) -> ArgumentError:
    """Return the error if the first argument of record() is not a Look, but for example a model or a name."""
    problem, hint = f"look is a {type(look).__name__}", "pass a Look: record(Look(weights=True))"
    if isinstance(look, nn.Module):
        hint = "run the model inside the `with` statement: with record() as seen: model(...)"
    elif isinstance(look, str):
        problem, hint = f"look is {look!r}", f"to select sites by name: record(at={look!r})"
    return ArgumentError(message("record()", problem, expected="a Look", hint=hint))


@contextmanager
def _recording(look: Look, at: str, all_threads: bool, output: bool) -> Iterator[Record]:
    with open_scope(Scope(look, at=at, all_threads=all_threads, output=output)) as opened:
        yield opened.seen
    seen = opened.seen
    if not seen:
        # stacklevel 3: skip this frame and the frame of contextlib, to point at the user's `with` statement.
        text = nothing_matched("record()", "recorded", [at], seen)
        warnings.warn(text, RegardWarning, stacklevel=3)
    for site, layers in seen.layers.items():
        if len(layers) > 1:
            problem = f"{len(layers)} layers share the site '{site}', so their calls are in one list"
            hint = "call regard.name_sites(model) first, or pass a name: attention(..., site='decoder.cross')"
            if site in seen.unnamable:
                hint = "pass a name to each call of attention(): attention(..., site='decoder.cross')"
            warnings.warn(message("record()", problem, hint=hint), RegardWarning, stacklevel=3)


def _calling_layer() -> nn.Module | None:
    """Return the module whose method called attention(); None if no method of a module did."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return owner
        frame = frame.f_back
    return None


def nothing_matched(call: str, done: str, at: Iterable[str], seen: Record) -> str:
    """Return the message for the case that no attention() call matched one of the patterns `at`.

    call: the function that the user called: "record()" or "intervene()".
    done: what this function does with attention() calls: "recorded" or "changed".
    seen: the Record of the `with` statement.
    """
    names, patterns = list(seen.called), list(at)
    if names:
        problem = f"nothing was {done}: no site that was called matches {', '.join(map(repr, patterns))}"
        hint = f"sites that were called: {', '.join(names)}"
        if kinds := [each for each in patterns if each in KINDS]:
            declared = {seen.role(name).kind for name in names}
            if "" in declared:
                hint += (
                    f"; {kinds[0]!r} is a role: declare it, with attention(..., role=Role({kinds[0]!r}, ...))"
                )
                hint += " or the attribute `role` of the layer"
            else:
                hint += f"; they have the role {' or '.join(sorted(declared))}: the model has no {kinds[0]!r}"
        return message(call, problem, hint=hint)
    if seen.elsewhere:
        problem = f"nothing was {done}: attention() was called only in other threads or asyncio tasks"
        hint = "pass them regard.sites.inherit_scopes(function), called inside the `with` statement, or use "
        return message(call, problem, hint=f"{hint}{call[:-1]}all_threads=True) for every thread")
    problem = f"nothing was {done}: no attention() call ran inside the `with` statement"
    hint = (
        f"only regard.attention() and the layers of regard.layers are {done}: use them in your model; "
        "MultiHead.from_torch(layer) converts an nn.MultiheadAttention, and regard.watch(model) watches it; "
        "for a model of transformers, call regard.huggingface.attach(model)"
    )
    return message(call, problem, hint=hint)


def name_sites(model: nn.Module) -> list[str]:
    """Set the attribute `site` of every attention layer of a model to its module name, and return the names.

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


def declared_sites(model: nn.Module) -> BySite[Role | None]:
    """Return the role of each attention layer of a model, by its site name, without running the model.

    A layer declares its site by an attribute `site`, and its role by an attribute `role`, which may be None.

    >>> from regard.models import build_model
    >>> sites = declared_sites(build_model("bahdanau", 9, 9, width=4))
    >>> sites["decoder.cross"]
    Role(kind='cross', rows='target', columns='source')
    """
    sites: BySite[Role | None] = BySite()
    for module in model.modules():
        site, role = getattr(module, "site", None), getattr(module, "role", None)
        if isinstance(site, str):
            sites[site] = role
            if role is not None:
                sites.roles[site] = role
    return sites
