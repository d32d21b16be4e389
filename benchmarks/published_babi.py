"""The published test errors of memory networks on bAbI with 1,000 training questions per task, in per cent.

Sukhbaatar et al. 2015, "End-to-end memory networks", table 1. Its first column, the supervised network, is
taken from Weston et al. 2015, "Towards AI-complete question answering". The means of the columns agree with
the published means (6.7, 13.9, 13.3 and 12.4). The errors of "supervised" and "PE LS RN joint" agree with
another copy of the table, in a public program; of "PE LS RN" and "PE LS joint", only the means were compared.
"""

from __future__ import annotations

__all__ = ["COLUMNS", "PUBLISHED", "PUBLISHED_AS"]

COLUMNS: dict[str, tuple[float, ...]] = {
    "supervised": (
        0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 15.0, 9.0, 0.0, 2.0,
        0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 35.0, 5.0, 64.0, 0.0,
    ),
    "PE LS RN": (
        0.0, 8.3, 40.3, 2.8, 13.1, 7.6, 17.3, 10.0, 13.2, 15.1,
        0.9, 0.2, 0.4, 1.7, 0.0, 1.3, 51.0, 11.1, 82.8, 0.0,
    ),
    "PE LS joint": (
        0.1, 14.0, 33.1, 5.7, 14.8, 3.3, 17.9, 10.1, 3.1, 6.6,
        0.9, 0.3, 1.4, 8.2, 0.0, 3.5, 44.5, 9.2, 90.2, 0.0,
    ),
    "PE LS RN joint": (
        0.0, 11.4, 21.9, 13.4, 14.4, 2.8, 18.3, 9.3, 1.9, 6.5,
        0.3, 0.1, 0.2, 6.9, 0.0, 2.7, 40.4, 9.4, 88.0, 0.0,
    ),
}  # fmt: skip
"""Name of a column of the table -> the errors of qa1 to qa20. All but the first network have 3 hops."""

PUBLISHED_AS = {
    "babi-joint": "PE LS RN joint, Sukhbaatar et al. 2015",
    "babi-task": "PE LS RN, Sukhbaatar et al. 2015",
    "babi-supervised": "AM+NG+NL, each task alone, Weston et al. 2015",
}
"""Recipe -> the published model that it is compared with."""

_NAMES = {"babi-joint": "PE LS RN joint", "babi-task": "PE LS RN", "babi-supervised": "supervised"}

PUBLISHED: dict[str, dict[str, float]] = {
    recipe: {f"qa{number}": error for number, error in enumerate(COLUMNS[name], 1)}
    for recipe, name in _NAMES.items()
}
"""Recipe -> the published error of each task."""
