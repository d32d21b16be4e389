"""regard demo: train the first attention on the built-in corpus, and see where it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from regard.cli import bounds
from regard.cli.judging import Judging, built_in, judge_run
from regard.cli.pages import Page
from regard.decoding import Greedy
from regard.errors import ArgumentError, message

__all__ = ["SETTINGS", "demo"]

SETTINGS: dict[str, Any] = {
    "data": {"built_in": "korean", "pairs": 40_000, "held_out": 100},
    "model": {"name": "bahdanau", "width": 96, "dropout": 0.05},
    "training": {
        "rate": 6e-3,
        "warm_up": 50,
        "tokens": 800,
        "smoothing": 0.0,
        "guided": 0.0,
        "best": "loss",
    },
    "evaluation": {"sentences": 50, "samples": 1},
}
"""What benchmarks/korean.py trains too: small, so that two cores are enough.

The best checkpoint has the lowest loss: BLEU of 50 sentences is too noisy to select by.
"""

MINUTES = 1.7
QUICK: dict[str, Any] = {
    "training": {"steps": 30, "evaluate_every": 30},
    "evaluation": {"samples": 0},
}
"""In place of minutes: so few steps that it takes seconds anywhere, and no translations meanwhile."""

GUIDED = 0.3
TEST = 500
SENTENCES = (
    "나는 고양이로소이다",
    "최웅준은 밥을 먹었다 .",
    "최웅준은 집에서 밥을 먹었다 .",
    "최웅준은 집에서 집중이 안되서 카페에 공부하러 갔다 .",
)
"""The sentences that are translated at the end: the examples of the articles that Regard grew out of."""

Minutes = Annotated[
    float,
    typer.Option(help="Train for this many minutes.", min=0.01, max=bounds.MINUTES, callback=bounds.finite),
]
Quick = Annotated[bool, typer.Option("--quick", help="Train for seconds: the model learns next to nothing.")]
Guided = Annotated[bool, typer.Option("--guided", help="Add the guided-alignment loss, with the gold links.")]
Out = Annotated[Path | None, typer.Option(help="Run folder. [default: runs/demo]", show_default=False)]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, max=bounds.SEED)]


def demo(
    minutes: Minutes = MINUTES,
    quick: Quick = False,
    guided: Guided = False,
    out: Out = None,
    seed: Seed = 0,
) -> int:
    """Train a Korean-English translator in two minutes, and see where it looks.

    A grammar makes the corpus, so nothing is downloaded; it knows which word translates which, so the
    attention can be compared with gold alignments. Writes a run folder, and a page of translations in it.

    Examples:

    * `regard demo`

    * `regard demo --guided` trains the attention with the gold alignments

    * `regard demo --quick` takes seconds
    """
    from regard.tasks.translation import load_translator, train_translation
    from regard.training.settings import merged

    name = "demo" + "-guided" * guided + "-quick" * quick
    folder = Path("runs") / name if out is None else out
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    chosen = QUICK if quick else {"training": {"minutes": minutes}}
    given = merged(SETTINGS, chosen, {"training": {"guided": GUIDED if guided else 0.0}, "seed": seed})
    _check_folder(folder, given)
    errors.print(Text("Training a Korean-English translator", style="bold"))
    outcome = train_translation(given, folder, resume=True, console=errors)
    if outcome.interrupted:
        errors.print(Text("saved; the same command goes on"))
        return 130
    translator = load_translator(folder, search=Greedy())
    page = Page(folder / "demo.html")
    test = built_in("test", 50 if quick else TEST, translator.settings.data.grammar_version)
    report = judge_run(translator, test, Judging(), None, page)
    console.print(report.table())
    for translation in translator.translate(SENTENCES[:1] if quick else SENTENCES):
        console.print()
        console.print(translation)
    console.print()
    console.print(Text(f"Open {folder / 'demo.html'} to see the test sentences.", style="bold"))
    console.print(Text(f"Next: regard translate {folder} --draw, regard show {folder}"))
    return 0


def _check_folder(folder: Path, given: dict[str, Any]) -> None:
    """Refuse to resume a demo that was begun with other settings, as by an earlier version of Regard."""
    from regard.tasks.run_folder import config_of, is_run
    from regard.training.settings import merged

    if is_run(folder) and merged(config := config_of(folder), given) != config:
        problem = "this folder has a demo with other settings"
        hint = f"remove it, or name another folder: --out {folder}-2"
        raise ArgumentError(message(str(folder), problem, hint=hint))
