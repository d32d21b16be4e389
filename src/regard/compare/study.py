"""The parts of a study: its variants and claims, and the tables, figures and verdicts that it returns."""

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
    "Row",
    "Series",
    "Study",
    "StudyResult",
    "Table",
    "Variant",
    "Verdict",
]

SUPPORTED, CONTRADICTED, UNCLEAR = "supported", "contradicted", "not distinguishable"
NOT_MEASURED = "not measured"
"""The outcome of a claim whose runs are missing, because they failed or were stopped."""

Row = dict[str, Any]
"""A row of a table: from column to a number, a text or None."""


@dataclass(frozen=True)
class Variant:
    """One of the models that a study trains.

    label: its name in tables and figures.
    model: the settings [model].
    training: settings [training] that differ from those of the other variants.
    read: the selection with which the trained model translates, as in a configuration file; None for that of
        the training.
    role: another name, with which claims can refer to it, such as "widest".
    figure: the end of the name of the figures that show it; None if only the tables have it.
    """

    label: str
    model: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    read: Any = None
    role: str = ""
    figure: str | None = ""


@dataclass(frozen=True)
class Claim:
    """A sentence that a study tests.

    name: a short name, for the tables: "length.bottleneck".
    text: the sentence.
    first, second: the labels (or roles) of two variants. The claim says that the first one has the higher
        value. Both are empty for a claim that the study judges in another way.
    of: the column of the table of the study that is compared.
    what: what this column is, as the beginning of a sentence.
    log: whether the natural logarithms of the values are compared.
    """

    name: str
    text: str
    first: str = ""
    second: str = ""
    of: str = "bleu"
    what: str = "mean BLEU"
    log: bool = False


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

    @property
    def decides(self) -> bool:
        """Whether the measurement decides the claim: the whole interval supports or contradicts it."""
        return self.outcome in (SUPPORTED, CONTRADICTED)


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
    rows: list[Row]
    shown: bool = True


@dataclass(frozen=True)
class Series:
    """One line of a figure, or its bars.

    label: the name in the legend.
    x, y: the points of the line, or the names and heights of the bars.
    low, high: a confidence band around y; empty without a band.
    """

    label: str
    x: Sequence[Any]
    y: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Figure:
    """A figure as data; regard.compare.figures draws it.

    name: the name of the image files, without their ending.
    caption: a sentence that says what was measured, on what, and over how many seeds.
    alt: a text that describes the figure, for readers who cannot see it.
    kind: "lines" or "bars".
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
    """A study: claims about attention, and how to measure them; measure_study() does so.

    name: the name for --study.
    title: the heading on the page.
    claims: the claims that it tests. Those with two variants are judged by measure_study().
    variants: the models to train, or a function that returns them, given the options of the comparison.
    quality: whether the BLEU of the trained models is measured.
    each: measures more of one trained run; its results are columns of the table of the study.
    extra: measures what the table does not have, given the rows of the table. Its tables, figures, verdicts
        and notes are added.
    table: the name of the table with one row per run. Default: `name`.
    by_length: the name of the table of BLEU by source length. Default: `name`-length.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    variants: Sequence[Variant] | Callable[[Options], Sequence[Variant]] = ()
    quality: bool = True
    each: Callable[[StudyContext, TrainedRun, Variant], Row] | None = None
    extra: Callable[[StudyContext, list[Row]], StudyResult] | None = None
    table: str = ""
    by_length: str = ""

    def chosen(self, options: Options) -> list[Variant]:
        """Return the variants, given the options of the comparison."""
        return list(self.variants(options) if callable(self.variants) else self.variants)

    def runs(self, options: Options) -> list[PlannedRun]:
        """Return the training runs that the study needs: each variant, once for each seed."""
        return [options.run(variant, seed) for variant in self.chosen(options) for seed in options.seeds]
