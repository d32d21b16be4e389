"""regard evaluate: score the translations of a run, or of a file, against references."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard.cli import bounds
from regard.cli.pair_options import (
    Columns,
    Fields,
    JsonlFiles,
    PairFiles,
    TsvFiles,
    check_standard_input,
)
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
    EvaluationReport,
    References,
    built_in_references,
    evaluate_file,
    evaluate_run,
    paired_references,
    read_references,
)
from regard.tasks.translation.faithfulness_report import FaithfulnessReport, measure_faithfulness
from regard.tasks.translation.translation_page import TranslationPage
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.settings import build

__all__ = ["evaluate"]

SENTENCES = 1000

Run = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="Run folder, written by regard train --output.")
]
Source = Annotated[
    str | None,
    typer.Option("--source", metavar="FILE", help="Source sentences, one per line; - is standard input."),
]
ReferenceFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="FILE",
        help="Reference translations: line N is the translation of line N of --source. Repeat the option for "
        "several references per sentence.",
    ),
]
Translations = Annotated[
    str | None,
    typer.Option(
        "--translations", metavar="FILE", help="Evaluate the translations in this file, instead of a run."
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="NAME",
        help="Evaluate on this split of the built-in corpus, instead of files: test, long or valid.",
    ),
]
Sentences = Annotated[
    int,
    typer.Option(
        "--sentences", metavar="INT", help="With --split: number of sentences.", min=1, max=bounds.CORPUS
    ),
]
COMPARED, COUNTED = "Gold alignments", "Scores"

Gold = Annotated[
    Path | None,
    typer.Option(
        "--gold-alignments",
        metavar="FILE",
        help="Also evaluate the alignments of the model, against the gold alignments in this file. Line N "
        "has the links of pair N: 0-2 is a sure link of source word 0 and target word 2, 0p2 or 0?2 is a "
        "possible link.",
        rich_help_panel=COMPARED,
    ),
]
Base = Annotated[
    int,
    typer.Option(
        "--base",
        metavar="INT",
        help="Number of the first word in --gold-alignments: 0 or 1.",
        min=0,
        max=1,
        rich_help_panel=COMPARED,
    ),
]
Lowercase = Annotated[
    bool | None,
    typer.Option(
        "--lowercase/--cased",
        help="Lowercase the text before scoring, or not.",
        show_default="the setting of the run; without a run, --cased",
        rich_help_panel=COUNTED,
    ),
]
Tokenize = Annotated[
    str | None,
    typer.Option(
        "--tokenize",
        metavar="NAME",
        help="Tokenizer that sacreBLEU uses for BLEU.",
        show_default="the setting of the run; without a run, 13a",
        rich_help_panel=COUNTED,
    ),
]
Moses = Annotated[
    str | None,
    typer.Option(
        "--moses",
        metavar="LANGUAGE",
        help="Also compute BLEU with the Moses tokenizer of this language, e.g. en.",
        rich_help_panel=COUNTED,
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write the translations to this file.")
]
PagePath = Annotated[
    Path | None, typer.Option("--page", metavar="FILE.html", help="Write an HTML page of the translations.")
]
Faithful = Annotated[
    bool,
    typer.Option(
        "--faithfulness",
        help="Also measure how much the translations depend on the source words they attend to (slow).",
    ),
]
Other = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="With --faithfulness: also measure how similar the attention weights of this other run are.",
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def evaluate(
    run: Run = None,
    source: Source = None,
    target: ReferenceFiles = None,
    tsv: TsvFiles = None,
    jsonl: JsonlFiles = None,
    columns: Columns = "1,2",
    fields: Fields = "source,target",
    translations: Translations = None,
    split: Split = None,
    sentences: Sentences = SENTENCES,
    gold_alignments: Gold = None,
    base: Base = 0,
    lowercase: Lowercase = None,
    tokenize: Tokenize = None,
    moses: Moses = None,
    output: Output = None,
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
    """Compare translations with references: BLEU, chrF, TER and exact match.

    Exact match is the percentage of translations that equal a reference. For a run, the perplexity of the
    references is printed as well, and the alignment error rate (AER) if gold alignments are known.

    Examples:

    * `regard evaluate runs/x --source test.ko --target test.en`

    * `regard evaluate runs/x --source test.de --target test.en --lowercase --moses en --json`

    * `regard evaluate runs/x --split test --sentences 1000`

    * `regard evaluate runs/x --split test --sentences 100 --faithfulness`

    * `regard evaluate runs/x --tsv test.tsv --columns ko,en`

    * `regard evaluate --translations output.en --target test.en`
    """
    if other is not None and not faithfulness:
        raise ArgumentError(message("--other", "it needs --faithfulness"))
    rows = PairFiles(None, None, tsv, jsonl, columns, fields)
    options = ReferenceOptions(source, target, rows, split, sentences, gold_alignments, base)
    options.check(translations)
    search, html = build_search(beam_size, length_penalty, greedy=greedy), TranslationPage(page)
    references, faithful = options.read(run), None
    if run is None:
        if translations is None:
            expected = "a run folder, or --translations"
            raise ArgumentError(message("regard evaluate", "nothing to evaluate", expected=expected))
        if output is not None or page is not None or faithfulness:
            problem = "--output, --page and --faithfulness need a run"
            raise ArgumentError(message("--translations", problem))
        scores = EvaluationOptions(tokenize or "13a", bool(lowercase), moses)
        report = evaluate_file(translations, references, scores)
    else:
        if translations is not None:
            raise ArgumentError(message("--translations", "a run is given too", expected="one of the two"))
        decoding = {"search": search, "tokens_per_batch": batch_tokens, "longest": max_source_length}
        translator = open_run(run, checkpoint, device, threads, **decoding)
        partner = None if other is None else open_run(other, "best", device, None)
        options.check_split(translator.settings)
        settings = translator.settings.evaluation
        lower = settings.lowercase if lowercase is None else lowercase
        scores = EvaluationOptions(tokenize or settings.tokenize, lower, moses)
        report = evaluate_run(translator, references, scores, output, html)
        faithful = measure_faithfulness(translator, references, partner) if faithfulness else None
    _print(report, faithful, as_json)


@dataclass(frozen=True)
class ReferenceOptions:
    """The options for the references.

    They are in files of lines (source, target), in files of pairs (rows), or in a split of the built-in
    corpus.
    """

    source: str | None
    target: list[str] | None
    rows: PairFiles
    split: str | None
    sentences: int
    gold_alignments: Path | None
    base: int

    def check(self, translations: str | None) -> None:
        """Raise ArgumentError unless the references are given in exactly one way."""
        files = self.source is not None or bool(self.target)
        if self.split is not None and (files or self.rows.all or self.gold_alignments is not None):
            problem = "the built-in corpus has its own source, target and alignments"
            raise ArgumentError(message(f"--split {self.split}", problem, hint="remove the file options"))
        expected = "--source and --target, or --tsv, or --jsonl, or --translations and --target, or --split"
        if (files and self.rows.all) or (self.rows.tsv and self.rows.jsonl):
            problem = "the references are given in more than one way"
            raise ArgumentError(message("regard evaluate", problem, expected=expected))
        complete = self.target and (self.source is not None or translations is not None)
        if self.split is None and not complete and not self.rows.all:
            raise ArgumentError(message("regard evaluate", "no references are named", expected=expected))
        if (
            self.gold_alignments is not None
            and self.source is None
            and not (self.rows.all and translations is None)
        ):
            problem = "alignments can be evaluated for a run only, not for a file of translations"
            raise ArgumentError(message("--gold-alignments", problem))
        check_standard_input(self.source, translations, *(self.target or ()))

    def check_split(self, settings: TranslationSettings) -> None:
        """Raise ArgumentError if --split is used with a run that was not trained on the built-in corpus."""
        if self.split is not None and settings.data.built_in is None:
            hint = "regard data korean --split test writes these sentences to files"
            problem = "this run was not trained on the built-in corpus"
            raise ArgumentError(message(f"--split {self.split}", problem, hint=hint))

    def read(self, run: Path | None) -> References:
        """Read the references from files, or generate them with the grammar version of the run."""
        if self.split is not None:
            return built_in_references(self.split, self.sentences, _grammar(run))
        if self.rows.all:
            return paired_references(self.rows.stream(), self.gold_alignments, self.base)
        return read_references(self.source, self.target or [], self.gold_alignments, self.base)


def _print(report: EvaluationReport, faithful: FaithfulnessReport | None, as_json: bool) -> None:
    """Print the scores, and the faithfulness if it was measured, as tables or as JSON."""
    if as_json:
        written = report.written() | ({} if faithful is None else {"faithfulness": faithful.written()})
        typer.echo(json.dumps(written, indent=2, ensure_ascii=False))
        return
    Console(highlight=False).print(report.table())
    if faithful is not None:
        faithful.print(Console(highlight=False))


def _grammar(run: Path | None) -> int:
    """Return the version of the grammar that the run was trained with, or the latest version."""
    if run is None or not is_run(run):
        return VERSION
    data = build(TranslationSettings, config_of(run), str(run / "config.toml")).data
    return data.grammar_version if data.built_in else VERSION
