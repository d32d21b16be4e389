"""regard score: print the log-probabilities of translations that already exist."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regard.cli.pair_options import (
    Columns,
    Fields,
    JsonlFiles,
    PairFiles,
    SourceLines,
    TargetLines,
    TsvFiles,
)
from regard.cli.run_options import (
    BATCH_TOKENS,
    MAX_SOURCE_LENGTH,
    BatchTokens,
    CheckpointName,
    Device,
    MaxSourceLength,
    OutputFile,
    RunFolder,
    Threads,
    open_run,
)
from regard.data.line_io import Notes, say, tell, writing
from regard.data.pair_stream import in_batches
from regard.decoding import Scored
from regard.decoding.unknown_words import UnknownWords
from regard.training.logs.live_table import perplexity

__all__ = ["score"]

AT_ONCE = 4096
"""Number of pairs that are scored together."""

Tokens = Annotated[
    bool,
    typer.Option(
        "--tokens", help="Print one JSON object per pair, with its tokens and their log-probabilities."
    ),
]


def score(
    run: RunFolder,
    source: SourceLines = None,
    target: TargetLines = None,
    tsv: TsvFiles = None,
    jsonl: JsonlFiles = None,
    columns: Columns = "1,2",
    fields: Fields = "source,target",
    output: OutputFile = None,
    tokens: Tokens = False,
    max_source_length: MaxSourceLength = MAX_SOURCE_LENGTH,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the log-probability of each target sentence given its source, one number per line.

    The log-probability is summed over the tokens of the sentence, including the end token `</s>`. The
    perplexity of all target tokens is printed to standard error.

    Examples:

    * `regard score runs/x --source test.ko --target test.en`

    * `regard score runs/x --source test.ko --target test.en --tokens > scores.jsonl`

    * `regard score runs/x --tsv pairs.tsv --columns 2,1 --output scores.txt`

    * `regard translate runs/x test.ko | regard score runs/x --source test.ko --target -`
    """
    files = PairFiles(source, target, tsv, jsonl, columns, fields)
    files.check("regard score")
    pairs = files.stream()
    translator = open_run(
        run, checkpoint, device, threads, tokens_per_batch=batch_tokens, longest=max_source_length, look=None
    )
    notes, unknown, total, count, lines = Notes(), UnknownWords(), 0.0, 0, 0
    with writing(output) as write:
        scored = (pair for batch in in_batches(pairs, AT_ONCE) for pair in translator.score(*batch))
        for line, pair in enumerate(scored, pairs.first_line):
            notes.add(line, pair.notes)
            unknown.add(line, pair)
            lines += 1
            total, count = total + pair.score, count + len(pair.token_scores)
            write(to_json(pair) if tokens else f"{pair.score:.4f}")
    tell(notes, pairs)
    unknown.say()
    if count:
        say(f"perplexity {perplexity(-total / count):.2f}: {count:,} tokens in {lines:,} lines")


def to_json(pair: Scored) -> str:
    """Return a scored pair as a line of JSON."""
    record = {"score": pair.score, "tokens": pair.pieces, "token_scores": pair.token_scores}
    return json.dumps(record | ({"notes": pair.notes} if pair.notes else {}), ensure_ascii=False)
