"""Interventions: cut a link, force one, make a head even or turn it down, and see what a model says then.

Each is plain data, to JSON and back. intervene() opens scopes that edit the calls made at the sites: what is
cut is masked, which every backend takes; weights that are forced in part, made even or scaled are changed by
a selection of their own, which `reference` runs, and which auto therefore takes.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.call import Call
from regard.errors import ArgumentError, RegardWarning, UnknownName, message
from regard.masks.mask import Mask
from regard.select import Select, Selection, Soft
from regard.sites import nothing_matched, scope

__all__ = [
    "KINDS",
    "Cut",
    "Force",
    "Intervention",
    "Scale",
    "Uniform",
    "intervene",
    "read_interventions",
]

Rows = int | Sequence[int]
Link = tuple[int | None, int]


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Something done to the attention at some sites, in one head or in all of them.

    at: the sites, with * and ? as wildcards. head: its number, None for all. row: the position of the query,
    for a decoder the number of the token that is said; None for all. key: the position of what is read.
    """

    kind: ClassVar[str] = ""
    at: str = "*"
    head: int | None = None

    def __post_init__(self) -> None:
        for name in ("head", "row", "key"):
            number = getattr(self, name, None)
            if number is None and not (name == "key" and isinstance(self, Cut | Force)):
                continue
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                expected = "a whole number, 0 or more"
                raise ArgumentError(
                    message(f"{type(self).__name__}()", f"{name} is {number!r}", None, expected)
                )
        if not isinstance(self.at, str):
            problem = f"at is {self.at!r}"
            raise ArgumentError(message(f"{type(self).__name__}()", problem, expected='sites: "*cross"'))

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"kind": self.kind, **asdict(self)}

    def touches(self, call: Call) -> bool:
        """Whether any row of the call is meant."""
        row, each = getattr(self, "row", None), call.query.shape[2] // call.beams
        return row is None or call.start <= row < call.start + each

    def place(self, call: Call) -> Tensor:
        """The heads and rows that are meant, (H or 1, T, 1)."""
        heads, row = call.query.shape[1], getattr(self, "row", None)
        if self.head is not None and self.head >= heads:
            problem = f"there is no head {self.head} at {self.at!r}"
            raise ArgumentError(message("intervene()", problem, expected=f"0 <= head < H = {heads}"))
        positions_T = call.positions
        rows_T = torch.ones_like(positions_T, dtype=torch.bool) if row is None else positions_T == row
        if self.head is None:
            return rows_T[None, :, None]
        return (torch.arange(heads, device=rows_T.device) == self.head)[:, None, None] & rows_T[:, None]


@dataclass(frozen=True)
class Cut(Intervention):
    """Hide a key from a query, or from all: the other keys share its weight as if it were not there.

    >>> Cut(2, 3, at="decoder.*.cross").written()
    {'kind': 'cut', 'at': 'decoder.*.cross', 'head': None, 'row': 2, 'key': 3}
    """

    kind: ClassVar[str] = "cut"
    row: int | None
    key: int


@dataclass(frozen=True)
class Force(Intervention):
    """Give a key this weight, all of it unless told; the others share the rest in their own proportions.

    A key that the query may not see cannot be forced on it: the query then reads nothing in its place.

    >>> Force(1, 4).weight
    1.0
    """

    kind: ClassVar[str] = "force"
    row: int | None
    key: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.weight, bool) or not 0 <= self.weight <= 1:
            problem = f"weight is {self.weight!r}"
            raise ArgumentError(message("Force()", problem, expected="a share of the whole, 0 to 1"))


@dataclass(frozen=True)
class Uniform(Intervention):
    """Look evenly at all keys that the query may see.

    >>> Uniform(at="decoder.1.cross", head=0).row is None
    True
    """

    kind: ClassVar[str] = "uniform"
    row: int | None = None


@dataclass(frozen=True)
class Scale(Intervention):
    """Multiply the weights, and make up for nothing: 0 drops the head.

    >>> Scale(0.0, head=3).factor
    0.0
    """

    kind: ClassVar[str] = "scale"
    factor: float
    row: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.factor, int | float) or not math.isfinite(self.factor):
            raise ArgumentError(message("Scale()", f"factor is {self.factor!r}", expected="a finite number"))


KINDS: dict[str, type[Intervention]] = {each.kind: each for each in (Cut, Force, Uniform, Scale)}


def read_interventions(written: Iterable[Mapping[str, Any]]) -> list[Intervention]:
    """Interventions from what written() gave, as JSON has it.

    >>> read_interventions([{"kind": "cut", "row": 2, "key": 3, "at": "*cross"}])
    [Cut(at='*cross', head=None, row=2, key=3)]
    """
    found = []
    for each in written:
        options = dict(each)
        kind = options.pop("kind", None)
        if kind not in KINDS:
            raise UnknownName("intervention", kind, KINDS)
        known = [field.name for field in fields(KINDS[kind])]
        for name in options:
            if name not in known:
                raise UnknownName(f"field of {kind}", name, known)
        try:
            found.append(KINDS[kind](**options))
        except TypeError:
            missing = [name for name in ("row", "key", "factor") if name in known and name not in options]
            problem = f"{', '.join(missing)} of {kind} is not said"
            raise ArgumentError(message("read_interventions()", problem)) from None
    return found


@contextmanager
def intervene(
    *given: Intervention,
    cut: Link | Sequence[Link] | None = None,
    force: Sequence[Any] | None = None,
    uniform: bool | Rows = False,
    scale: float | None = None,
    at: str = "*",
    head: int | None = None,
    all_threads: bool = False,
) -> Iterator[dict[str, int]]:
    """Change the attention made inside a `with`, whatever model makes it: to find out rather than guess.

    cut: links (row, key), or one: the key is hidden from the row. force: links (row, key), or (row, key,
    weight): the key gets all the weight, or so much. A row of None is every row. uniform: True, or the rows
    that are to look evenly. scale: what weights are multiplied by; 0 drops a head. at, head: where all this
    is done. given: the same as data: Cut, Force, Uniform and Scale of regard.interventions. all_threads:
    change the calls of every thread of the process; by default only those of the thread that runs the
    `with`, and of the functions it gives to other threads by regard.sites.inherit_scopes.

    Rows are counted by position, so that a model that decodes step by step, by beams too, is changed just as
    when it reads a whole target at once. All sentences of a batch are changed alike: to change one, give it
    alone. Scopes nest, with each other and with record(), and work from the outside in. Gives how many calls
    were changed, by `at`. At the end of the `with` it raises an ArgumentError if attention was called, but
    at no site that matches `at`, and warns (RegardWarning) if attention was not called at all.

    >>> import regard, torch
    >>> x, look = torch.eye(3), regard.Look(weights=True)
    >>> with regard.intervene(cut=(0, 0), force=(1, 2)) as changed:
    ...     regard.attention(0 * x, x, look=look).weights
    tensor([[0.0000, 0.5000, 0.5000],
            [0.0000, 0.0000, 1.0000],
            [0.3333, 0.3333, 0.3333]])
    >>> changed
    {'*': 1}
    """
    hint = "cut=(row, key), force=(row, key), uniform=True, scale=0.0"
    if not given and uniform is False and cut is None and force is None and scale is None:
        raise ArgumentError(message("intervene()", "nothing is to be changed", hint=hint))
    where: dict[str, Any] = {"at": at, "head": head}
    wanted = [*given]
    wanted += [Cut(*_link("cut", each, 2), **where) for each in _several(cut)]
    wanted += [Force(*_link("force", each, 3), **where) for each in _several(force)]
    rows: list[Any] = [None] if uniform is True else [] if uniform is False else list(_rows(uniform))
    wanted += [Uniform(row, **where) for row in rows]
    wanted += [] if scale is None else [Scale(scale, **where)]
    for each in wanted:
        if not isinstance(each, Intervention):
            raise ArgumentError(message("intervene()", f"{each!r} is no intervention", hint=hint))
    changed = {each.at: 0 for each in wanted}
    edits = [_Edit(sites, wanted, changed) for sites in changed]
    with ExitStack() as stack:
        scopes = [
            stack.enter_context(scope(edit=edit, at=edit.at, all_threads=all_threads)) for edit in edits
        ]
        yield changed
    called = scopes[0].called if scopes else {}
    missed = [edit.at for edit in edits if not edit.met]
    if missed and called:
        raise ArgumentError(nothing_matched("intervene()", "changed", missed, called))
    if missed:
        warnings.warn(nothing_matched("intervene()", "changed", missed, called), RegardWarning, stacklevel=3)


class _Edit:
    """What a scope does to a call: the interventions at these sites. met: how many calls there were."""

    def __init__(self, at: str, wanted: Iterable[Intervention], changed: dict[str, int]):
        self.at, self.changed, self.met, self.lock = at, changed, 0, threading.Lock()
        self.wanted = [each for each in wanted if each.at == at]

    def __call__(self, call: Call) -> Call:
        here = [each for each in self.wanted if each.touches(call)]
        with self.lock:
            self.met += 1
            self.changed[self.at] += bool(here)
        if not here:
            return call
        columns_S = torch.arange(call.sizes[3], device=call.query.device)
        forces = [each for each in here if isinstance(each, Force)]
        wholly = isinstance(call.select, Soft) and all(each.weight == 1 for each in forces)
        hidden: Tensor | None = None
        for each in here:
            if isinstance(each, Cut):
                place = each.place(call) & (columns_S == each.key)
            elif isinstance(each, Force) and wholly:
                place = each.place(call) & (columns_S != each.key)
            else:
                continue
            hidden = place if hidden is None else hidden | place
        if hidden is not None:
            call = replace(call, mask=call.mask & Mask(table=~hidden[None]))
        changes = [_Forced(call, forces)] if forces and not wholly else []
        rest = [each for each in here if isinstance(each, Uniform | Scale)]
        if changes or rest:
            after = [_change(call, each, columns_S) for each in rest]
            call = replace(call, select=Intervened(call.select, (*changes, *after)))
        return call


@dataclass(frozen=True, eq=False)
class Intervened(Select):
    """A selection whose weights are changed after it chose."""

    inner: Select
    changes: tuple[Any, ...]

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        found = self.inner.choose(scores_BHTS, visible_BHTS)
        weights = found.weights
        for change in self.changes:
            weights = change(weights, visible_BHTS)
        return found._replace(weights=weights)


class _Forced:
    """The weights of some links as they are to be, the other links of their rows sharing what is left."""

    def __init__(self, call: Call, forces: list[Force]):
        columns_S = torch.arange(call.sizes[3], device=call.query.device)
        self.meant = torch.zeros((), dtype=torch.bool, device=columns_S.device)
        self.weights = torch.zeros((), device=columns_S.device)
        for each in forces:
            place = each.place(call)
            self.meant = self.meant | place
            self.weights = self.weights + each.weight * (place & (columns_S == each.key))
        sums = sum(each.weight * each.place(call).float() for each in forces)
        if float(torch.as_tensor(sums).max()) > 1 + 1e-6:
            problem = "a row is forced to look at more than all"
            raise ArgumentError(message("intervene()", problem, hint="the weights of a row sum to 1"))
        self.left = 1 - torch.as_tensor(sums)

    def __call__(self, weights: Tensor, visible: Tensor) -> Tensor:
        free = torch.where(self.weights > 0, 0.0, weights)
        share = free / free.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        forced = torch.where(visible, self.weights, 0.0) + self.left * share
        return torch.where(self.meant, forced.to(weights.dtype), weights)


def _change(call: Call, given: Uniform | Scale, columns_S: Tensor) -> Any:
    """A function from weights and what is visible to other weights."""
    meant = given.place(call)
    if isinstance(given, Scale):
        meant = meant if given.key is None else meant & (columns_S == given.key)
        return lambda weights, visible: torch.where(meant, weights * given.factor, weights)

    def even(weights: Tensor, visible: Tensor) -> Tensor:
        share = visible / visible.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(meant, share.to(weights.dtype), weights)

    return even


def _several(given: Any) -> Sequence[Any]:
    """Links, from one or several."""
    one = isinstance(given, tuple) and given and not isinstance(given[0], tuple | list)
    if one or not isinstance(given, Iterable | None) or isinstance(given, str):
        return [given]
    return list(given or ())


def _link(name: str, given: Any, most: int) -> Sequence[Any]:
    if isinstance(given, tuple | list) and 2 <= len(given) <= most:
        return given
    expected = "(row, key)" + (", or (row, key, weight)" if most == 3 else "")
    raise ArgumentError(message("intervene()", f"{name} has {given!r}", expected=expected))


def _rows(given: Rows) -> Sequence[int]:
    return list(given) if isinstance(given, Iterable) else [given]
