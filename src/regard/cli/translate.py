"""regard translate: one translation for each line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard.cli import bounds
from regard.cli.run_options import (
    BatchTokens,
    Best,
    Device,
    Drawn,
    Greedily,
    Longest,
    MaxLength,
    OutFile,
    Overlong,
    PageFile,
    Penalty,
    RunFolder,
    Seed,
    Size,
    Temperature,
    Threads,
    TopK,
    TopP,
    Unit,
    Which,
    chosen_search,
    opened,
)
from regard.data.line_io import Notes, given_lines, tell, writing
from regard.decoding import Translation
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, message
from regard.tasks.translation.translation_page import TranslationPage, describe_search

__all__ = ["translate"]

AT_ONCE = 4096
"""Lines read before they are translated: sorted by length they fill batches better."""

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILES", help="Files with one sentence per line; - is standard input."),
]
Given = Annotated[
    list[str] | None, typer.Option("--text", metavar="LINE", help="A sentence to translate; may be repeated.")
]
Scores = Annotated[
    bool, typer.Option("--scores", help="Print the log-probability and a tab before each translation.")
]
Draw = Annotated[bool, typer.Option("--draw", help="Draw each translation with its attention.")]
Aligned = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the alignments in Pharaoh format.")]
Weighted = Annotated[
    bool, typer.Option("--probabilities", help="With --alignments: write the weights too, as in 0-0:0.830.")
]
AtOnce = Annotated[
    int | None,
    typer.Option(help="Number of lines to read before they are translated.", min=1, max=bounds.LINES),
]


def translate(
    run: RunFolder,
    files: Files = None,
    text: Given = None,
    out: OutFile = None,
    scores: Scores = False,
    draw: Draw = False,
    page: PageFile = None,
    alignments: Aligned = None,
    probabilities: Weighted = False,
    unit: Unit = "auto",
    at_once: AtOnce = None,
    beam: Size = None,
    length_penalty: Penalty = None,
    best: Best = 1,
    greedy: Greedily = False,
    sample: Drawn = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    max_length: MaxLength = None,
    longest: Longest = 512,
    overlong: Overlong = "split",
    batch: BatchTokens = 4096,
    checkpoint: Which = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate text, one line of output for each line of input.

    Files are UTF-8, plain or gzip; invalid bytes are replaced. Standard error reports them, lines that were
    too long or did not end, and words that are not in the vocabulary. With --best N, each translation is a
    line of tab-separated fields: number of the source line, from 1; rank; ranking score, with the length
    penalty; log-probability; text. A line translated in parts has only one translation.

    Examples:

    * `regard translate runs/x --text "나는 고양이로소이다" --draw`

    * `regard translate runs/x < news.ko > news.en`

    * `regard translate runs/x news.ko --out news.en --alignments news.links --page news.html`

    * `regard translate runs/x news.ko --beam 10 --best 10 > news.10-best`

    * `regard translate runs/x news.ko --sample --temperature 0.7 --seed 3`
    """
    if draw and (best > 1 or scores):
        raise ArgumentError(message("--draw", "a drawing shows one translation, with its score"))
    search = chosen_search(
        beam,
        length_penalty,
        best,
        greedy,
        max_length,
        sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    shown, lines, notes = TranslationPage(page), given_lines(files, text), Notes()
    looking = draw or shown.enabled or alignments is not None
    translator = opened(
        run,
        checkpoint,
        device,
        threads,
        search=search,
        tokens_per_batch=batch,
        longest=longest,
        overlong=overlong,
        look="*cross" if looking else None,
        unit=unit,
    )
    asked = Asked(out, alignments, best, scores, draw, probabilities)
    write_all(translator.stream(lines, at_once or (1 if lines.keyboard else AT_ONCE)), asked, shown, notes)
    shown.save(f"Translations by {run.name or run}", describe_search(search))
    tell(notes, lines)


@dataclass(frozen=True)
class Asked:
    """Where translations and their alignments go, and how they are printed."""

    out: Path | None = None
    alignments: Path | None = None
    best: int = 1
    scores: bool = False
    draw: bool = False
    probabilities: bool = False

    def printed(self, found: Translation, number: int) -> Iterator[str]:
        """The lines that a translation is printed as; one, unless more were asked for.

        >>> list(Asked(scores=True).printed(Translation("", ""), number=1))
        ['0.0000\\t']
        """
        if self.draw:
            yield f"{found.entry()}\n"
        elif self.best > 1:
            for rank, each in enumerate((found, *found.others), 1):
                yield f"{number}\t{rank}\t{each.ranking:.4f}\t{each.score:.4f}\t{each.text}"
        else:
            yield f"{found.score:.4f}\t{found.text}" if self.scores else found.text


def write_all(translations: Iterator[Translation], asked: Asked, page: TranslationPage, notes: Notes) -> None:
    """Write translations as they come, and what goes beside them; report unknown words at the end."""
    unknown = UnknownWords()
    with ExitStack() as stack:
        write = stack.enter_context(writing(asked.out))
        link = None if asked.alignments is None else stack.enter_context(writing(asked.alignments))
        for number, found in enumerate(translations, 1):
            notes.add(number, found.notes)
            unknown.add(number, found)
            page.add(found)
            if link is not None:
                link(aligned(found, asked.probabilities))
            if asked.draw and asked.out is None:
                Console(highlight=False).print(found, "")
            else:
                for line in asked.printed(found, number):
                    write(line)
    unknown.say()


def aligned(found: Translation, probabilities: bool = False) -> str:
    """The alignment of a translation; raises where the model cannot tell."""
    if found.alignment is None:
        problem = "the model does not look at its source, so there are no alignments"
        raise ArgumentError(message("--alignments", problem, hint="bahdanau, luong and transformer do"))
    return found.alignment.written(probabilities=probabilities)
