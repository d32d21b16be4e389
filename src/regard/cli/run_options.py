"""Options shared by the commands that use a trained run: checkpoint, device and decoding."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.data.line_io import say
from regard.decoding import LENGTHS, OVERLONG, Beam, Greedy, Rules, Sample, Search
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.penalties import GNMT, MOST_ALPHA, Length
from regard.decoding.rules import MOST_TOKENS
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["chosen_search", "opened"]

SEARCHING, MACHINE = "Decoding", "Checkpoint and device"

BEAM = 5
"""The default beam size."""


def _option(
    metavar: str, text: str, panel: str = SEARCHING, default: str | bool = True, **limits: Any
) -> Any:
    """Declare an option; default: shown in the help if the parameter itself has none."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel, show_default=default, **limits)


SourceFile = Annotated[
    str, typer.Option(metavar="FILE", help="Source sentences, one per line; - is standard input.")
]
TargetFile = Annotated[str, typer.Option(metavar="FILE", help="Target sentences, parallel to the source.")]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of standard output.")
]
PageFile = Annotated[
    Path | None, typer.Option("--page", metavar="FILE.html", help="Write an HTML page with the alignments.")
]
Unit = Annotated[
    str,
    typer.Option(
        metavar="UNIT",
        help="Unit to align: word, character or auto (characters if the run has a character tokenizer).",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, written by regard train --out.")]
Size = Annotated[int | None, _option("INT", "Beam size.", default=str(BEAM), min=1, max=MOST_BEAMS)]
Penalty = Annotated[
    str | None,
    _option(
        "FLOAT",
        "Length penalty: higher values favour longer translations. average:1 ranks by the mean "
        "log-probability of the tokens.",
        default="0.6",
    ),
]
Best = Annotated[
    int,
    _option("INT", "Number of translations to return per line, best first (n-best).", min=1, max=MOST_BEAMS),
]
Greedily = Annotated[bool, typer.Option("--greedy", help="Greedy search.", rich_help_panel=SEARCHING)]
Drawn = Annotated[
    bool, typer.Option("--sample", help="Sample tokens from the model.", rich_help_panel=SEARCHING)
]
Temperature = Annotated[
    float | None,
    _option(
        "FLOAT", "With --sample: temperature; below 1 is less random.", default="1", callback=bounds.finite
    ),
]
TopK = Annotated[
    int | None,
    _option("INT", "With --sample: sample from the k most probable tokens.", min=0, max=bounds.LINES),
]
TopP = Annotated[
    float | None,
    _option(
        "FLOAT",
        "With --sample: sample from the most probable tokens that sum to this probability.",
        callback=bounds.finite,
    ),
]
Seed = Annotated[int | None, _option("INT", "With --sample: random seed.", min=0, max=bounds.SEED)]
MaxLength = Annotated[
    int | None, _option("INT", "Maximum number of tokens of a translation.", min=1, max=MOST_TOKENS)
]
Longest = Annotated[int, _option("INT", "Maximum number of source tokens per line.", min=2, max=MOST_TOKENS)]
Overlong = Annotated[
    str, _option("NAME", f"How to translate lines longer than --longest: {' or '.join(OVERLONG)}.")
]
BatchTokens = Annotated[int, _option("INT", "Batch size in tokens.", MACHINE, min=1, max=bounds.TOKENS)]
Which = Annotated[str, _option("NAME", "Checkpoint: best, latest, or the number of a step.", MACHINE)]
Device = Annotated[str, _option("NAME", "Device: cpu, cuda, mps, or auto (the fastest available).", MACHINE)]
Threads = Annotated[
    int | None,
    _option("INT", "Number of CPU threads.", MACHINE, min=1, max=bounds.THREADS, callback=bounds.threads),
]


def opened(run: Path, checkpoint: str, device: str, threads: int | None, **options: Any) -> Any:
    """Load the translator of a run and report skipped checkpoints; options: those of Translator."""
    import torch

    from regard.tasks.translation.load_run import load_translator

    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load_translator(run, checkpoint=checkpoint, device=device, **options)
    for note in loaded.notes:
        say(note)
    return loaded


def chosen_search(
    beam: int | None,
    length_penalty: str | None,
    best: int = 1,
    greedy: bool = False,
    max_length: int | None = None,
    sample: bool = False,
    **drawing: float | None,
) -> Search:
    """Return the search that the options describe; raise ArgumentError if they cannot be combined.

    drawing: the options of --sample; None for those not given.

    >>> chosen_search(None, "average:1", best=9)
    Beam(size=9, best=9, length=Average(alpha=1.0), coverage=0.0, rules=Rules(minimum=1, ...))
    """
    sampling = {name: value for name, value in drawing.items() if value is not None}
    options = {
        "--beam": beam is not None,
        "--length-penalty": length_penalty is not None,
        "--greedy": greedy,
        "--sample": sample,
        "--best": best > 1,
        **{f"--{name.replace('_', '-')}": True for name in sampling},
    }
    allowed = {
        "--greedy": {"--greedy"},
        "--sample": {"--sample", "--best", "--temperature", "--top-k", "--top-p", "--seed"},
        "": {"--beam", "--length-penalty", "--best"},
    }
    method = "--greedy" if greedy else "--sample" if sample else ""
    wrong = [name for name, present in options.items() if present and name not in allowed[method]]
    if wrong:
        hint = "" if method else f"use it with --sample: --sample {wrong[0]} ..."
        problem = f"it cannot be combined with {method or 'beam search'}"
        raise ArgumentError(message(wrong[0], problem, hint=hint))
    rules = Rules(maximum=max_length)
    if greedy:
        return Greedy(rules)
    if sample:
        return Sample(**sampling, count=best, rules=rules)  # type: ignore[arg-type]
    return Beam(max(BEAM, best) if beam is None else beam, best, _length(length_penalty), rules=rules)


def _length(text: str | None) -> Length:
    """Parse a length penalty: a number, or a name and a number."""
    if text is None:
        return GNMT()
    name, colon, number = text.rpartition(":")
    if colon and name not in LENGTHS:
        raise UnknownName("length penalty", name, LENGTHS)
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if not abs(alpha) <= MOST_ALPHA:
        expected = f"a number from -{MOST_ALPHA} to {MOST_ALPHA}, or a name and a number: average:1"
        raise ArgumentError(message("--length-penalty", f"{text[:60]!r}", expected=expected))
    return LENGTHS[name or "gnmt"](alpha)
