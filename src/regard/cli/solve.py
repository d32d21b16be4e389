"""regard solve: answer sequences of an algorithmic task with a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.cli.open_runs import open_task
from regard.cli.options import LINES, OF_RUN, RUN, but, command
from regard.cli.predict import drawing_option, result_files, write_results
from regard.data.line_io import given_lines, say
from regard.errors import ArgumentError, message
from regard.tasks.algorithms.data import sequences_in
from regard.tasks.algorithms.sequence_solver import Solution
from regard.training.command_options import integer, several
from regard.viewing.html_document import SUFFIXES

LONGEST = 10_000
"""The largest length and number of repeats of a generated sequence."""


@command(
    RUN,
    several(
        "files",
        "Files with one sequence per line, as JSON objects; - is standard input. Without FILES and "
        "--sequence, random sequences are generated.",
        "FILES",
    ),
    several("--sequence", "A sequence as a JSON object.", "JSON"),
    integer("--sequences", "Number of sequences to generate.", 1, LINES, default=1),
    integer(
        "--length",
        "Length of the generated sequences.",
        1,
        LONGEST,
        shown_default="the largest length in training",
    ),
    integer(
        "--repeats",
        "Number of repeats of the generated sequences of repeat-copy.",
        1,
        LONGEST,
        shown_default="the largest number of repeats in training",
    ),
    but("seed", "Random seed of the generated sequences.", most=None),
    integer(
        "--slots",
        "Number of slots of the tape of a neural Turing machine.",
        1,
        1_000_000,
        shown_default="as in training",
    ),
    but(
        "output",
        "Write to this file instead of standard output. For one sequence, it can be a picture of the "
        "heads on the tape: .png, .svg, .pdf or .gif (animation).",
    ),
    but("page", "Also write an HTML page with a picture of the heads on the tape for each sequence."),
    but(
        "json",
        "Print one JSON object per sequence: answer, probabilities, scores, and the slot that each head "
        "points to at each step.",
    ),
    but("draw", "Draw the heads on the tape in the terminal."),
    *OF_RUN,
)
def solve(run: Path, files: list[str] | None, sequence: list[str] | None, **options: Any) -> None:
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
    written = result_files(options, "sequence", SUFFIXES)
    given, count = bool(files or sequence), options["sequences"]
    sizes = {name: options[name] for name in ("length", "repeats") if options[name] is not None}
    if given and (sizes or count != 1):
        option = f"--{next(iter(sizes), 'sequences')}"
        raise ArgumentError(message(option, "this option is only for generated sequences"))
    written.expect(len(sequence) if sequence else count)
    slots = {} if options["slots"] is None else {"slots": options["slots"]}
    solver = open_task("algorithms", run, options, **slots)
    drawn = drawing_option(options, written)
    if drawn and not solver.has_tape:
        raise ArgumentError(message(drawn, "this model has no tape to draw"))
    look = solver.has_tape and bool(drawn or options["json"])
    if given:
        results = solver.stream(
            sequences_in(given_lines(files, sequence, "--sequence", tables=True)), look=look
        )
    else:
        if "repeats" in sizes and "repeats" not in solver.task.ranges:
            problem = f"sequences of the task {solver.task.name} have no repeats"
            raise ArgumentError(message("--repeats", problem))
        results = solver.generate(count, sizes, options["seed"], look=look)
    scores = list[tuple[float, int]]()

    def add(result: Solution) -> None:
        scores.append((result.bits, result.wrong_bits))

    def plain(result: Solution, number: int) -> Iterator[str]:
        yield f"{result.wrong_bits}\t{result.bits:.4f}\t{result}"

    write_results(results, options, plain, written, "Sequences on the tape", each=add)
    if len(scores) > 1:
        bits, wrong = (sum(each) / len(scores) for each in zip(*scores, strict=True))
        say(f"{len(scores):,} sequences: {bits:.4g} bits per sequence, {wrong:.4g} wrong bits")
