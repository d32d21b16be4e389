"""Interventions: change the attention weights of a model to find out how its output depends on them.

Cut hides a key, Force sets a weight, Uniform makes weights equal, and Scale multiplies weights. Each of them
is a dataclass that can be written to JSON. intervene() opens scopes that edit the attention() calls at
matching sites. A Cut is added to the mask, which every backend supports. The other interventions replace the
selection by Intervened. Only the reference backend supports Intervened, so "auto" selects this backend.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.call import Call
from regard.errors import ArgumentError, RegardWarning, UnknownName, check_keywords, message
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
    """Base class of interventions, which change the attention weights at some sites (named attention layers).

    at: pattern for the names of sites, with * and ? as wildcards, such as "decoder.*.cross".
    head: index of the head; None for all heads.
    row: position of the query (in a decoder, the index of the generated token); None for all queries.
    key: position of the key. A call that has fewer keys is not changed.
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
                expected = "an integer, 0 or more"
                raise ArgumentError(
                    message(f"{type(self).__name__}()", f"{name} is {number!r}", None, expected)
                )
        if not isinstance(self.at, str):
            problem = f"at is {self.at!r}"
            expected = 'a pattern for site names, such as "*cross"'
            raise ArgumentError(message(f"{type(self).__name__}()", problem, expected=expected))

    def written(self) -> dict[str, Any]:
        """Return the intervention as a dict for JSON, which read_interventions() can read."""
        return {"kind": self.kind, **asdict(self)}

    def touches(self, call: Call) -> bool:
        """Whether this intervention applies to at least one query of the call, and its key is in the call."""
        row, key = getattr(self, "row", None), getattr(self, "key", None)
        if key is not None and key >= call.sizes[3]:
            return False
        each = call.query.shape[2] // call.beams
        return row is None or call.start <= row < call.start + each

    def place(self, call: Call) -> Tensor:
        """Return a bool tensor (H or 1, T, 1), True for the heads and queries that are to be changed."""
        heads, row = call.query.shape[1], getattr(self, "row", None)
        if self.head is not None and self.head >= heads:
            problem = f"head {self.head} is out of range for a site that matches {self.at!r}"
            raise ArgumentError(message("intervene()", problem, expected=f"0 <= head < H = {heads}"))
        positions_T = call.positions
        rows_T = torch.ones_like(positions_T, dtype=torch.bool) if row is None else positions_T == row
        if self.head is None:
            return rows_T[None, :, None]
        return (torch.arange(heads, device=rows_T.device) == self.head)[:, None, None] & rows_T[:, None]


@dataclass(frozen=True)
class Cut(Intervention):
    """Hide a key from one query or from all queries, like a mask.

    >>> Cut(2, 3, at="decoder.*.cross").written()
    {'kind': 'cut', 'at': 'decoder.*.cross', 'head': None, 'row': 2, 'key': 3}
    """

    kind: ClassVar[str] = "cut"
    row: int | None
    key: int


@dataclass(frozen=True)
class Force(Intervention):
    """Set the weight of a key. The other weights of the query are scaled, so that its weights sum to 1.

    row: position of the query; None for all queries.
    key: position of the key.
    weight: the new weight, between 0 and 1. Default: 1. If the mask hides the key from the query, the key
        keeps weight 0, and the weights of the query sum to 1 - weight.

    >>> Force(1, 4).weight
    1.0
    """

    kind: ClassVar[str] = "force"
    row: int | None
    key: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = isinstance(self.weight, int | float | Real) and not isinstance(self.weight, bool)
        if not is_number or not 0 <= self.weight <= 1:
            problem = f"weight is {self.weight!r}"
            raise ArgumentError(message("Force()", problem, expected="a number from 0 to 1"))


@dataclass(frozen=True)
class Uniform(Intervention):
    """Make the weights of a query equal for all keys that the mask allows it to attend to.

    >>> Uniform(at="decoder.1.cross", head=0).row is None
    True
    """

    kind: ClassVar[str] = "uniform"
    row: int | None = None


@dataclass(frozen=True)
class Scale(Intervention):
    """Multiply weights by a factor, without normalising them again.

    With a factor of 0, as in this example, the output of the head is 0.

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
    """Create interventions from dicts, such as those that Intervention.written() returns.

    >>> read_interventions([{"kind": "cut", "row": 2, "key": 3, "at": "*cross"}])
    [Cut(at='*cross', head=None, row=2, key=3)]
    """
    interventions = []
    for each in written:
        options = dict(each)
        kind = options.pop("kind", None)
        if kind not in KINDS:
            raise UnknownName("intervention", kind, KINDS)
        names = [field.name for field in fields(KINDS[kind])]
        for name in options:
            if name not in names:
                raise UnknownName(f"field of {kind}", name, names)
        try:
            interventions.append(KINDS[kind](**options))
        except TypeError:
            missing = [name for name in ("row", "key", "factor") if name in names and name not in options]
            problem = f"{kind} has no value for {', '.join(missing)}"
            raise ArgumentError(message("read_interventions()", problem)) from None
    return interventions


@check_keywords
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
    """Change the attention weights of any model inside a `with` statement.

    A row is the position of a query.

    cut: (row, key), or a list of such pairs. Hides the key from this row; row None means every row.
    force: (row, key) or (row, key, weight), or a list of such tuples. Sets the weight of the key, to 1 if the
        tuple has no weight.
    uniform: True for every row, or a row, or a list of rows. Makes the weights of the row equal for all keys
        that the mask allows.
    scale: a factor by which the weights are multiplied; 0 sets the output of the head to 0.
    at: pattern for the names of the sites to which the four options above apply. Default: all sites.
    head: index of the head to which the four options above apply. Default: all heads.
    given: Cut, Force, Uniform and Scale objects of regard.interventions. They can be combined with the
        options cut, force, uniform and scale.
    all_threads: change the calls of every thread of the process. By default, change the calls of this thread,
        and of functions that this thread passes to other threads with regard.sites.inherit_scopes().

    In one call, a link cannot be both cut and forced. Cuts and forces are applied to the weights before
    uniform and scale, in this order, and if `with` statements are nested, a force cannot show a key that
    another one has cut.

    Positions are counted from the start of the sequence. So an intervention has the same effect in teacher
    forcing and in decoding step by step, with or without beams. It applies to every sequence of a batch; to
    change only one sequence, run the model on this sequence alone. `with` statements of intervene() and
    record() can be nested; the outermost one is applied first.

    Yields a dict with the number of changed calls for each pattern `at`. At the end of the `with` statement,
    raises ArgumentError if attention() was called but no site matched `at`. Warns with RegardWarning if
    attention() was not called, or if no call had the row and the key of an intervention (not in decoding step
    by step, where the number of rows is not known before).

    In this example, all scores are 0. The query in row 2 is not changed, so its weights are 1/3. There is one
    attention() call, and it matches the default pattern, "*".

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
    hint = "pass cut=(row, key), force=(row, key), uniform=True or scale=0.0"
    if not given and uniform is False and cut is None and force is None and scale is None:
        raise ArgumentError(message("intervene()", "no intervention is set", hint=hint))
    where: dict[str, Any] = {"at": at, "head": head}
    interventions = [*given]
    interventions += [Cut(*_link("cut", each, 2), **where) for each in _as_list(cut)]
    interventions += [Force(*_link("force", each, 3), **where) for each in _as_list(force)]
    rows: list[Any] = [None] if uniform is True else [] if uniform is False else list(_rows(uniform))
    interventions += [Uniform(row, **where) for row in rows]
    interventions += [] if scale is None else [Scale(scale, **where)]
    for each in interventions:
        if not isinstance(each, Intervention):
            raise ArgumentError(message("intervene()", f"{each!r} is not an Intervention", hint=hint))
    _check_apart(interventions)
    changed = {each.at: 0 for each in interventions}
    edits = [_Edit(pattern, interventions, changed) for pattern in changed]
    with ExitStack() as stack:
        scopes = [
            stack.enter_context(scope(edit=edit, at=edit.at, all_threads=all_threads)) for edit in edits
        ]
        yield changed
    called = scopes[0].called if scopes else {}
    missed = [edit.at for edit in edits if not edit.calls]
    if missed and called:
        raise ArgumentError(nothing_matched("intervene()", "changed", missed, scopes[0]))
    if missed:
        text = nothing_matched("intervene()", "changed", missed, scopes[0])
        warnings.warn(text, RegardWarning, stacklevel=3)
    for edit in edits:
        if edit.calls and edit.unused and not edit.stepwise:
            problem = f"{edit.unused[0]!r} changed nothing: no call has this row and this key"
            expected = f"row < {edit.rows}, key < {edit.keys}"
            warnings.warn(message("intervene()", problem, expected=expected), RegardWarning, stacklevel=3)


class _Edit:
    """Applies interventions to a Call. It is called as a function: edit(call) returns the changed Call.

    at: pattern for the names of sites. Only interventions with exactly this pattern are applied.
    calls: number of attention() calls at sites that match `at`, changed or not.
    changed: dict from each pattern to the number of calls that at least one intervention changed.
    unused: the interventions that have not applied to any call.
    rows, keys: the largest numbers of queries and keys of a call, with the positions before it.
    stepwise: whether a call had one query, as in decoding step by step, where the number of rows is not known
        before.
    """

    def __init__(self, at: str, interventions: Iterable[Intervention], changed: dict[str, int]):
        self.at, self.changed, self.calls, self.lock = at, changed, 0, threading.Lock()
        self.interventions = [each for each in interventions if each.at == at]
        self.unused, self.rows, self.keys, self.stepwise = self.interventions, 0, 0, False

    def __call__(self, call: Call) -> Call:
        active = [each for each in self.interventions if each.touches(call)]
        with self.lock:
            self.calls += 1
            self.changed[self.at] += bool(active)
            self.unused = [each for each in self.unused if each not in active]
            queries = call.query.shape[2] // call.beams
            self.rows, self.keys = max(self.rows, call.start + queries), max(self.keys, call.sizes[3])
            self.stepwise |= queries == 1
        if not active:
            return call
        columns_S = torch.arange(call.sizes[3], device=call.query.device)
        forces = [each for each in active if isinstance(each, Force)]
        by_mask = isinstance(call.select, Soft) and all(each.weight == 1 for each in forces)
        if by_mask and len(forces) > 1:
            _check_sums(call, forces)
        hidden: Tensor | None = None
        for each in active:
            if isinstance(each, Cut):
                place = each.place(call) & (columns_S == each.key)
            elif isinstance(each, Force) and by_mask:  # weight 1 is the same as hiding all other keys
                place = each.place(call) & (columns_S != each.key)
            else:
                continue
            hidden = place if hidden is None else hidden | place
        if hidden is not None:
            call = replace(call, mask=call.mask & Mask(table=~hidden[None]))
        changes = [_Forced(call, forces)] if forces and not by_mask else []
        others = [each for each in active if isinstance(each, Uniform | Scale)]
        if changes or others:
            later = [_change(call, each, columns_S) for each in others]
            call = replace(call, select=Intervened(call.select, (*changes, *later)))
        return call


@dataclass(frozen=True, eq=False)
class Intervened(Select):
    """A selection that changes the weights of another selection, `inner`.

    changes: functions that are applied one after the other. Each takes the weights (B, H, T, S) and a bool
        tensor, True where a query may see a key, and returns the changed weights.
    """

    inner: Select
    changes: tuple[Any, ...]

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        selection = self.inner.choose(scores_BHTS, visible_BHTS)
        weights = selection.weights
        for change in self.changes:
            weights = change(weights, visible_BHTS)
        return selection._replace(weights=weights)


class _Forced:
    """Applies Force interventions. It is called as a function and returns the changed weights.

    The arguments are the weights and a bool tensor, True where a query may see a key. The function sets the
    weights of the forced keys, and scales the other weights of the same query so that they all sum to 1.
    """

    def __init__(self, call: Call, forces: list[Force]):
        columns_S = torch.arange(call.sizes[3], device=call.query.device)
        self.rows = torch.zeros((), dtype=torch.bool, device=columns_S.device)
        self.weights = torch.zeros((), device=columns_S.device)
        for each in forces:
            place = each.place(call)
            self.rows = self.rows | place
            self.weights = self.weights + each.weight * (place & (columns_S == each.key))
        self.remainder = 1 - _check_sums(call, forces)

    def __call__(self, weights: Tensor, visible: Tensor) -> Tensor:
        free = torch.where(self.weights > 0, 0.0, weights)
        share = free / free.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        forced = torch.where(visible, self.weights, 0.0) + self.remainder * share
        return torch.where(self.rows, forced.to(weights.dtype), weights)


def _check_sums(call: Call, forces: Iterable[Force]) -> Tensor:
    """Return the sum of the forced weights of each row. Raise ArgumentError if a sum is more than 1."""
    sums = torch.as_tensor(sum(each.weight * each.place(call).float() for each in forces))
    if float(sums.max()) > 1 + 1e-6:
        problem = "the forced weights of a row sum to more than 1"
        raise ArgumentError(message("intervene()", problem, expected="weights with a sum of at most 1"))
    return sums


def _change(call: Call, intervention: Uniform | Scale, columns_S: Tensor) -> Any:
    """Return a function that applies a Uniform or Scale to weights (B, H, T, S) and returns the new weights.

    The second argument of the function is a bool tensor, True where a query may see a key.
    """
    place = intervention.place(call)
    if isinstance(intervention, Scale):
        factor, key = intervention.factor, intervention.key
        place = place if key is None else place & (columns_S == key)
        return lambda weights, visible: torch.where(place, weights * factor, weights)

    def uniform(weights: Tensor, visible: Tensor) -> Tensor:
        share = visible / visible.sum(-1, keepdim=True).clamp_min(1)
        return torch.where(place, share.to(weights.dtype), weights)

    return uniform


def _as_list(links: Any) -> Sequence[Any]:
    """Return a list of links, each a tuple (row, key, ...): [links] for a single link, [] for None."""
    one = isinstance(links, tuple) and links and not isinstance(links[0], tuple | list)
    if one or hasattr(links, "tolist") or not isinstance(links, Iterable | None) or isinstance(links, str):
        return [links]
    return list(links or ())


def _link(name: str, link: Any, max_length: int) -> Sequence[Any]:
    """Return `link`; raise ArgumentError if it is not a tuple (row, key, ...) of 2 to max_length entries."""
    if isinstance(link, tuple | list) and 2 <= len(link) <= max_length:
        return link
    expected = "(row, key)" + (", or (row, key, weight)" if max_length == 3 else "")
    hint = ""
    if hasattr(link, "tolist"):  # a tensor or a NumPy array
        kind = "tensor" if isinstance(link, Tensor) else "array"
        hint = f"convert the {kind} to a tuple: {name}=tuple({kind}.tolist())"
    raise ArgumentError(message("intervene()", f"{name} contains {link!r}", expected=expected, hint=hint))


def _check_apart(interventions: Sequence[Intervention]) -> None:
    """Raise ArgumentError if a link is both cut and forced at the same sites."""
    cuts = [each for each in interventions if isinstance(each, Cut)]
    forces = [each for each in interventions if isinstance(each, Force)]
    for cut, force in product(cuts, forces):
        both = ((cut.row, force.row), (cut.head, force.head))
        if (
            cut.key == force.key
            and cut.at == force.at
            and all(a is None or b is None or a == b for a, b in both)
        ):
            problem = f"{cut!r} and {force!r} change the same link"
            expected = "each link is cut or forced, but not both"
            raise ArgumentError(message("intervene()", problem, expected=expected))


def _rows(rows: Rows) -> Sequence[int]:
    return list(rows) if isinstance(rows, Iterable) else [rows]
