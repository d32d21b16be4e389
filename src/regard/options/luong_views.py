"""The options of local attention: which part of the source a decoder step of Luong() can attend to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from regard.errors import ArgumentError, UnknownName, message

__all__ = ["VIEWS", "Global", "Monotonic", "Predicted", "View", "ViewOption", "build_view"]


@dataclass(frozen=True)
class Global:
    """Global attention: attend to the whole source (Luong et al. 2015, section 3.1)."""


@dataclass(frozen=True)
class Monotonic:
    """Monotonic local attention, "local-m" (Luong et al. 2015, section 3.2): step t attends near p_t = t.

    p_t is the source position around which step t of the decoder can attend.

    reach: maximum distance from p_t, in words. If all source words are farther from p_t, the context of step
        t is 0.
    """

    reach: int = 10


@dataclass(frozen=True)
class Predicted:
    """Predictive local attention, "local-p" (Luong et al. 2015, eq. 9 and 10): step t attends near p_t.

    p_t = S sigma(v_p . tanh(W_p h_t)), a source position predicted from the decoder state h_t

    S is the length of the source. The attention weights are multiplied by a Gaussian around p_t.

    reach: maximum distance in words from p_t.
    """

    reach: int = 10


View = Global | Monotonic | Predicted
ViewOption = str | Mapping[str, Any] | View
VIEWS: dict[str, type[Global] | type[Monotonic] | type[Predicted]] = {
    "global": Global,
    "local-m": Monotonic,
    "local-p": Predicted,
}


def build_view(view: ViewOption) -> View:
    """Create a view. It determines which part of the source a decoder step can attend to.

    view: "global", "local-m" or "local-p", a mapping such as {"name": "local-m", "reach": 4}, or a View,
        which is returned unchanged.
    """
    if isinstance(view, str):
        view = {"name": view}
    if isinstance(view, Mapping):
        options = dict(view)
        name = options.pop("name", None)
        if name not in VIEWS:
            raise UnknownName("view", name, VIEWS)
        names = [field.name for field in fields(VIEWS[name])]
        for option in options:
            if option not in names:
                raise UnknownName(f"option of the view {name}", option, names)
        view = VIEWS[name](**options)
    if not isinstance(view, View):
        expected = 'a name, {"name": "local-m", "reach": 4}, or Monotonic(reach=4)'
        raise ArgumentError(message("Luong()", f"view is {view!r}", expected=expected))
    if not isinstance(view, Global) and not (isinstance(view.reach, int | float) and view.reach >= 1):
        problem = f"reach of the view is {view.reach!r}"
        raise ArgumentError(message("Luong()", problem, expected="1 or more"))
    return view
