"""regard evaluate: score the translations of a run, or of a file, against references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard.cli import bounds
from regard.cli.run_options import (
    BATCH_TOKENS,
    BEAM_SIZE,
    LENGTH_PENALTY,
    MAX_SOURCE_LENGTH,
    BatchTokens,
    BeamSize,
    CheckpointName,
    Device,
    GreedySearch,
    LengthPenalty,
    MaxSourceLength,
    Threads,
    build_search,
    open_run,
)
from regard.data.korean.corpus import VERSION
from regard.errors import ArgumentError, message
from regard.runs.run_folder import config_of, is_run
from regard.tasks.translation.evaluation_report import (
    EvaluationOptions,
    References,
    built_in_references,
    evaluate_file,
    evaluate_run,
    read_references,
)
from regard.tasks.translation.faithfulness_report import measure_faithfulness
from regard.tasks.translation.translation_page import TranslationPage
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.settings import build

__all__ = ["evaluate"]

SENTENCES = 1000

Run = Annotated[Path | None, typer.Argument(metavar="RUN", help="Run folder, written by regard train --out.")]
Source = Annotated[str | None, typer.Option(metavar="FILE", help="Source sentences, one per line.")]
Target = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="References, parallel to --source; repeat for several references."),
]
Translations = Annotated[
    str | None, typer.Option(metavar="FILE", help="Evaluate the translations in this file instead of a run.")
]
Split = Annotated[
    str | None,
    typer.Option(metavar="SPLIT", help="Split of the built-in corpus instead of files: test, long or valid."),
]
Sentences = Annotated[int, typer.Option(help="With --split: number of sentences.", min=1, max=bounds.CORPUS)]
COMPARED, COUNTED = "Gold alignments", "Scores"

Gold = Annotated[
    Path | None,
    typer.Option(
        "--alignment", metavar="FILE", help="Gold alignments, in Pharaoh format.", rich_help_panel=COMPARED
    ),
]
Base = Annotated[
    int,
    typer.Option(
        help="With --alignment: number of the first word, 0 or 1.",
        min=0,
        max=1,
        rich_help_panel=COMPARED,
    ),
]
Lowercase = Annotated[
    bool | None,
    typer.Option(
        "--lowercase/--cased",
        help="Compute scores on lowercased or on cased text. Default: as in the settings of the run.",
        rich_help_panel=COUNTED,
    ),
]
Tokenize = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Tokenizer of sacreBLEU. Default: as in the settings of the run, or 13a.",
        rich_help_panel=COUNTED,
    ),
]
Moses = Annotated[
    str | None,
    typer.Option(
        metavar="LANGUAGE",
        help="Also compute BLEU with the Moses tokenizer of this language, e.g. en.",
        rich_help_panel=COUNTED,
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations to this file.")]
PagePath = Annotated[
    Path | None, typer.Option("--page", metavar="FILE.html", help="Write an HTML page of the translations.")
]
Faithful = Annotated[
    bool,
    typer.Option("--faithfulness", help="Also test whether the output depends on the attended words (slow)."),
]
Other = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="With --faithfulness: another run to compare the attention with."),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def evaluate(
    run: Run = None,
    source: Source = None,
    target: Target = None,
    translations: Translations = None,
    split: Split = None,
    sentences: Sentences = SENTENCES,
    alignment: Gold = None,
    base: Base = 0,
    lowercase: Lowercase = None,
    tokenize: Tokenize = None,
    moses: Moses = None,
    out: Out = None,
    page: PagePath = None,
    faithfulness: Faithful = False,
    other: Other = None,
    as_json: AsJSON = False,
    beam_size: BeamSize = BEAM_SIZE,
    length_penalty: LengthPenalty = LENGTH_PENALTY,
    greedy: GreedySearch = False,
    max_source_length: MaxSourceLength = MAX_SOURCE_LENGTH,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Evaluate translations: BLEU, chrF, TER, exact match (% equal to a reference), perplexity, AER.

    Examples:

    * `regard evaluate runs/x --source test.ko --target test.en`

    * `regard evaluate runs/x --source test.de --target test.en --lowercase --moses en --json`

    * `regard evaluate runs/x --split test --sentences 1000`

    * `regard evaluate runs/x --split test --sentences 100 --faithfulness`

    * `regard evaluate --translations found.en --target test.en`
    """
    if other is not None and not faithfulness:
        raise ArgumentError(message("--other", "it is an option of --faithfulness"))
    references = _references(source, target, split, sentences, alignment, base, translations, _grammar(run))
    search, html = build_search(beam_size, length_penalty, greedy=greedy), TranslationPage(page)
    faithful = None
    if run is None:
        if translations is None:
            expected = "a run folder, or --translations"
            raise ArgumentError(message("regard evaluate", "nothing to evaluate", expected=expected))
        if out is not None or page is not None or faithfulness:
            problem = "--out, --page and --faithfulness need a run"
            raise ArgumentError(message("--translations", problem))
        options = EvaluationOptions(tokenize or "13a", bool(lowercase), moses)
        report = evaluate_file(translations, references, options)
    else:
        if translations is not None:
            raise ArgumentError(message("--translations", "a run is given too", expected="one of the two"))
        limits = {"tokens_per_batch": batch_tokens, "longest": max_source_length}
        translator = open_run(run, checkpoint, device, threads, search=search, **limits)
        partner = None if other is None else open_run(other, "best", device, None)
        settings = translator.settings.evaluation
        if split is not None and translator.settings.data.built_in is None:
            hint = "regard data korean --split test writes these sentences to files"
            problem = "this run was not trained on the built-in corpus"
            raise ArgumentError(message(f"--split {split}", problem, hint=hint))
        lower = settings.lowercase if lowercase is None else lowercase
        options = EvaluationOptions(tokenize or settings.tokenize, lower, moses)
        report = evaluate_run(translator, references, options, out, html)
        faithful = measure_faithfulness(translator, references, partner) if faithfulness else None
    if as_json:
        written = report.written() | ({} if faithful is None else {"faithfulness": faithful.written()})
        typer.echo(json.dumps(written, indent=2, ensure_ascii=False))
        return
    Console(highlight=False).print(report.table())
    if faithful is not None:
        faithful.print(Console(highlight=False))


def _grammar(run: Path | None) -> int:
    """Return the grammar version of a run on the built-in corpus; the latest for other runs and for files."""
    if run is None or not is_run(run):
        return VERSION
    data = build(TranslationSettings, config_of(run), str(run / "config.toml")).data
    return data.grammar_version if data.built_in else VERSION


def _references(
    source: str | None,
    target: list[str] | None,
    split: str | None,
    sentences: int,
    alignment: Path | None,
    base: int,
    translations: str | None,
    version: int,
) -> References:
    """Read the references from files, or generate them; raise ArgumentError if options cannot be combined."""
    if split is not None:
        if source is not None or target or alignment is not None:
            problem = "the built-in corpus has its own source, target and alignments"
            raise ArgumentError(message(f"--split {split}", problem, hint="remove the file options"))
        return built_in_references(split, sentences, version)
    if not target or (source is None and translations is None):
        expected = "--source and --target, or --translations and --target, or --split"
        raise ArgumentError(message("regard evaluate", "files are missing", expected=expected))
    if alignment is not None and source is None:
        problem = "alignments can be evaluated for a run only, not for a file of translations"
        raise ArgumentError(message("--alignment", problem))
    return read_references(source, target, alignment, base)
