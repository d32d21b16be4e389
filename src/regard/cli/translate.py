"""regard translate: translate text line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from regard.cli import bounds
from regard.cli.json_output import json_text
from regard.cli.pair_file_options import Encoding
from regard.cli.printable_console import printable_console
from regard.cli.run_options import (
    BEAM_SIZE,
    LENGTH_PENALTY,
    MAX_SOURCE_LENGTH,
    BatchTokens,
    BeamSize,
    CheckpointName,
    Device,
    GreedySearch,
    LengthPenalty,
    MaxLength,
    MaxSourceLength,
    NBest,
    OutputFile,
    Overlong,
    PageFile,
    Precision,
    RunFolder,
    Sampling,
    SamplingSeed,
    Temperature,
    Threads,
    TopK,
    TopP,
    Unit,
    build_search,
    open_run,
)
from regard.data.line_io import Notes, given_lines, say, tell, writing
from regard.decoding import Sample, Translation
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, message
from regard.roles import CROSS
from regard.tasks.text_file_checks import check_text_files, report_tables
from regard.tasks.translation.translation_page import TranslationPage, describe_search

__all__ = ["translate"]

AT_ONCE = 4096
"""Default number of input lines that are translated together. They are sorted by length for less padding."""

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILES",
        help="Files with one sentence per line; - is standard input. Without FILES and --text, standard "
        "input is read.",
    ),
]
Sentences = Annotated[
    list[str] | None, typer.Option("--text", metavar="TEXT", help="A sentence to translate. May be repeated.")
]
Scores = Annotated[
    bool,
    typer.Option(
        "--scores", help="Print the log-probability of each translation before it, separated by a tab."
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print a JSON object for each line: source, text, tokens, log-probabilities, word alignment, "
        "notes, and the other translations of --n-best.",
    ),
]
Draw = Annotated[bool, typer.Option("--draw", help="Draw the attention of each translation in the terminal.")]
Aligned = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also write the word alignments to this file, one line per sentence: 0-2 links source word 0 "
        "to target word 2 (Pharaoh format).",
    ),
]
Weighted = Annotated[
    bool,
    typer.Option(
        "--probabilities", help="With --alignments: also write the weight of each link, e.g. 0-2:0.830."
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        metavar="INT",
        help="Number of input lines that are read and translated together, before any output is written.",
        show_default=f"{AT_ONCE}; 1 if you type the lines in a terminal",
        min=1,
        max=bounds.LINES,
    ),
]


def translate(
    run: RunFolder,
    files: Files = None,
    text: Sentences = None,
    encoding: Encoding = None,
    output: OutputFile = None,
    scores: Scores = False,
    json: Json = False,
    draw: Draw = False,
    page: PageFile = None,
    alignments: Aligned = None,
    probabilities: Weighted = False,
    unit: Unit = "auto",
    at_once: AtOnce = None,
    beam_size: BeamSize = BEAM_SIZE,
    length_penalty: LengthPenalty = LENGTH_PENALTY,
    n_best: NBest = 1,
    greedy: GreedySearch = False,
    sample: Sampling = False,
    temperature: Temperature = Sample.temperature,
    top_k: TopK = Sample.top_k,
    top_p: TopP = Sample.top_p,
    seed: SamplingSeed = Sample.seed,
    max_length: MaxLength = None,
    max_source_length: MaxSourceLength = MAX_SOURCE_LENGTH,
    overlong: Overlong = "split",
    batch_tokens: BatchTokens = None,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    precision: Precision = "auto",
    threads: Threads = None,
) -> None:
    """Translate text line by line: each line of input gives one line of output.

    Files are UTF-8 or --encoding, plain or gzip. A few invalid bytes are replaced; a text that is probably in
    another encoding is an error that names it. Warnings on standard error name invalid bytes, lines that are
    too long, translations that reached the maximum length, and unknown words.

    With --n-best N, each source line gives N output lines. An output line has five fields, separated by tabs:
    number of the source line (the first is 1), rank, score with length penalty, log-probability, text.
    Exception: a source line that is split because it is too long gives only one translation.

    Examples:

    * `regard translate runs/x --text "나는 고양이로소이다" --draw`

    * `regard translate runs/x < news.ko > news.en`

    * `regard translate runs/x news.ko --output news.en --alignments news.links --page news.html`

    * `regard translate runs/x news.ko --beam-size 10 --n-best 10 > news.10-best`

    * `regard translate runs/x news.ko --sample --temperature 0.7 --seed 3`

    * `regard translate runs/x news.ko --n-best 5 --json --output news.jsonl`
    """
    form = OutputForm(output, alignments, n_best, scores, draw, probabilities, json)
    form.check()
    numbers: tuple[float | None, ...] = (temperature, top_k, top_p, seed)
    sampling = dict(zip(("temperature", "top_k", "top_p", "seed"), numbers, strict=True))
    search = build_search(beam_size, length_penalty, n_best, greedy, max_length, sample, **sampling)
    html, lines, notes = TranslationPage(page), given_lines(files, text, encoding=encoding), Notes()
    check_text_files(files or (), encoding)
    report_tables(files or (), "write the sentences to a file of their own, e.g. with cut -f1", encoding)
    with_attention = draw or json or html.enabled or alignments is not None
    translator = open_run(
        run,
        checkpoint,
        device,
        threads,
        search=search,
        tokens_per_batch=batch_tokens,
        longest=max_source_length,
        overlong=overlong,
        look=CROSS if with_attention else None,
        unit=unit,
        precision=precision,
    )
    if translator.quality:
        say(translator.quality)
    at_once = at_once or (1 if lines.keyboard else AT_ONCE)
    write_translations(translator.stream(lines, at_once), form, html, notes)
    html.save(f"Translations by {run.name or run}", describe_search(search))
    tell(notes, lines)


@dataclass(frozen=True)
class OutputForm:
    """Where translations and their alignments are written, and in which format.

    output: the file for translations; None for standard output.
    alignments: the file for word alignments; None for no file.
    n_best: number of translations for each input line.
    scores: whether the log-probability is written before each translation.
    draw: whether the attention of each translation is drawn.
    probabilities: whether the weight of each link is written to `alignments`.
    json: whether a JSON object is written for each input line.
    """

    output: Path | None = None
    alignments: Path | None = None
    n_best: int = 1
    scores: bool = False
    draw: bool = False
    probabilities: bool = False
    json: bool = False

    def check(self) -> None:
        """Raise ArgumentError if options cannot be combined."""
        if self.draw and (self.n_best > 1 or self.scores or self.json):
            problem = "cannot be combined with --n-best, --scores or --json"
            raise ArgumentError(message("--draw", problem))
        if self.json and self.scores:
            problem, hint = "cannot be combined with --scores", "the JSON objects contain the score"
            raise ArgumentError(message("--json", problem, hint=hint))
        if self.probabilities and self.alignments is None:
            raise ArgumentError(message("--probabilities", "this option requires --alignments FILE"))

    def format(self, translation: Translation, number: int) -> Iterator[str]:
        """Yield the output lines for one input line: n_best lines if n_best > 1, otherwise one.

        With `json`, it is one line: the best translation, with the others in the list "others".

        number: the number of the input line, from 1.

        >>> list(OutputForm(scores=True).format(Translation("", ""), number=1))
        ['0.0000\\t']
        """
        if self.json:
            yield json_text(translation.to_dict())
        elif self.draw:
            yield f"{translation.entry()}\n"
        elif self.n_best > 1:
            for rank, each in enumerate((translation, *translation.others), 1):
                yield f"{number}\t{rank}\t{each.ranking:.4f}\t{each.score:.4f}\t{each.text}"
        else:
            yield f"{translation.score:.4f}\t{translation.text}" if self.scores else translation.text


def write_translations(
    translations: Iterator[Translation], form: OutputForm, page: TranslationPage, notes: Notes
) -> None:
    """Write each translation and its alignment as soon as it is computed; report unknown words at the end."""
    unknown = UnknownWords()
    with ExitStack() as stack:
        write = stack.enter_context(writing(form.output))
        link = None if form.alignments is None else stack.enter_context(writing(form.alignments))
        for number, translation in enumerate(translations, 1):
            notes.add(number, translation.notes)
            unknown.add(number, translation)
            page.add(translation)
            if link is not None:
                link(pharaoh_line(translation, form.probabilities))
            if form.draw and form.output is None:
                printable_console().print(translation, "")
            else:
                for line in form.format(translation, number):
                    write(line)
    if not form.draw:  # a drawing has a note with the unknown words of its line
        unknown.say()


def pharaoh_line(translation: Translation, probabilities: bool = False) -> str:
    """Return the word alignment of a translation in Pharaoh format, such as "0-0 1-2".

    Raise ArgumentError if the model has no cross-attention.

    probabilities: whether to write the weight of each link.
    """
    if translation.alignment is None:
        problem = "the model has no attention to its source, so there are no alignments"
        hint = "use a model with attention: bahdanau, luong, lstmn or transformer"
        raise ArgumentError(message("--alignments", problem, hint=hint))
    return translation.alignment.written(probabilities=probabilities)
