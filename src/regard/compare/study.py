"""The parts of a study: its claims, its tables, its figures, the runs that it needs, and its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.compare.comparison_options import Options
    from regard.compare.run_cache import TrainedRun
    from regard.compare.study_context import StudyContext

__all__ = [
    "CONTRADICTED",
    "NOT_MEASURED",
    "SUPPORTED",
    "UNCLEAR",
    "Claim",
    "Figure",
    "PlannedRun",
    "Series",
    "Study",
    "StudyResult",
    "Table",
    "Verdict",
]

SUPPORTED, CONTRADICTED, UNCLEAR = "supported", "contradicted", "not distinguishable"
NOT_MEASURED = "not measured"
"""The outcome of a claim whose runs are missing, because they failed or were stopped."""


@dataclass(frozen=True)
class Claim:
    """A sentence that a study tests.

    name: a short name, for the tables: "length.bottleneck".
    text: the sentence.
    """

    name: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The result of a study for one of its claims.

    claim: the claim.
    outcome: SUPPORTED, CONTRADICTED, UNCLEAR or NOT_MEASURED.
    reason: what was measured, with the mean over seeds and its confidence interval, as a sentence.
    values: the measured statistic, one value per seed (or per repetition of a measurement).
    low, high: the 95 % confidence interval of the mean; None with fewer than three values.
    """

    claim: Claim
    outcome: str
    reason: str
    values: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Table:
    """Measurements as rows of plain data.

    name: the name of the CSV file, without its ending.
    title: a sentence that says what was measured, on what, and over how many seeds.
    rows: the rows; every row is a dict from column to a number, a text or None.
    shown: whether the page shows the table; every table is written as CSV.
    """

    name: str
    title: str
    rows: list[dict[str, Any]]
    shown: bool = True


@dataclass(frozen=True)
class Series:
    """One line, one group of bars, or one heat map of a figure.

    label: the name in the legend.
    x, y: the points of a line or the bars. For a heat map, y is empty and `cells` has the values.
    low, high: a confidence band around y; empty without a band.
    cells: the rows of a heat map.
    """

    label: str
    x: Sequence[Any]
    y: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    cells: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class Figure:
    """A figure as data; regard.compare.figures draws it.

    name: the name of the image files, without their ending.
    caption: a sentence that says what was measured, on what, and over how many seeds.
    alt: a text that describes the figure, for readers who cannot see it.
    kind: "lines", "bars" or "maps" (one heat map for each series).
    x, y: the labels of the axes.
    log: which axes are logarithmic: "", "x", "y" or "xy".
    marks: vertical lines, from their x to their label.
    """

    name: str
    caption: str
    alt: str
    series: Sequence[Series]
    kind: str = "lines"
    x: str = ""
    y: str = ""
    log: str = ""
    marks: Mapping[float, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """An ordinary training run that a study needs.

    label: the name of the model in tables and figures.
    seed: the random seed.
    settings: the settings of the run, as in config.toml.
    """

    label: str
    seed: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class StudyResult:
    """What a study has measured.

    name, title: those of the study.
    tables, figures, verdicts: the results.
    notes: sentences about what could not be measured, and why.
    """

    name: str
    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """A study: claims about attention, and how to measure them.

    name: the name for --study.
    title: the heading on the page.
    claims: the claims that it tests.
    runs: returns the training runs that the study needs, given the options of the comparison.
    measure: measures the finished runs, and returns the result.
    measure_run: makes and stores the measurements of one finished run that `measure` needs; None if there are
        none. Several processes can do this at the same time.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    runs: Callable[[Options], list[PlannedRun]]
    measure: Callable[[StudyContext], StudyResult]
    measure_run: Callable[[StudyContext, TrainedRun], Any] | None = None

    def claim(self, name: str) -> Claim:
        """Return the claim with this name."""
        return next(claim for claim in self.claims if claim.name == name)
