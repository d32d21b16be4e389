"""Faithfulness report of `regard evaluate`: does the output depend on the words that it attends to?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard.data.line_io import say
from regard.data.progress_bar import advancing
from regard.evaluation import Agreement, Faithfulness, agreement, faithfulness
from regard.roles import CROSS, sites_matching
from regard.tasks.translation.evaluation_report import References

__all__ = ["FaithfulnessReport", "measure_faithfulness"]

LEGEND = (
    "hidden: the most attended source word is masked. unknown: it is replaced by the unknown token. random: "
    "the same with a random other word, for the column before. compr., suff.: comprehensiveness and "
    "sufficiency, as probabilities. tau: Kendall's tau between weights and gradients. uniform: all weights "
    "are made equal. See docs/faithfulness.md."
)
"""Explanation of the columns of the table, printed below it."""

MAX_SENTENCES = 100
"""Maximum number of sentences to measure. It is small because each target word is scored about 15 times."""


@dataclass(frozen=True)
class FaithfulnessReport:
    """How faithful the cross-attention of a model is: does the output depend on the attended source words?

    results: the first result is for all cross-attention layers (sites) together. If there are several sites,
        one result for each site follows.
    agreement: how similar the cross-attention of this run and of another run are. None: no other run was
        compared.
    """

    results: list[Faithfulness]
    agreement: Agreement | None = None

    def written(self) -> dict[str, Any]:
        """Return the measurements of all sites and the agreement with the other run as a dict for JSON."""
        report, *sites = (each.written() for each in self.results)
        report |= {"summary": self.results[0].summary()} | ({"sites": sites} if sites else {})
        return report | ({"agreement": self.agreement.written()} if self.agreement else {})

    def described(self) -> Group:
        """Return the report for the terminal: a table, with its legend and a summary."""
        first = self.results[0]
        lines: list[RenderableType] = [Text(""), self.table()]
        lines.append(Text(LEGEND, style="dim"))
        lines.append(Text(f"{first.summary()}."))
        lines.append(Text(f"Uniform attention increases the loss by {first.uniform:.2f} nats per word."))
        if self.agreement is not None:
            lines.append(Text(f"Comparison of the attention with the other run: {self.agreement}."))
        return Group(*lines)

    def table(self) -> Table:
        """Return a table with a row for all attention layers (sites) together, and a row for each site.

        If there is only one site, the table has one row.
        """
        first = self.results[0]
        title = f"Faithfulness over {first.sentences:,} references, {len(first.words):,} words: loss in nats"
        table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="bold")
        table.add_column("site", no_wrap=True, style="cyan")
        for name in ("hidden", "random", "unknown", "random", "compr.", "suff.", "tau", "uniform"):
            table.add_column(name, justify="right", no_wrap=True)
        names = ("hidden", "hidden_random", "unknown", "unknown_random")
        for each in self.results:
            numbers = [each.mean(name) for name in (*names, "comprehensiveness", "sufficiency", "kendall")]
            table.add_row(
                Text(each.at), *(f"{round(number, 2) + 0.0:.2f}" for number in (*numbers, each.uniform))
            )
        return table


def measure_faithfulness(
    translator: Any, references: References, other: Any | None = None
) -> FaithfulnessReport | None:
    """Measure how much the probability of the references depends on the attended source words.

    Only the first MAX_SENTENCES pairs are measured. Progress is shown on standard error. If the model has no
    attention to the source, print a message and return None.

    translator: the translator of the run.
    references: the source sentences and reference translations.
    other: the translator of another run. Its attention is compared with this run. None: no comparison.
    """
    sources, targets = references.sources[:MAX_SENTENCES], references.references[0][:MAX_SENTENCES]
    (sample,) = translator.score(sources[:1], targets[:1])
    sites = sites_matching(sample.passages[0].attention, CROSS)
    if not sites:
        say("no faithfulness scores: the model has no attention to its source")
        return None
    tested = [CROSS, *(sites if len(sites) > 1 else [])]
    count = f"the first {len(sources)}" if len(references.sources) > len(sources) else f"{len(sources)}"
    say(f"measuring faithfulness on {count} sentences, which may take a minute or more")
    results = []
    with advancing("measuring faithfulness", len(tested)) as reached:
        for site in tested:
            results.append(faithfulness(translator, sources, targets, at=site))
            reached(len(results))
    if other is None:
        return FaithfulnessReport(results)
    return FaithfulnessReport(results, agreement(translator, other, sources, targets))
