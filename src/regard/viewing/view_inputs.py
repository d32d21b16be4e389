"""Convert the first argument of picture() and explore() to a Seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.roles import role_by_name
from regard.viewing.as_arrays import as_numpy
from regard.viewing.seen import Seen, Site

__all__ = ["Drawable", "drawable", "seen_of"]


@runtime_checkable
class HasSeen(Protocol):
    """An object with a method seen(), such as a Translation."""

    def seen(self) -> Seen:
        """Return a Seen: the recorded attention weights as arrays, with subwords as labels."""


Drawable = Seen | HasSeen | Mapping[str, Sequence[Any]]


def seen_of(source: object, call: str) -> Seen:
    """Convert an object that contains recorded attention to a Seen.

    source: a Seen, a Translation, or a Record (the result of record()). A Seen is returned unchanged. A
        Translation is converted to a Seen with subwords. A Record is converted to a Seen with the positions
        0, 1, 2, ... as words.
    call: the name of the public function, for error messages.
    """
    if isinstance(source, Seen):
        return source
    if isinstance(source, Mapping):
        return _recorded(source, call)
    if isinstance(source, HasSeen) and not isinstance(source, type):
        return source.seen()
    problem = f"the first argument is of type {type(source).__name__}"
    expected = "a Seen, a Translation, or the result of record()"
    hint = "to draw weights alone, use draw(weights, rows, columns); for several translations, viewing.page()"
    raise ArgumentError(message(call, problem, expected=expected, hint=hint))


def drawable(source: object, call: str) -> Seen:
    """Convert an object that contains recorded attention to a Seen of words.

    The function differs from seen_of() in one point: the subwords of a Translation are joined to words. For
    the arguments, see seen_of().
    """
    seen = seen_of(source, call)
    return seen if seen is source or isinstance(source, Mapping) else seen.words()


def _recorded(record: Mapping[str, Sequence[Any]], call: str) -> Seen:
    """Convert a Record (the result of record()) to a Seen, with a Site for each recorded attention layer.

    Queries and keys are labelled with their positions: "0", "1", "2", ...
    """
    sites = []
    roles = getattr(record, "roles", {})
    for name, calls in record.items():
        weights = _joined(name, calls, call)
        rows, columns = (tuple(map(str, range(size))) for size in weights.shape[-2:])
        sites.append(Site(str(name), weights, rows, columns, role=roles.get(name) or role_by_name(str(name))))
    return Seen(tuple(sites), (), (), (), ())


def _joined(name: str, calls: Sequence[Any], call: str) -> NDArray[Any]:
    """Return the recorded weights of a site (an attention layer) for one sequence, (H, T, S).

    If the site was called several times with one query each, as in step-by-step decoding, the weights of all
    calls are concatenated.

    name: the name of the site.
    calls: the recorded results of the calls of the site.
    call: the name of the public function, for error messages.
    """
    weights = [_weights(name, each, call) for each in calls]
    if len(weights) > 1 and any(each.shape[-2] != 1 for each in weights):
        problem = f"site {name!r} was called {len(weights)} times"
        hint = f"draw the weights of one call: record[{name!r}][0].weights"
        raise ArgumentError(
            message(call, problem, expected="one call, or several calls with one query each", hint=hint)
        )
    widest = max(each.shape[-1] for each in weights)
    padded = [numpy.pad(each, ((0, 0), (0, 0), (0, widest - each.shape[-1]))) for each in weights]
    return numpy.concatenate(padded, axis=1)


def _weights(name: str, attended: Any, call: str) -> NDArray[Any]:
    weights = getattr(attended, "weights", None)
    if weights is None:
        problem = f"the weights of site {name!r} were not recorded"
        raise ArgumentError(message(call, problem, hint="record them with record(Look(weights=True))"))
    array = as_numpy(weights)
    if array.ndim > 2 and array.shape[0] != 1:
        problem = f"site {name!r} was called with a batch of {array.shape[0]} sequences"
        hint = "call the model with a batch of one sequence while it is recorded"
        raise ArgumentError(message(call, problem, expected="one sequence", hint=hint))
    array = array[0] if array.ndim > 2 else array
    return array if array.ndim == 3 else array[None]
