"""regard generate: continue prompts with a language model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.json_output import json_text
from regard.cli.pair_file_options import Encoding
from regard.cli.printable_console import printable_console
from regard.cli.run_options import (
    BATCH_TOKENS,
    LENGTH_PENALTY,
    SEARCHING,
    CheckpointName,
    Device,
    LengthPenalty,
    OutputFile,
    RunFolder,
    Sampling,
    SamplingSeed,
    Temperature,
    Threads,
    TopK,
    TopP,
    batch_tokens_option,
    beam_size_option,
    build_search,
    length_option,
    n_best_option,
    open_task,
)
from regard.data.line_io import Lines, Notes, place_name, say, tell, writing
from regard.data.tokenizers.tokenizer import clean
from regard.decoding import Beam, Sample, Search
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, message, shown
from regard.sites import declared_sites
from regard.tasks.language.text_stream import check_stop
from regard.training.interrupts import EXIT_STATUS, interruptible
from regard.viewing.html_document import check_ending

if TYPE_CHECKING:
    from regard.tasks.language import GeneratedText, LanguageRun

__all__ = ["generate"]

AT_ONCE, MAX_NEW_TOKENS = 256, 100
"""AT_ONCE: number of prompts that are continued together.

MAX_NEW_TOKENS: default of --max-new-tokens."""

ON_PAGE = 100
"""Maximum number of texts on a page. It is small because each text has a picture for every layer."""

REPORTED = 8
"""Number of invalid prompts that are reported one by one.

A prompt is invalid if all its words are unknown or if it is too long. Further invalid prompts are only
counted."""

DRAWN_WIDTH = 100
"""The width, in characters, of attention that is drawn as text in a file (--draw with --output)."""

Prompt = Annotated[
    list[str] | None,
    typer.Option("--prompt", metavar="TEXT", help="The beginning of a text to continue. May be repeated."),
]
PromptFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt-file",
        metavar="FILE",
        help="File with one prompt per line; - is standard input. May be repeated. Without --prompt and "
        "--prompt-file, standard input is read.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print a JSON object for each prompt: text, tokens, log-probabilities and stop reason.",
    ),
]
Draw = Annotated[bool, typer.Option("--draw", help="Draw the attention of every layer in the terminal.")]
Page = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Also write an HTML page with the texts and the attention of every layer.",
    ),
]
MaxNewTokens = Annotated[
    int,
    length_option("--max-new-tokens", "Maximum number of tokens to generate per text."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="Stop generating a text when it contains this string; the string itself is left out. May be "
        "repeated.",
        rich_help_panel=SEARCHING,
    ),
]
BeamSearch = Annotated[
    int | None,
    beam_size_option(
        "Use beam search with this beam size, instead of greedy search. Without --sample, --length-penalty "
        "and --n-best use beam search too."
    ),
]
NBest = Annotated[
    int,
    n_best_option(
        "Number of texts per prompt: random samples with --sample, otherwise the best texts of beam search. "
        "Without --beam-size, the beam size is 5 or the value of --n-best, whichever is larger."
    ),
]
BatchTokens = Annotated[int, batch_tokens_option("Batch size in tokens, including the tokens to generate.")]


def generate(
    run: RunFolder,
    prompt: Prompt = None,
    prompt_file: PromptFiles = None,
    encoding: Encoding = None,
    output: OutputFile = None,
    json: Json = False,
    draw: Draw = False,
    page: Page = None,
    max_new_tokens: MaxNewTokens = MAX_NEW_TOKENS,
    stop: Stop = None,
    beam_size: BeamSearch = None,
    length_penalty: LengthPenalty = LENGTH_PENALTY,
    n_best: NBest = 1,
    sample: Sampling = False,
    temperature: Temperature = Sample.temperature,
    top_k: TopK = Sample.top_k,
    top_p: TopP = Sample.top_p,
    seed: SamplingSeed = Sample.seed,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Continue prompts with a language model.

    A text ends at the end of a line (the token `</s>`), before a stop string, or at the maximum length.
    The output is one line per prompt: the prompt and its continuation. With --n-best N, each prompt gives N
    lines with five fields, separated by tabs: number of the prompt, rank, score with length penalty,
    log-probability, text. A prompt in a file is not continued if all its words are unknown or if it is too
    long; standard error reports it. A single text that is printed in a terminal appears token by token.
    Ctrl-C ends the generation; the text generated so far is printed.

    Examples:

    * `regard generate runs/lm --prompt "I learned"`

    * `regard generate runs/lm --prompt "I learned" --sample --top-k 20 --temperature 0.8 --seed 3`

    * `regard generate runs/lm --prompt "I learned" --beam-size 5 --n-best 3`

    * `regard generate runs/lm --prompt-file prompts.txt --stop "." --json --output texts.jsonl`
    """
    if draw and (json or n_best > 1):
        raise ArgumentError(message("--draw", "cannot be combined with --json or --n-best"))
    if page is not None:
        check_ending(page, ".html", "use the ending of an HTML file")
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = _search(beam_size, length_penalty, n_best, sample, sampling)
    check_stop(stop or (), "--stop")
    prompts = _given_prompts(prompt, prompt_file, encoding)
    language: LanguageRun = open_task("language", run, checkpoint, device, threads)
    if (draw or page) and not declared_sites(language.model):
        say(f"{'--draw' if draw else '--page'}: the model has no attention, so none is drawn")
    form = OutputForm(output, json, draw, n_best)
    options: dict[str, Any] = {"search": search, "max_new_tokens": max_new_tokens, "stop": stop or ()}
    options |= {"look": "*" if draw or page else None, "tokens_per_batch": batch_tokens}
    inputs = Prompts(prompts, language, skip_invalid=not prompt)
    with interruptible("stopping: press Ctrl-C again to exit without output") as interruption:
        if form.can_stream(search, prompt):
            form = replace(form, shown=True)
            texts = iter([_show(language, inputs, stopping=interruption, **options)])
        else:
            at_once = 1 if prompts.keyboard else AT_ONCE
            options["skip_invalid"] = inputs.skip_invalid
            texts = language.stream(inputs, at_once, stopping=interruption, **options)
        results = write_texts(texts, form, inputs, keep=ON_PAGE if page is not None else 0)
    if page is not None:
        from regard.tasks.language.text_result import save_texts

        save_texts(page, results, f"Texts by {run.name or run}")
        say(f"Wrote {shown(page)}")
    if interruption:
        say(f"interrupted by {interruption.cause}: the output ends here")
        raise typer.Exit(EXIT_STATUS[interruption.cause])


def _search(
    beam_size: int | None, length_penalty: str | None, n_best: int, sample: bool, sampling: dict[str, Any]
) -> Search:
    """Return the search algorithm that the options of the command line select.

    With --sample, the algorithm is sampling. Otherwise it is beam search if --beam-size, --length-penalty or
    --n-best is set, and greedy search if none of these options is set.

    sampling: the values of --temperature, --top-k, --top-p and --seed, which require --sample.
    """
    unused = [name for name, value in sampling.items() if value is not None and not sample]
    if unused:
        option = f"--{unused[0].replace('_', '-')}"
        raise ArgumentError(message(option, f"{option} requires --sample", hint=f"--sample {option} ..."))
    greedy = not sample and beam_size is None and length_penalty is None and n_best == 1
    return build_search(beam_size, length_penalty, n_best, greedy, sample=sample, **sampling)


def _given_prompts(prompt: Sequence[str] | None, files: Sequence[str] | None, encoding: str | None) -> Lines:
    """Return the prompts of --prompt or --prompt-file; without these options, the lines of standard input."""
    if prompt and files:
        raise ArgumentError(message("--prompt", "cannot be combined with --prompt-file"))
    if list(files or ()).count("-") > 1:
        raise ArgumentError(message("--prompt-file -", "standard input can be read only once"))
    if prompt:
        return Lines([os.fsencode(each) for each in prompt])
    lines = Lines(list(files or ["-"]), encoding=encoding)
    if lines.keyboard:
        say("reading prompts from standard input; end with Ctrl-D")
    return lines


@dataclass
class Prompts:
    """An iterable of all prompts, which are checked while they are read. Errors name the file and the line.

    lines: the prompts of --prompt as bytes, or the files with prompts.
    language: the language model.
    skip_invalid: whether a prompt that the model cannot read is reported, instead of raising an error.
    repaired: number of lines so far that had invalid UTF-8.
    skipped: number of prompts so far that the model cannot read.
    first_error: the error of the first prompt that the model cannot read.
    """

    lines: Lines
    language: LanguageRun
    skip_invalid: bool = False
    repaired: int = 0
    skipped: int = 0
    first_error: ArgumentError | None = None

    def __iter__(self) -> Iterator[str]:
        for place in self.lines.places:
            # In a file, each line is a prompt. A prompt on the command line may have several lines or none.
            part = Lines([place], encoding=self.lines.encoding)
            texts = ["\n".join(part)] if isinstance(place, bytes) else part
            for text in texts:
                name = "--prompt" if isinstance(place, bytes) else f"{place_name(place)}, line {part.read}"
                self.repaired += part.repaired
                part.repaired = 0
                self._check(text, name)
                yield text

    def _check(self, text: str, name: str) -> None:
        """Raise ArgumentError if the model cannot read a prompt; if skip_invalid is set, print a message.

        name: where the prompt is from, for the message: file and line, or "--prompt".
        """
        try:
            self.language.generator.encode_prompt(text, name)
        except ArgumentError as error:
            if not self.skip_invalid:
                raise
            self.first_error = self.first_error or error
            self.skipped += 1
            if self.skipped <= REPORTED:
                say(f"{str(error).splitlines()[0]}; the prompt is not continued")

    def report_skipped(self, count: int) -> None:
        """Report how many prompts the model could not read; raise an error if it could read none.

        count: number of prompts.
        """
        if self.first_error is not None and self.skipped == count:
            raise self.first_error
        if self.skipped > REPORTED:
            say(f"{self.skipped:,} of {count:,} prompts are not continued; the first {REPORTED} are listed")


def _show(language: LanguageRun, prompts: Prompts, **options: Any) -> GeneratedText:
    """Continue the only prompt in `prompts`, and print the text token by token while it is generated.

    options: arguments of LanguageRun.generate().
    """
    (text,) = prompts
    begun = clean(text)

    def show(piece: str) -> None:
        nonlocal begun
        sys.stdout.buffer.write((piece if begun else piece.lstrip()).encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        begun = begun or piece

    sys.stdout.flush()
    sys.stdout.buffer.write(begun.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    result = language.generate(text, on_text=show, **options)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    return result


@dataclass(frozen=True)
class OutputForm:
    """Where generated texts are written, and in which format.

    output: the file to write; None for standard output.
    json: whether each text is written as a JSON object.
    draw: whether the attention is drawn below each text.
    n_best: number of texts for each prompt.
    shown: whether the text has already been printed token by token. Then it is not written again.
    """

    output: Path | None = None
    json: bool = False
    draw: bool = False
    n_best: int = 1
    shown: bool = False

    def can_stream(self, search: Search, prompt: Sequence[str] | None) -> bool:
        """Return whether to print the generated text token by token.

        This requires one prompt from --prompt, one text without beam search, and a terminal as output.
        """
        plain = self.output is None and not self.json and not self.draw and self.n_best == 1
        return plain and not isinstance(search, Beam) and len(prompt or ()) == 1 and sys.stdout.isatty()

    def format(self, result: GeneratedText, number: int) -> Iterator[str]:
        """Yield the lines of output for a prompt: n_best lines if n_best > 1, otherwise one.

        number: the number of the prompt, which n-best lines begin with.
        """
        if self.shown:
            return
        if self.json:
            yield json_text(result.to_dict())
        elif self.draw:
            console = printable_console(width=DRAWN_WIDTH)
            with console.capture() as capture:
                console.print(result)
            yield capture.get()
        elif self.n_best > 1:
            for rank, each in enumerate((result, *result.others) if result.continued else (), 1):
                scores = f"{each.ranking:.4f}\t{each.log_probability:.4f}"
                yield f"{number}\t{rank}\t{scores}\t{each.whole_text}"
        else:
            yield result.whole_text


def write_texts(
    texts: Iterator[GeneratedText], form: OutputForm, inputs: Prompts, *, keep: int
) -> list[GeneratedText]:
    """Write each text as soon as it is generated. Return the first `keep` texts, for the HTML page.

    At the end, report problems of the prompts on standard error.
    """
    results: list[GeneratedText] = []
    notes, unknown, tokenizer = Notes(), UnknownWords(), inputs.language.tokenizer
    number = 0
    with writing(form.output) as write:
        for number, result in enumerate(texts, 1):
            notes.add(number, result.notes)
            if result.continued:  # otherwise Prompts has already reported the unknown words
                unknown.add_words(number, tokenizer.unit, result.unknown, tokenizer.bytewise)
            if number <= keep:
                results.append(result)
            elif number == keep + 1 and keep:
                say(f"--page: the page has the first {keep} texts")
            if form.draw and form.output is None:
                printable_console().print(result, "")
            else:
                for line in form.format(result, number):
                    write(line)
        inputs.report_skipped(number)
    tell(notes, inputs)
    unknown.say()
    return results
