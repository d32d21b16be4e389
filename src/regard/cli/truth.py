"""Truth: whether the attention of a run is what its words depend on, as regard evaluate tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from regard.cli.judging import Given
from regard.cli.run_options import opened
from regard.data.line_io import say
from regard.evaluation import Agreement, Faithfulness, agreement, faithfulness
from regard.evaluation.erasure import CROSS

__all__ = ["Truth", "measure_truth"]

LEGEND = (
    "hidden, unknown: the word looked at most is hidden, or made unknown; random beside each: other words. "
    "compr., suff.: comprehensiveness and sufficiency, in probability. tau: Kendall's, of weights and "
    "gradients. even: the attention is made even. docs/faithfulness.md says more."
)
"""What the columns are."""

MOST = 100
"""Of how many sentences the attention is tried: each word of each is said some fifteen times."""


@dataclass(frozen=True)
class Truth:
    """How faithful attention is, of all cross sites together and of each; and whether another run agrees."""

    found: list[Faithfulness]
    agreed: Agreement | None = None

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        whole, *sites = (each.written() for each in self.found)
        whole |= {"summary": self.found[0].summary()} | ({"sites": sites} if sites else {})
        return whole | ({"agreement": self.agreed.written()} if self.agreed else {})

    def print(self, console: Console) -> None:
        """As people read it."""
        first = self.found[0]
        lines: list[RenderableType] = [Text(""), self.table()]
        lines.append(Text(LEGEND, style="dim"))
        lines.append(Text(f"{first.summary()}."))
        lines.append(Text(f"Even attention instead costs {first.uniform:.2f} nats a word."))
        if self.agreed is not None:
            lines.append(Text(f"With the other run: {self.agreed}."))
        console.print(Group(*lines))

    def table(self) -> Table:
        """A row for all sites, and one for each where there are several."""
        first = self.found[0]
        title = f"Faithfulness over {first.sentences:,} references, {len(first.words):,} words: nats lost"
        table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="bold")
        table.add_column("site", no_wrap=True, style="cyan")
        for name in ("hidden", "random", "unknown", "random", "compr.", "suff.", "tau", "even"):
            table.add_column(name, justify="right", no_wrap=True)
        names = ("hidden", "hidden_random", "unknown", "unknown_random")
        for each in self.found:
            numbers = [each.mean(name) for name in (*names, "comprehensiveness", "sufficiency", "kendall")]
            table.add_row(
                Text(each.at), *(f"{round(number, 2) + 0.0:.2f}" for number in (*numbers, each.uniform))
            )
        return table


def measure_truth(translator: Any, given: Given, other: Path | None, device: str) -> Truth | None:
    """Try the attention on the first of the pairs; None, and a word about it, where there is none."""
    sources, targets = given.sources[:MOST], given.references[0][:MOST]
    if len(given.sources) > MOST:
        say(f"faithfulness is measured on the first {MOST} sentences")
    (sample,) = translator.score(sources[:1], targets[:1])
    sites = [site for site in sample.passages[0].attention if site.endswith("cross")]
    if not sites:
        say("the model does not look at its source, so there is no attention to believe")
        return None
    wanted = [CROSS, *(sites if len(sites) > 1 else [])]
    found = [faithfulness(translator, sources, targets, at=each) for each in wanted]
    if other is None:
        return Truth(found)
    twin = opened(other, "best", device, None)
    return Truth(found, agreement(translator, twin, sources, targets))
