"""regard solve: answer sequences of an algorithmic task with a trained model."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import bounds
from regard.cli.json_output import json_text
from regard.cli.printable_console import printable_console
from regard.cli.run_options import CheckpointName, Device, RunFolder, Threads, open_task, output_option
from regard.data.line_io import given_lines, say, writing
from regard.errors import ArgumentError, message
from regard.tasks.algorithms.data import sequences_in
from regard.tasks.algorithms.solution_pictures import SolutionPictures
from regard.tasks.picture_outputs import is_picture
from regard.viewing.html_document import SUFFIXES

__all__ = ["solve"]

DRAWN_WIDTH = 100
"""The width, in characters, of drawings that are written to a file."""

LONGEST = 10_000
"""The largest length and number of repeats of a generated sequence."""

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILES",
        help="Files with one sequence per line, as JSON objects; - is standard input. Without FILES and "
        "--sequence, random sequences are generated.",
    ),
]
Sequence = Annotated[
    list[str] | None,
    typer.Option("--sequence", metavar="JSON", help="A sequence as a JSON object. May be repeated."),
]
Count = Annotated[
    int,
    typer.Option(
        "--sequences", metavar="INT", help="Number of sequences to generate.", min=1, max=bounds.LINES
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        metavar="INT",
        help="Length of the generated sequences.",
        min=1,
        max=LONGEST,
        show_default="the largest length in training",
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        "--repeats",
        metavar="INT",
        help="Number of repeats of the generated sequences of repeat-copy.",
        min=1,
        max=LONGEST,
        show_default="the largest number of repeats in training",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="INT", help="Random seed of the generated sequences.", min=0)
]
Slots = Annotated[
    int | None,
    typer.Option(
        "--slots",
        metavar="INT",
        help="Number of slots of the tape of a neural Turing machine.",
        min=1,
        max=1_000_000,
        show_default="as in training",
    ),
]
OutputFile = Annotated[
    Path | None,
    output_option(
        "Write to this file instead of standard output. For one sequence, it can be a picture of the "
        "heads on the tape: .png, .svg, .pdf or .gif (animation).",
        SUFFIXES,
    ),
]
PageFile = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Also write an HTML page with a picture of the heads on the tape for each sequence.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object per sequence: answer, probabilities, scores, and the slot that each head "
        "points to at each step.",
    ),
]
Draw = Annotated[bool, typer.Option("--draw", help="Draw the heads on the tape in the terminal.")]


def solve(
    run: RunFolder,
    files: Files = None,
    sequence: Sequence = None,
    sequences: Count = 1,
    length: Length = None,
    repeats: Repeats = None,
    seed: Seed = 0,
    slots: Slots = None,
    output: OutputFile = None,
    page: PageFile = None,
    json: Json = False,
    draw: Draw = False,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Answer sequences of an algorithmic task with a trained model.

    Sequences are generated, or given as JSON objects, one per line of a file. The fields depend on the task
    of the run: "vectors" for copy; "vectors" and "repeats" for repeat-copy; "items" and "query" for
    associative-recall; "bits" for n-grams; "vectors" and "priorities" for priority-sort; "writes" and
    "queries" for overwrite. A vector is a text of bits, such as "10110010".

    Each line of the output has three fields, separated by tabs: the number of wrong bits; the cross-entropy
    of the right answer in bits ("bits per sequence"); and the answered vectors.

    Examples:

    * `regard solve runs/copy --draw`

    * `regard solve runs/copy --length 60 --sequences 10`

    * `regard solve runs/copy --sequence '{"vectors": ["10110010", "01101001"]}'`

    * `regard solve runs/copy sequences.jsonl --json --output answers.jsonl`

    * `regard solve runs/copy --output heads.gif`
    """
    if draw and json:
        raise ArgumentError(message("--draw", "cannot be combined with --json"))
    given = bool(files or sequence)
    if given and (length is not None or repeats is not None or sequences != 1):
        option = "--length" if length is not None else "--repeats" if repeats is not None else "--sequences"
        raise ArgumentError(message(option, "this option is only for generated sequences"))
    picture = output if is_picture(output) else None
    output = None if picture else output
    pictures = SolutionPictures(picture, page, len(sequence or ()) if sequence else sequences)
    options = {} if slots is None else {"slots": slots}
    solver = open_task("algorithms", run, checkpoint, device, threads, **options)
    if (draw or pictures.enabled) and not solver.has_tape:
        option = "--draw" if draw else "--output" if picture else "--page"
        raise ArgumentError(message(option, "this model has no tape to draw"))
    look = solver.has_tape and (draw or json or pictures.enabled)
    if given:
        results = solver.stream(sequences_in(given_lines(files, sequence, "--sequence")), look=look)
    else:
        results = solver.generate(sequences, _sizes(solver, length, repeats), seed, look=look)
    _write(results, output, pictures, json, draw)


def _sizes(solver: Any, length: int | None, repeats: int | None) -> dict[str, int]:
    if repeats is not None and "repeats" not in solver.task.ranges:
        problem = f"sequences of the task {solver.task.name} have no repeats"
        raise ArgumentError(message("--repeats", problem))
    named = {"length": length, "repeats": repeats}
    return {name: value for name, value in named.items() if value is not None}


def _write(
    results: Iterator[Any], output: Path | None, pictures: SolutionPictures, as_json: bool, draw: bool
) -> None:
    """Write the answer to each sequence as soon as it is computed, then the pictures, then the mean scores.

    results: the answers.
    output: the file to write to; None for standard output.
    pictures: the picture and the page to write.
    as_json: write JSON objects.
    draw: draw the heads on the tape.
    """
    bits, wrong, count = 0.0, 0, 0
    with writing(output) as write:
        for result in results:
            pictures.add(result)
            bits, wrong, count = bits + result.bits, wrong + result.wrong_bits, count + 1
            if draw and output is None:
                printable_console().print(result, "")
            else:
                write(_format(result, as_json, draw))
    pictures.save()
    if count > 1:
        say(f"{count:,} sequences: {bits / count:.4g} bits per sequence, {wrong / count:.4g} wrong bits")


def _format(result: Any, as_json: bool, draw: bool) -> str:
    """Return the text that is printed for the answer to one sequence.

    as_json: return a JSON object.
    draw: return a drawing of the heads on the tape.

    By default, the text is the number of wrong bits, the cross-entropy in bits, and the answered vectors,
    with tabs between them.
    """
    if as_json:
        return json_text(result.to_dict())
    if draw:
        file = io.StringIO()
        printable_console(file=file, width=DRAWN_WIDTH).print(result)
        return file.getvalue()
    return f"{result.wrong_bits}\t{result.bits:.4f}\t{result}"
