"""regard generate: continue prompts with a language model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from regard.cli.decoding_options import PENALTY, SAMPLING, SEARCHING, beam_size, max_length, n_best, search_of
from regard.cli.open_runs import open_task
from regard.cli.options import RUN, batch_tokens, but, command
from regard.cli.predict import CheckedInputs, drawing_option, ranked_lines, result_files, write_results
from regard.data.line_io import Lines, say
from regard.data.tokenizers.tokenizer import clean
from regard.decoding import Beam, Search
from regard.errors import ArgumentError, message
from regard.sites import declared_sites
from regard.tasks.language import GeneratedText, LanguageRun
from regard.tasks.language.run import check_stop
from regard.training.command_options import CommandOption, several
from regard.training.interrupts import EXIT_STATUS, interruptible

AT_ONCE = 256
"""Number of prompts that are continued together."""


@command(
    RUN,
    several("--prompt", "The beginning of a text to continue.", "TEXT"),
    CommandOption(
        "--prompt-file",
        "File with one prompt per line; - is standard input. May be repeated. Without --prompt and "
        "--prompt-file, standard input is read.",
        "FILE",
        list[str],
    ),
    "encoding",
    "output",
    but("json", "Print a JSON object for each prompt: text, tokens, log-probabilities and stop reason."),
    but("draw", "Draw the attention of every layer in the terminal."),
    but("page", "Also write an HTML page with the texts and the attention of every layer."),
    max_length("--max-new-tokens", "Maximum number of tokens to generate per text.", default=100),
    several(
        "--stop",
        "Stop generating a text when it contains this string; the string itself is left out.",
        "TEXT",
        panel=SEARCHING,
    ),
    beam_size(
        "Use beam search with this beam size, instead of greedy search. Without --sample, --length-penalty "
        "and --n-best use beam search too.",
        None,
    ),
    PENALTY,
    n_best(
        "Number of texts per prompt: random samples with --sample, otherwise the best texts of beam search. "
        "Without --beam-size, the beam size is 5 or the value of --n-best, whichever is larger."
    ),
    *SAMPLING,
    batch_tokens("Batch size in tokens, including the tokens to generate.", 4096),
    "checkpoint",
    "device",
    "threads",
)
def generate(run: Path, prompt: list[str] | None, prompt_file: list[str] | None, **options: Any) -> None:
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
    files = result_files(options, "prompt", undrawn=["--n-best"])
    search = _search(options)
    check_stop(options["stop"] or (), "--stop")
    readers = _readers(prompt, prompt_file, options["encoding"])
    texts = ["\n".join(each) for each in readers] if prompt else readers[0]
    language: LanguageRun = open_task("language", run, options)
    drawn = drawing_option(options, files)
    if drawn and not declared_sites(language.model):
        say(f"{drawn}: the model has no attention, so none is drawn")

    def checked(text: str) -> str:
        language.encode_prompt(text, "--prompt" if prompt else readers[0].where)
        return text

    def plain(result: GeneratedText, number: int) -> Iterable[str]:
        if streamed or options["n_best"] == 1:
            return [] if streamed else [result.whole_text]
        every = (result, *result.others) if result.continued else ()
        return ranked_lines(number, ((each.ranking, each.log_probability, each.whole_text) for each in every))

    inputs = CheckedInputs(texts, checked, "prompt", skip=not prompt, keep=True)
    how: dict[str, Any] = {"search": search, "max_new_tokens": options["max_new_tokens"]}
    how |= {"stop": options["stop"] or (), "tokens_per_batch": options["batch_tokens"]}
    how["look"] = "*" if drawn else None
    plain_text = options["output"] is None and not options["json"] and not options["draw"]
    one = len(prompt or ()) == 1 and options["n_best"] == 1 and not isinstance(search, Beam)
    streamed = plain_text and one and sys.stdout.isatty()  # the text appears token by token
    title = f"Texts by {run.name or run}"
    with interruptible("stopping: press Ctrl-C again to exit without output") as interruption:
        how["stopping"] = interruption
        if streamed:
            results: Iterable[GeneratedText] = (_show(language, text, **how) for text in inputs)
        else:
            at_once = 1 if any(each.keyboard for each in readers) else AT_ONCE
            results = language.stream(inputs, at_once, skip_invalid=inputs.skip, **how)
        write_results(results, options, plain, files, title, inputs=inputs, readers=readers)
    if inputs.error is not None and inputs.invalid == inputs.read:
        raise inputs.error
    inputs.status("are not continued")
    if interruption:
        say(f"interrupted by {interruption.cause}: the output ends here")
        raise typer.Exit(EXIT_STATUS[interruption.cause])


def _search(options: Mapping[str, Any]) -> Search:
    """Return the search that the options select.

    With --sample, the search samples. Otherwise it is beam search if --beam-size, --length-penalty or
    --n-best is set, and greedy search if none of these options is set.
    """
    unused = [name for name in ("temperature", "top_k", "top_p", "seed") if options[name] is not None]
    if unused and not options["sample"]:
        option = f"--{unused[0].replace('_', '-')}"
        raise ArgumentError(message(option, f"{option} requires --sample", hint=f"--sample {option} ..."))
    beam = options["beam_size"] is not None or options["length_penalty"] is not None or options["n_best"] > 1
    return search_of(options, greedy=not options["sample"] and not beam)


def _readers(prompt: list[str] | None, files: list[str] | None, encoding: str | None) -> list[Lines]:
    """Return a reader for each --prompt, or one for all prompts of --prompt-file or of standard input."""
    if prompt and files:
        raise ArgumentError(message("--prompt", "cannot be combined with --prompt-file"))
    if list(files or ()).count("-") > 1:
        raise ArgumentError(message("--prompt-file -", "standard input can be read only once"))
    if prompt:
        return [Lines([os.fsencode(each)]) for each in prompt]
    lines = Lines(files or ["-"], encoding=encoding)
    if lines.keyboard:
        say("reading prompts from standard input; end with Ctrl-D")
    return [lines]


def _show(language: LanguageRun, text: str, **options: Any) -> GeneratedText:
    """Continue a prompt, and print the text token by token while it is generated.

    options: arguments of LanguageRun.generate().
    """
    begun = clean(text)

    def put(text: str) -> None:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()

    def show(piece: str) -> None:
        nonlocal begun
        put(piece if begun else piece.lstrip())
        begun = begun or piece

    sys.stdout.flush()
    put(begun)
    result = language.generate(text, on_text=show, **options)
    put("\n")
    return result
