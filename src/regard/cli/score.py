"""regard score: print the log-probability of translations, or of lines of text with a language model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.cli.decoding_options import BATCH_TOKENS, MAX_SOURCE_LENGTH
from regard.cli.open_runs import encoding_of, open_run, open_task, task_in_regard
from regard.cli.options import OF_RUN, PAIR_LINES, RUN, but, command
from regard.cli.pair_options import pair_stream
from regard.cli.predict import result_files, write_results
from regard.cli.printing import json_text
from regard.cli.usage_errors import file_option
from regard.data.line_io import Lines, given_lines, say
from regard.data.pairs import in_batches
from regard.data.read_text import check_start
from regard.data.table_formats import file_start
from regard.decoding import Scored
from regard.errors import ArgumentError, message, shell_word, shown
from regard.tasks.language import ScoredText
from regard.tasks.task_table import find_task
from regard.training.command_options import flag, several
from regard.training.logs.live_table import perplexity

AT_ONCE = 4096
"""Number of sentence pairs, or of input lines, that are scored together."""


@command(
    RUN,
    several(
        "files",
        "For a language model: files with one text per line; - is standard input. Without FILES and "
        "--text, standard input is read. For a translator: a .tsv, .csv, .jsonl, .json or .parquet file with "
        "pairs, or a source file and a target file.",
        "FILES",
    ),
    several("--text", "For a language model: a text to score.", "TEXT"),
    *PAIR_LINES,
    "output",
    flag(
        "--tokens",
        "Print a JSON object for each input line or pair, with its tokens and their log-probabilities.",
    ),
    but(
        "json",
        "Print a JSON object for each input line or pair, with its text, tokens, scores, unknown words "
        "and notes (warnings about the text).",
    ),
    MAX_SOURCE_LENGTH,
    replace(BATCH_TOKENS, help="For a translator: batch size in source tokens."),
    *OF_RUN,
)
def score(run: Path, files: list[str] | None, text: list[str] | None, **options: Any) -> None:
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

    * `regard score runs/x pairs.tsv --columns 2,1 --output scores.txt`

    * `regard translate runs/x test.ko | regard score runs/x --source test.ko --target -`

    * `regard score runs/lm --text "I learned CS" --json`

    * `regard score runs/lm test.txt --output scores.tsv`
    """
    kind = task_in_regard(run, "translation or language")
    if issubclass(kind, find_task("classification")):
        hint = f"use regard classify {shell_word(run)} FILES, which prints the probability of the label"
        raise ArgumentError(
            message(shown(run), "this run is a classifier, which regard score cannot use", hint=hint)
        )
    if not issubclass(kind, find_task("language")):
        _score_pairs(run, files, text, options)
        return
    for name in ("source", "target", "tsv", "jsonl"):
        if options[name]:
            hint = f"use regard score {shell_word(run)} FILES, or --text TEXT"
            problem = "this option is for translators, but this run is a language model"
            raise ArgumentError(message(f"--{name}", problem, hint=hint))
    encoding = encoding_of(run, files, options["encoding"])
    _score_lines(run, given_lines(files, text, encoding=encoding), options)


def _score_pairs(run: Path, files: list[str] | None, text: list[str] | None, options: dict[str, Any]) -> None:
    """Score sentence pairs with a translator, and write the scores."""
    options = _with_files(files or [], text, options)
    written = result_files(options, "line")
    pairs = pair_stream(options, "regard score", run)
    more = {"tokens_per_batch": options["batch_tokens"], "longest": options["max_source_length"]}
    translator = open_run(run, options, look=None, **more)
    results = (pair for batch in in_batches(pairs, AT_ONCE) for pair in translator.score(*batch))
    total = Total()

    def plain(pair: Scored, number: int) -> Iterator[str]:
        record = {"score": pair.score, "tokens": pair.pieces, "token_scores": pair.token_scores}
        record |= {"notes": pair.notes} if pair.notes else {}
        yield json_text(record) if options["tokens"] else f"{pair.score:.4f}"

    write_results(results, options, plain, written, "", readers=[pairs], each=total.add, inputs=pairs)
    if total.tokens:
        counts = f"{_count(total.tokens, 'token')} in {_count(total.lines, 'line')}"
        say(f"perplexity {perplexity(-total.score / total.tokens):.2f}: {counts}")


def _with_files(files: list[str], text: list[str] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, where files of pairs without an option are the value of --tsv or another option."""
    if not files and not text:
        return options
    ways = {file_option(file).removeprefix("--") for file in files}
    if not text and not any(options[name] for name in ("source", "target", "tsv", "jsonl")):
        if len(ways) == 1 and "" not in ways:
            return options | {ways.pop(): files}
        if ways == {""} and len(files) == 2:
            return options | {"source": files[:1], "target": files[1:]}
    for file in files:
        check_start(shown(file), file_start(file), None)  # raises DataError, e.g. for Excel
    problem = "a language model scores single texts, but this run is a translator"
    hint = "give sentence pairs to a translator: --source FILE --target FILE, or --tsv FILE"
    raise ArgumentError(message("--text" if text else " ".join(map(shown, files)), problem, hint=hint))


def _score_lines(run: Path, lines: Lines, options: dict[str, Any]) -> None:
    """Score input lines with a language model, and write the scores."""
    written = result_files(options, "line")
    language = open_task("language", run, options)
    total = Total()

    def checked() -> Iterator[str]:
        for text in lines:
            language.encode_line(text, lines.where)  # the error of a line that is too long names the line
            yield text

    def results() -> Iterator[ScoredText]:
        texts = checked()
        while chunk := list(islice(texts, 1 if lines.keyboard else AT_ONCE)):
            yield from language.score(chunk)

    def plain(result: ScoredText, number: int) -> Iterator[str]:
        if options["tokens"]:
            record = {"score": result.log_probability, "tokens": result.pieces}
            yield json_text(record | {"token_scores": result.token_scores})
        else:
            scores = (result.log_probability, result.perplexity, result.word_perplexity)
            yield "\t".join(f"{each:.4f}" if math.isfinite(each) else str(each) for each in scores)

    write_results(results(), options, plain, written, "", readers=[lines], each=total.add)
    if total.tokens:
        counts = (total.tokens, total.words + total.lines)
        per_token, per_word = (perplexity(-total.score / count) for count in counts)
        tokens, words = _count(total.tokens, "token"), _count(total.words, "word")
        counted = f"{tokens}; {words} and {_count(total.lines, 'line end')}"
        say(f"perplexity {per_token:.2f} per token, {per_word:.2f} per word: {counted}")


@dataclass
class Total:
    """The sum of the log-probabilities of all results, and their numbers of tokens, words and lines."""

    score: float = 0.0
    tokens: int = 0
    words: int = 0
    lines: int = 0

    def add(self, result: Scored | ScoredText) -> None:
        """Add a result. Only lines of a language model have words."""
        if isinstance(result, ScoredText):
            self.score, self.words = self.score + result.log_probability, self.words + result.words
        else:
            self.score += result.score
        self.tokens += len(result.token_scores)
        self.lines += 1


def _count(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"
