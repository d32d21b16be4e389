"""`regard evaluate` for translation: the options, the references, and the report of scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.data.column_names import two_columns, two_names
from regard.data.line_io import check_standard_input
from regard.data.pairs import RowPairs
from regard.decoding.alignment_units import check_units
from regard.decoding.search_options import build_search
from regard.errors import ArgumentError, UnknownName, message
from regard.runs.run_commands import ChosenRun
from regard.runs.run_folder import config_of, is_run
from regard.runs.run_task import RunTask
from regard.tasks.file_options import COLUMNS, ENCODING, FAITHFULNESS, FIELDS, JSONL, PAGE, SPLIT, TSV
from regard.tasks.header_lines import check_first_lines, columns_of_header
from regard.tasks.picture_outputs import ResultFiles, check_output_ending
from regard.tasks.task_table import task_of
from regard.tasks.text_file_checks import check_sides
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
from regard.tasks.translation.expected_quality import describe_quality
from regard.tasks.translation.faithfulness_report import FaithfulnessReport, measure_faithfulness
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.command_options import CommandOption
from regard.training.settings import build

__all__ = ["EVALUATE_OPTIONS", "TranslationEvaluation", "evaluate_translation"]

SENTENCES, MOST_SENTENCES = 1000, 10_000_000
COMPARED, COUNTED, MACHINE = "Gold alignments", "Scores", "Checkpoint and device"

EVALUATE_OPTIONS: tuple[CommandOption | str, ...] = (
    CommandOption("--source", "File with one source sentence per line; - is standard input.", "FILE"),
    CommandOption(
        "--target",
        "File with reference translations: line N is the translation of line N of --source. May be repeated: "
        "each file has one more reference for each sentence.",
        "FILE",
        list[str],
    ),
    TSV,
    JSONL,
    COLUMNS,
    FIELDS,
    ENCODING,
    CommandOption("--translations", "Evaluate the translations in this file, instead of a run.", "FILE"),
    SPLIT,
    CommandOption(
        "--sentences",
        "Number of sentences to evaluate on: of the built-in corpus with --split, otherwise the first pairs "
        "of the files.",
        "INT",
        int,
        least=1,
        most=MOST_SENTENCES,
        shown_default=f"{SENTENCES} with --split, otherwise all",
    ),
    CommandOption(
        "--gold-alignments",
        "Also evaluate the alignments of the model, against the gold alignments in this file. Line N "
        "has the links of pair N: 0-2 is a sure link of source word 0 and target word 2, 0p2 or 0?2 is a "
        "possible link.",
        "FILE",
        Path,
        panel=COMPARED,
    ),
    CommandOption(
        "--base",
        "Number of the first word in --gold-alignments: 0 or 1.",
        "INT",
        int,
        0,
        least=0,
        most=1,
        panel=COMPARED,
    ),
    CommandOption(
        "--unit",
        "Unit that the links of --gold-alignments count: word, morpheme or character.",
        "NAME",
        default="word",
        panel=COMPARED,
    ),
    CommandOption(
        "--lowercase/--cased",
        "Whether to lowercase translations and references before scoring.",
        kind=bool,
        shown_default="the setting of the run; without a run, --cased",
        panel=COUNTED,
    ),
    CommandOption(
        "--tokenize",
        "Tokenizer that sacreBLEU uses for BLEU.",
        "NAME",
        shown_default="the setting of the run; without a run, 13a",
        panel=COUNTED,
    ),
    CommandOption(
        "--moses",
        "Also compute BLEU with the Moses tokenizer for this language, e.g. en.",
        "LANGUAGE",
        panel=COUNTED,
    ),
    CommandOption("--output", "Write the translations to this file.", "FILE", Path),
    PAGE,
    FAITHFULNESS,
    CommandOption(
        "--other",
        "With --faithfulness: also compare the attention weights with the weights of this other run.",
        "RUN",
        Path,
    ),
    "beam_size",
    "length_penalty",
    "greedy",
    "max_source_length",
    "batch_tokens",
    CommandOption(
        "--precision",
        "Precision of the computation: float32, bfloat16, float16, int8 (CPU only), or auto (the default "
        "of regard translate).",
        "NAME",
        default="float32",
        panel=MACHINE,
    ),
)
"""The options of `regard evaluate` for translation."""

REFERENCES = (
    *(
        "source",
        "target",
        "tsv",
        "jsonl",
        "encoding",
        "split",
        "sentences",
        "gold_alignments",
        "base",
        "unit",
    ),
)
"""The options that become fields of ReferenceOptions. The options --columns and --fields are set
separately."""

GOLD_UNITS = ("word", "morpheme", "character")
"""The values of --unit."""


@dataclass(frozen=True)
class TranslationEvaluation:
    """The result of `regard evaluate` for translation.

    report: BLEU and the other scores.
    faithful: how much the output depends on the attended source words; None if it was not measured.
    quality: a sentence about the model if its scores are poor, otherwise "".
    """

    report: EvaluationReport
    faithful: FaithfulnessReport | None = None
    quality: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the scores and, if it was measured, the faithfulness as a dict for JSON."""
        faithful = {} if self.faithful is None else {"faithfulness": self.faithful.written()}
        return self.report.written() | faithful

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.report.table()
        if self.quality:
            yield Text(self.quality, style="yellow")
        if self.faithful is not None:
            yield self.faithful.described()


def evaluate_translation(
    task: type[RunTask], run: ChosenRun | None, options: Mapping[str, Any]
) -> TranslationEvaluation:
    """Evaluate the translations of a run, or the translations in a file, against references.

    task: the task class.
    run: the run folder and the checkpoint to load. None if the translations are in a file (--translations).
    options: the values of EVALUATE_OPTIONS.
    """
    if options["other"] is not None and not options["faithfulness"]:
        raise ArgumentError(message("--other", "requires --faithfulness"))
    _check_unused(options)
    translations, page = options["translations"], options["page"]
    check_output_ending(options["output"], page=True)
    columns = options["columns"] or _columns_of_run(run, options["tsv"], options["encoding"]) or "1,2"
    fields = options["fields"] or "source,target"
    given = ReferenceOptions(**{name: options[name] for name in REFERENCES}, columns=columns, fields=fields)
    given.check(translations)
    if translations is not None and options["sentences"] is not None:
        raise ArgumentError(message("--sentences", "cannot be combined with --translations"))
    search = build_search(options["beam_size"], options["length_penalty"], greedy=options["greedy"])
    html = ResultFiles("line", page)
    references = given.read()
    if run is None:
        if translations is None:
            expected = "a run folder, or --translations"
            raise ArgumentError(message("regard evaluate", "nothing to evaluate", expected=expected))
        if options["output"] is not None or page is not None or options["faithfulness"]:
            problem = "--output, --page and --faithfulness need a run"
            raise ArgumentError(message("--translations", problem))
        scores = EvaluationOptions(options["tokenize"] or "13a", bool(options["lowercase"]), options["moses"])
        return TranslationEvaluation(evaluate_file(translations, references, scores, options.get("encoding")))
    if translations is not None:
        problem, expected = "it cannot be combined with a run", "either a run folder or --translations"
        raise ArgumentError(message("--translations", problem, expected=expected))
    limits = {"tokens_per_batch": options["batch_tokens"], "longest": options["max_source_length"]}
    translator = run.load(task, search=search, precision=options["precision"], **limits)
    check_units(translator.source_tokenizer, translator.target_tokenizer, given.unit)
    partner = None
    if options["other"] is not None:
        task_of(options["other"], "translation")  # raises an error if the other run has another task
        partner = ChosenRun(options["other"], device=run.device).load(task, precision=options["precision"])
    given.check_split(translator.settings)
    settings = translator.settings.evaluation
    lower = settings.lowercase if options["lowercase"] is None else options["lowercase"]
    scores = EvaluationOptions(options["tokenize"] or settings.tokenize, lower, options["moses"])
    report = evaluate_run(translator, references, scores, options["output"], html, given.unit)
    faithful = measure_faithfulness(translator, references, partner) if options["faithfulness"] else None
    bleu, chrf = report.scores[0].value, report.scores[1].value
    best = translator.settings.training.best
    quality = describe_quality({"bleu": bleu, "chrf": chrf}, best, on="test set")
    return TranslationEvaluation(report, faithful, quality)


def _columns_of_run(run: ChosenRun | None, tsv: list[str] | None, encoding: str | None) -> str:
    """Return the columns that a run was trained with, as "NAME,NAME", if the header of --tsv names them."""
    if run is None or not tsv or not is_run(run.folder):
        return ""
    data = build(TranslationSettings, config_of(run.folder), str(run.folder / "config.toml")).data
    return columns_of_header(tsv, data.columns, encoding)


def _check_unused(options: Mapping[str, Any]) -> None:
    """Raise ArgumentError for an option that has no effect without another option."""
    needed = {"columns": ("tsv", None), "fields": ("jsonl", None), "base": ("gold_alignments", 0)}
    for name, (other, default) in needed.items():
        if options[name] != default and not options[other]:
            problem = f"requires --{other.replace('_', '-')}"
            raise ArgumentError(message(f"--{name}", problem, hint=f"leave --{name} out"))


@dataclass(frozen=True)
class ReferenceOptions:
    """The options of `regard evaluate` that say where the reference translations are.

    The references are in parallel files (source, target), in files of sentence pairs (tsv or jsonl), or in a
    split of the built-in corpus. Each field is the value of the option with the same name. None: the option
    is not used.
    """

    source: str | None
    target: list[str] | None
    tsv: list[str] | None
    jsonl: list[str] | None
    columns: str
    fields: str
    encoding: str | None
    split: str | None
    sentences: int | None
    gold_alignments: Path | None
    base: int
    unit: str

    @property
    def rows(self) -> list[str]:
        """The values of --tsv and --jsonl: files in which each row or line is a sentence pair."""
        return [*(self.tsv or ()), *(self.jsonl or ())]

    def check(self, translations: str | None) -> None:
        """Raise ArgumentError if the options for the references are incomplete or contradict each other.

        For example, --source requires --target, and --tsv cannot be combined with --source or --target.

        translations: the value of --translations, the file to evaluate. None if a run is evaluated.
        """
        files = self.source is not None or bool(self.target)
        if self.split is not None and (files or self.rows or self.gold_alignments is not None):
            problem = "the built-in corpus has its own source, target and alignments"
            raise ArgumentError(message(f"--split {self.split}", problem, hint="remove the file options"))
        expected = "--source and --target, or --tsv, or --jsonl, or --translations and --target, or --split"
        if (files and self.rows) or (self.tsv and self.jsonl):
            problem = "the references are given in more than one way"
            raise ArgumentError(message("regard evaluate", problem, expected=expected))
        complete = self.target and (self.source is not None or translations is not None)
        if self.split is None and not complete and not self.rows:
            hint = "" if translations else "regard show RUN prints the scores on the validation data"
            problem = "there are no reference translations"
            expected = expected if translations else f"a file of pairs, or {expected}"
            raise ArgumentError(message("regard evaluate", problem, expected=expected, hint=hint))
        if (
            self.gold_alignments is not None
            and self.source is None
            and not (self.rows and translations is None)
        ):
            problem = "alignments can be evaluated for a run only, not for a file of translations"
            raise ArgumentError(message("--gold-alignments", problem))
        self._check_unit()
        check_standard_input(self.source, translations, *(self.target or ()))

    def _check_unit(self) -> None:
        if self.unit not in GOLD_UNITS:
            raise UnknownName("unit of alignment", self.unit, GOLD_UNITS)
        if self.unit != "word" and self.gold_alignments is None:
            problem = "it counts the links of --gold-alignments, which is not set"
            if self.split is not None:
                problem = "the gold alignments of the built-in corpus link words"
            raise ArgumentError(message(f"--unit {self.unit}", problem, hint="remove --unit"))

    def check_split(self, settings: TranslationSettings) -> None:
        """Raise ArgumentError if --split is used with a run that was not trained on the built-in corpus."""
        if self.split is not None and settings.data.built_in is None:
            hint = "use files: regard data korean --split test, then --source and --target"
            problem = "this run was not trained on the built-in corpus"
            raise ArgumentError(message(f"--split {self.split}", problem, hint=hint))

    def read(self) -> References:
        """Read the references from files, or generate references of the built-in corpus."""
        if self.split is not None:
            return built_in_references(self.split, self.sentences or SENTENCES)
        return self._read_files().first(self.sentences)

    def _read_files(self) -> References:
        """Read the references from files."""
        if self.rows:
            columns, names = two_columns(self.columns), two_names("--fields", self.fields)
            check_first_lines(self.tsv or (), columns, self.encoding)
            pairs = RowPairs.read(self.tsv, self.jsonl, columns, names, self.encoding)
            return paired_references(pairs, self.gold_alignments, self.base)
        check_sides([self.source] if self.source else [], self.target, None, self.encoding)
        return read_references(self.source, self.target or [], self.gold_alignments, self.base, self.encoding)
