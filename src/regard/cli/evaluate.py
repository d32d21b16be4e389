"""regard evaluate: how good translations are, those of a run or those in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard.cli import bounds
from regard.cli.judging import Given, Judging, built_in, judge_file, judge_run, read_given
from regard.cli.page_option import Page
from regard.cli.run_options import (
    BatchTokens,
    Device,
    Greedily,
    Longest,
    Penalty,
    Size,
    Threads,
    Which,
    chosen_search,
    opened,
)
from regard.cli.truth import measure_truth
from regard.data.korean.corpus import VERSION
from regard.errors import ArgumentError, message
from regard.runs.run_folder import config_of, is_run
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
    str | None, typer.Option(help="Split of the built-in corpus, instead of files: test, long or valid.")
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
        help="With --alignment: the number of the first word, 0 or 1.", min=0, max=1, rich_help_panel=COMPARED
    ),
]
Lowercase = Annotated[
    bool | None,
    typer.Option(
        "--lowercase/--cased",
        help="Ignore or respect case. Default: as in the settings of the run.",
        rich_help_panel=COUNTED,
    ),
]
Tokenize = Annotated[
    str | None,
    typer.Option(
        help="sacreBLEU tokenizer. Default: as in the settings of the run, or 13a.", rich_help_panel=COUNTED
    ),
]
Moses = Annotated[
    str | None,
    typer.Option(
        metavar="LANGUAGE",
        help="Also BLEU with Moses tokenization of this language, e.g. en.",
        rich_help_panel=COUNTED,
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations to this file.")]
PagePath = Annotated[
    Path | None, typer.Option("--page", metavar="FILE.html", help="Write an HTML page of translations.")
]
Faithful = Annotated[
    bool, typer.Option("--faithfulness", help="Also test whether the attended words determine the output.")
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
    beam: Size = None,
    length_penalty: Penalty = None,
    greedy: Greedily = False,
    longest: Longest = 512,
    batch: BatchTokens = 4096,
    checkpoint: Which = "best",
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
    truth = None
    if other is not None and not faithfulness:
        raise ArgumentError(message("--other", "this is an option of --faithfulness"))
    given = _given(source, target, split, sentences, alignment, base, translations, _grammar(run))
    search, shown_page = chosen_search(beam, length_penalty, greedy=greedy), Page(page)
    if run is None:
        if translations is None:
            expected = "the folder of a run, or --translations"
            raise ArgumentError(message("regard evaluate", "nothing to evaluate", expected=expected))
        if out is not None or page is not None or faithfulness:
            raise ArgumentError(
                message("--translations", "--out, --page and --faithfulness are for what a run translates")
            )
        how = Judging(tokenize or "13a", bool(lowercase), moses)
        report = judge_file(translations, given, how)
    else:
        if translations is not None:
            raise ArgumentError(
                message("--translations", "a run was given as well", expected="either of them")
            )
        translator = opened(
            run, checkpoint, device, threads, search=search, tokens_per_batch=batch, longest=longest
        )
        usual = translator.settings.evaluation
        if split is not None and translator.settings.data.built_in is None:
            hint = "regard data korean --split test writes these sentences to files"
            problem = "this run was not trained on the built-in corpus"
            raise ArgumentError(message(f"--split {split}", problem, hint=hint))
        lower = usual.lowercase if lowercase is None else lowercase
        how = Judging(tokenize or usual.tokenize, lower, moses)
        report = judge_run(translator, given, how, out, shown_page)
        truth = measure_truth(translator, given, other, device) if faithfulness else None
    if as_json:
        written = report.written() | ({} if truth is None else {"faithfulness": truth.written()})
        typer.echo(json.dumps(written, indent=2, ensure_ascii=False))
        return
    Console(highlight=False).print(report.table())
    if truth is not None:
        truth.print(Console(highlight=False))


def _grammar(run: Path | None) -> int:
    """The grammar version of a run on the built-in corpus; the latest for any other run or file."""
    if run is None or not is_run(run):
        return VERSION
    data = build(TranslationSettings, config_of(run), str(run / "config.toml")).data
    return data.grammar_version if data.built_in else VERSION


def _given(
    source: str | None,
    target: list[str] | None,
    split: str | None,
    sentences: int,
    alignment: Path | None,
    base: int,
    translations: str | None,
    version: int,
) -> Given:
    """What is judged by, read from files or made here; what does not go together is refused."""
    if split is not None:
        if source is not None or target or alignment is not None:
            problem = "the built-in corpus has its own source, target and links"
            raise ArgumentError(message(f"--split {split}", problem, hint="leave the files out"))
        return built_in(split, sentences, version)
    if not target or (source is None and translations is None):
        expected = "--source and --target, or --translations and --target, or --split"
        raise ArgumentError(
            message("regard evaluate", "this does not say what to compare", expected=expected)
        )
    if alignment is not None and source is None:
        problem = "a run tells which word looked at which, and a file of translations does not"
        raise ArgumentError(message("--alignment", problem))
    return read_given(source, target, alignment, base)
