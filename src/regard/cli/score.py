"""regard score: print the log-probability of translations, or of lines of text with a language model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.json_output import json_text
from regard.cli.pair_options import (
    DEFAULT_COLUMNS,
    Columns,
    Encoding,
    Fields,
    JsonlFiles,
    PairFiles,
    SourceLines,
    TargetLines,
    TsvFiles,
)
from regard.cli.run_options import (
    MAX_SOURCE_LENGTH,
    TRANSLATOR_TOKENS,
    CheckpointName,
    Device,
    MaxSourceLength,
    OutputFile,
    RunFolder,
    Threads,
    batch_tokens_option,
    open_run,
    open_task,
    task_in_regard,
)
from regard.data.line_io import Lines, Notes, given_lines, place_name, say, tell, writing
from regard.data.pairs import in_batches
from regard.decoding import Scored
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, message, shell_word, shown
from regard.tasks.task_table import find_task
from regard.training.logs.live_table import perplexity

__all__ = ["score"]

AT_ONCE = 4096
"""Number of sentence pairs, or of input lines, that are scored together."""

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILES",
        help="For a language model: files with one text per line; - is standard input. Without FILES and "
        "--text, standard input is read.",
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="TEXT", help="For a language model: a text to score. May be repeated."),
]
BatchTokens = Annotated[
    int | None,
    batch_tokens_option("For a translator: batch size in source tokens.", show_default=TRANSLATOR_TOKENS),
]
Tokens = Annotated[
    bool,
    typer.Option(
        "--tokens",
        help="Print a JSON object for each input line or pair, with its tokens and their log-probabilities.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print a JSON object for each input line or pair, with its text, tokens, scores, unknown words "
        "and notes (warnings about the text).",
    ),
]


def score(
    run: RunFolder,
    files: Files = None,
    text: Texts = None,
    source: SourceLines = None,
    target: TargetLines = None,
    tsv: TsvFiles = None,
    jsonl: JsonlFiles = None,
    columns: Columns = DEFAULT_COLUMNS,
    fields: Fields = "source,target",
    encoding: Encoding = None,
    output: OutputFile = None,
    tokens: Tokens = False,
    json: Json = False,
    max_source_length: MaxSourceLength = MAX_SOURCE_LENGTH,
    batch_tokens: BatchTokens = None,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the log-probability of each target sentence given its source, or of each line of a text.

    For a translator, the input is sentence pairs (--source and --target, --tsv or --jsonl). The output is one
    number for each pair: the log-probability.

    For a language model, the input is the lines of FILES, of --text or of standard input. The output is three
    numbers for each input line, separated by tabs: log-probability, perplexity per token and perplexity per
    word. The log-probability is summed over the tokens of the line, including the end token `</s>`, which
    counts as a word too.

    The perplexity of all input is printed to standard error.

    Examples:

    * `regard score runs/x --source test.ko --target test.en`

    * `regard score runs/x --source test.ko --target test.en --tokens > scores.jsonl`

    * `regard score runs/x --tsv pairs.tsv --columns 2,1 --output scores.txt`

    * `regard translate runs/x test.ko | regard score runs/x --source test.ko --target -`

    * `regard score runs/lm --text "I learned CS" --json`

    * `regard score runs/lm test.txt --output scores.tsv`
    """
    loading = (run, checkpoint, device, threads)
    pairs = {"--source": source, "--target": target, "--tsv": tsv, "--jsonl": jsonl}
    form = "json" if json else "tokens" if tokens else ""
    kind = task_in_regard(run, "translation or language")
    if issubclass(kind, find_task("classification")):
        hint = f"use regard classify {shell_word(run)} FILES, which prints the probability of the label"
        raise ArgumentError(
            message(shown(run), "this run is a classifier, which regard score cannot use", hint=hint)
        )
    if issubclass(kind, find_task("language")):
        for option, given in pairs.items():
            if given:
                hint = f"use regard score {shell_word(run)} FILES, or --text TEXT"
                raise ArgumentError(
                    message(
                        option, "this option is for translators, but this run is a language model", hint=hint
                    )
                )
        _score_lines(
            given_lines(files, text, encoding=encoding), open_task("language", *loading), output, form
        )
        return
    if files or text:
        option = "--text" if text else "FILES"
        problem = "a language model scores single texts, but this run is not a language model"
        hint = "give sentence pairs to a translator: --source FILE --target FILE"
        raise ArgumentError(message(option, problem, hint=hint))
    given_pairs = PairFiles(source, target, tsv, jsonl, columns, fields, encoding)
    given_pairs.check("regard score")
    options = {"tokens_per_batch": batch_tokens, "longest": max_source_length, "look": None}
    _score_pairs(given_pairs.of_run(run), loading, options, output, form)


def _score_pairs(
    files: PairFiles, loading: tuple[Any, ...], options: dict[str, Any], output: Path | None, form: str
) -> None:
    """Score sentence pairs with a translator, and write the scores.

    loading: the run folder, checkpoint, device and number of threads.
    options: further arguments of Translator.
    output: the file to write; None for standard output.
    form: "json" for --json, "tokens" for --tokens, or "" for one number for each pair.
    """
    pairs = files.stream()
    translator = open_run(*loading, **options)
    notes, unknown, total, count, lines = Notes(), UnknownWords(), 0.0, 0, 0
    with writing(output) as write:
        scored = (pair for batch in in_batches(pairs, AT_ONCE) for pair in translator.score(*batch))
        for line, pair in enumerate(scored, pairs.first_line):
            notes.add(line, pair.notes)
            unknown.add(line, pair)
            lines += 1
            total, count = total + pair.score, count + len(pair.token_scores)
            if form == "json":
                write(json_text(pair.to_dict()))
            else:
                write(to_json(pair) if form else f"{pair.score:.4f}")
    tell(notes, pairs)
    unknown.say()
    if count:
        counts = f"{_count(count, 'token')} in {_count(lines, 'line')}"
        say(f"perplexity {perplexity(-total / count):.2f}: {counts}")


def to_json(pair: Scored) -> str:
    """Return the score of a sentence pair, its tokens and their scores as a JSON object, for --tokens."""
    record = {"score": pair.score, "tokens": pair.pieces, "token_scores": pair.token_scores}
    return json_text(record | ({"notes": pair.notes} if pair.notes else {}))


def _score_lines(lines: Lines, language: Any, output: Path | None, form: str) -> None:
    """Score input lines with a language model, and write the scores.

    language: the language model.
    output: the file to write; None for standard output.
    form: "json" for --json, "tokens" for --tokens, or "" for three numbers for each input line.
    """
    checked = _checked_lines(lines, language)
    at_once = 1 if lines.keyboard else AT_ONCE
    notes, unknown, tokenizer = Notes(), UnknownWords(), language.tokenizer
    total, tokens, words, number = 0.0, 0, 0, 0
    with writing(output) as write:
        while chunk := list(islice(checked, at_once)):
            for result in language.score(chunk):
                number += 1
                notes.add(number, result.notes)
                unknown.add_words(number, tokenizer.unit, result.unknown, tokenizer.bytewise)
                total += result.log_probability
                tokens, words = tokens + len(result.token_scores), words + result.words
                write(_line(result, form))
    tell(notes, lines)
    unknown.say()
    if tokens:
        per_token, per_word = (perplexity(-total / count) for count in (tokens, words + number))
        counts = f"{_count(tokens, 'token')}; {_count(words, 'word')} and {_count(number, 'line end')}"
        say(f"perplexity {per_token:.2f} per token, {per_word:.2f} per word: {counts}")


def _checked_lines(lines: Lines, language: Any) -> Iterator[str]:
    """Yield all input lines; raise an error if a line has too many tokens for the model.

    The error names the file and the line.
    """
    for place in lines.places:
        part = Lines([place], encoding=lines.encoding, invalid=lines.invalid)
        for text in part:
            language.encode_line(text, f"{place_name(place)}, line {part.read}")
            lines.repaired += part.repaired
            part.repaired = 0
            yield text


def _count(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"


def _line(result: Any, form: str) -> str:
    if form == "json":
        return json_text(result.to_dict())
    if form == "tokens":
        record = {"score": result.log_probability, "tokens": result.pieces}
        return json_text(record | {"token_scores": result.token_scores})
    shown_scores = [result.log_probability, result.perplexity, result.word_perplexity]
    return "\t".join(f"{each:.4f}" if math.isfinite(each) else str(each) for each in shown_scores)
