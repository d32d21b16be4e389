"""What picture() and explore() take: a Seen, a translation, or what record() gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.viewing.seen import Seen, Site

__all__ = ["Drawable", "Explorable", "drawable", "seen_of"]


@runtime_checkable
class HasSeen(Protocol):
    """A translation: seen() gives what the model looked at, as arrays and pieces."""

    def seen(self) -> Seen:
        """What was looked at."""


Explorable = Seen | HasSeen
Drawable = Seen | HasSeen | Mapping[str, Sequence[Any]]


def seen_of(given: object, call: str) -> Seen:
    """A Seen, from one or from a translation."""
    if isinstance(given, Seen):
        return given
    if isinstance(given, HasSeen) and not isinstance(given, type):
        return given.seen()
    problem = f"the first argument is of type {type(given).__name__}"
    hint = "weights alone are drawn by draw(weights, rows, columns); several translations by viewing.page()"
    raise ArgumentError(message(call, problem, expected="a Seen or a Translation", hint=hint))


def drawable(given: object, call: str) -> Seen:
    """A Seen to draw: a Seen as it is, a translation by words, and a Record with positions for words."""
    if isinstance(given, Mapping):
        return _recorded(given, call)
    seen = seen_of(given, call)
    return seen if seen is given else seen.words()


def _recorded(record: Mapping[str, Sequence[Any]], call: str) -> Seen:
    sites = []
    for name, calls in record.items():
        weights = _joined(name, calls, call)
        rows, columns = (tuple(map(str, range(size))) for size in weights.shape[-2:])
        sites.append(Site(str(name), weights, rows, columns))
    return Seen(tuple(sites), (), (), (), ())


def _joined(name: str, calls: Sequence[Any], call: str) -> NDArray[Any]:
    """The weights (H, T, S) of a site for one sequence; steps of one query each are joined."""
    weights = [_weights(name, each, call) for each in calls]
    if len(weights) > 1 and any(each.shape[-2] != 1 for each in weights):
        problem = f"site {name!r} was called {len(weights)} times"
        hint = f"take one of them: seen[{name!r}][0]"
        raise ArgumentError(
            message(call, problem, expected="one call, or steps of one query each", hint=hint)
        )
    widest = max(each.shape[-1] for each in weights)
    padded = [numpy.pad(each, ((0, 0), (0, 0), (0, widest - each.shape[-1]))) for each in weights]
    return numpy.concatenate(padded, axis=1)


def _weights(name: str, attended: Any, call: str) -> NDArray[Any]:
    found = getattr(attended, "weights", None)
    if found is None:
        problem = f"the weights of site {name!r} were not recorded"
        raise ArgumentError(message(call, problem, hint="record(Look(weights=True)), which is the default"))
    # Duck typing: drawing needs no torch.
    array = numpy.asarray(found.detach().cpu().float().numpy() if hasattr(found, "detach") else found)
    if array.ndim > 2 and array.shape[0] != 1:
        problem = f"site {name!r} attended for a batch of {array.shape[0]} sequences"
        hint = "record a batch of one sequence"
        raise ArgumentError(message(call, problem, expected="one sequence", hint=hint))
    array = array[0] if array.ndim > 2 else array
    return array if array.ndim == 3 else array[None]
