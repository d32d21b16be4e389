"""regard demo: train a translator on the built-in corpus and show its attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from regard.cli.options import MOST_MINUTES, but, command, finite
from regard.cli.printing import printable_console
from regard.errors import ArgumentError, message, shell_word
from regard.training.command_options import flag, number

SETTINGS: dict[str, Any] = {
    "data": {"built_in": "korean", "pairs": 40_000, "held_out": 100},
    "model": {"name": "bahdanau", "width": 96, "dropout": 0.05},
    "training": {
        "learning_rate": 6e-3,
        "warmup_steps": 50,
        "batch_tokens": 800,
        "label_smoothing": 0.0,
        "guided_alignment": 0.0,
        "best": "loss",
    },
    "evaluation": {"sentences": 50, "samples": 1},
}
"""The settings of the demo: a model small enough for two CPU cores. benchmarks/korean.py uses them too.

The best checkpoint is the one with the lowest validation loss, because BLEU on 50 sentences is too noisy.
"""

MINUTES = 1.7
QUICK: dict[str, Any] = {
    "training": {"steps": 30, "evaluate_every": 30},
    "evaluation": {"samples": 0},
}
"""Settings of --quick: training takes 30 steps, and no sample translations are printed during training."""

GUIDED = 0.3
TEST = 500
SENTENCES = (
    "나는 고양이로소이다",
    "최웅준은 밥을 먹었다 .",
    "최웅준은 집에서 밥을 먹었다 .",
    "최웅준은 집에서 집중이 안되서 카페에 공부하러 갔다 .",
)
"""The sentences that are translated at the end. They are examples in the articles that Regard is based on."""


@command(
    number("--minutes", "Train for this many minutes.", 0.01, MOST_MINUTES, default=MINUTES, check=finite),
    flag("--quick", "Train for a few seconds, to try the command. The model learns almost nothing."),
    flag(
        "--guided", "Also train the attention weights to follow the gold alignments (guided-alignment loss)."
    ),
    but("output", "Run folder to write.", metavar="RUN", shown_default="runs/demo"),
    "seed",
)
def demo(minutes: float, quick: bool, guided: bool, output: Path | None, seed: int) -> int:
    """Train a Korean-English translator in two minutes and show its attention.

    Nothing is downloaded: a grammar generates the training pairs and their word alignments. The demo compares
    the attention with these gold alignments. It writes a run folder; the page demo.html in this folder has
    the translations.

    Examples:

    * `regard demo`

    * `regard demo --guided` also trains the attention weights to follow the gold alignments

    * `regard demo --quick` takes seconds
    """
    name = "demo" + "-guided" * guided + "-quick" * quick
    folder = Path("runs") / name if output is None else output
    console, errors = printable_console(), printable_console(stderr=True)
    errors.print(Text(f"Korean-English translator in {folder}: preparing ...", style="bold"))
    from regard.decoding import Greedy
    from regard.tasks.picture_outputs import ResultFiles
    from regard.tasks.translation import load_translator, train_translation
    from regard.tasks.translation.evaluate import built_in_references, evaluate_translator
    from regard.training.settings import merged

    length = QUICK if quick else {"training": {"minutes": minutes}}
    settings = merged(
        SETTINGS, length, {"training": {"guided_alignment": GUIDED if guided else 0.0}, "seed": seed}
    )
    _report_earlier(folder, settings, errors)
    outcome = train_translation(settings, folder, resume=True, console=errors)
    if outcome.interrupted:
        errors.print(Text("Saved a checkpoint. To continue, run the same command again."))
        return 130
    translator = load_translator(folder, search=Greedy())
    page = ResultFiles("line", folder / "demo.html")
    test = built_in_references("test", 50 if quick else TEST)
    console.print(evaluate_translator(translator, test, None, page))
    for translation in translator.translate(SENTENCES[:1] if quick else SENTENCES):
        console.print()
        console.print(translation)
    console.print()
    console.print(Text(f"Next: open {folder / 'demo.html'} in a browser"), soft_wrap=True)
    console.print(
        Text(f'      regard translate {shell_word(folder)} --text "{SENTENCES[0]}" --draw'), soft_wrap=True
    )
    console.print(Text(f"      regard show {shell_word(folder)}"), soft_wrap=True)
    return 0


def _report_earlier(folder: Path, settings: dict[str, Any], errors: Console) -> None:
    """If the folder has an earlier demo, print whether it is shown or continued, and how to train a new one.

    A finished demo is not trained again, only its results are shown; an interrupted demo continues. Raise
    ArgumentError if the demo has other settings, for example from an older version.
    """
    from regard.runs.run_folder import config_of, is_run
    from regard.training.checkpoints.checkpoints import Checkpoints
    from regard.training.settings import merged

    if not is_run(folder):
        return
    other = f"--output {shell_word(f'{folder}-2')}"
    if merged(config := config_of(folder), settings) != config:
        problem, hint = (
            "this folder has a demo with other settings",
            f"delete the folder, or choose another: {other}",
        )
        raise ArgumentError(message(str(folder), problem, hint=hint))
    latest = Checkpoints(folder).latest()
    earlier = f"The demo in {folder} continues."
    if latest is not None and latest.state.get("ended"):
        earlier = f"The demo in {folder} is already trained; its results follow."
    new = f"To train a new one, delete the folder or choose another: regard demo {other}"
    errors.print(Text(f"{earlier} {new}"), soft_wrap=True)
