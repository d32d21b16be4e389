"""`regard evaluate` for translation: the options, the references, and the report of scores."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regard.data.column_names import two_columns, two_names
from regard.data.line_io import Lines, Notes, check_standard_input, place_name, say, tell, writing
from regard.data.pairs import PairStream, RowPairs, in_batches
from regard.data.progress_bar import advancing
from regard.decoding.alignment_units import check_units, count_units
from regard.decoding.search_options import build_search, describe_search
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.evaluation import (
    Agreement,
    AlignmentScore,
    Faithfulness,
    Links,
    Score,
    agreement,
    evaluate_corpus,
    faithfulness,
    read_links,
)
from regard.evaluation.alignment_error_rate import check_links, score_links
from regard.roles import CROSS, sites_matching
from regard.runs.run_commands import ChosenRun
from regard.runs.run_folder import config_of, is_run
from regard.runs.run_task import RunTask
from regard.runs.seed_scores import FittedTable
from regard.tasks.file_options import COLUMNS, ENCODING, FAITHFULNESS, FIELDS, JSONL, PAGE, SPLIT, TSV
from regard.tasks.header_lines import check_first_lines, columns_of_header
from regard.tasks.picture_outputs import ResultFiles, check_output_ending
from regard.tasks.task_table import task_of
from regard.tasks.text_file_checks import check_sides
from regard.tasks.translation.alignment import aligned_at
from regard.tasks.translation.data import swapped_note
from regard.tasks.translation.expected_quality import describe_quality
from regard.tasks.translation.settings import TranslationSettings
from regard.training.command_options import CommandOption
from regard.training.logs.json_log import strict
from regard.training.logs.live_table import perplexity
from regard.training.settings import build

__all__ = [
    "EVALUATE_OPTIONS",
    "EvaluationOptions",
    "EvaluationReport",
    "FaithfulnessReport",
    "References",
    "TranslationEvaluation",
    "built_in_references",
    "evaluate_file",
    "evaluate_run",
    "evaluate_translation",
    "measure_faithfulness",
    "paired_references",
    "read_references",
]

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
    if empty := sum(not any(map(str.strip, each)) for each in zip(*references.references, strict=True)):
        pairs = "1 pair has an empty reference" if empty == 1 else f"{empty:,} pairs have empty references"
        say(f"note: {pairs}, which lowers the scores; training drops such pairs")
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


AT_ONCE = 1024
"""Number of sentence pairs that are scored in one call. It is limited because the attention of all pairs is
in memory."""

SPLITS = ("test", "long", "valid")


@dataclass(frozen=True)
class References:
    """Source sentences with one or more lists of reference translations, and gold alignments if known.

    sources: the source sentences.
    references: lists of translations; each list has one translation for each source sentence.
    name: where the references come from, for example the name of a file.
    links: the gold alignment of each sentence pair.
    linked: the file that the gold alignments come from.
    """

    sources: list[str]
    references: list[list[str]]
    name: str
    links: list[Links] | None = None
    linked: str = ""

    def first(self, count: int | None) -> References:
        """Return the first sentences with their references and gold alignments; None means all."""
        if count is None or all(len(lines) <= count for lines in self.references):
            return self
        references = [lines[:count] for lines in self.references]
        links = None if self.links is None else self.links[:count]
        name = f"the first {count:,} of {self.name}"
        return replace(self, sources=self.sources[:count], references=references, links=links, name=name)


@dataclass(frozen=True)
class EvaluationOptions:
    """How BLEU and the other scores of translations are computed.

    tokenize: the name of the tokenizer that sacreBLEU uses for BLEU, for example "13a".
    lowercase: whether to lowercase the text first.
    moses: the language of the Moses tokenizer for a second BLEU score. None: no second score.
    """

    tokenize: str = "13a"
    lowercase: bool = False
    moses: str | None = None

    def scores(self, translations: list[str], references: list[list[str]]) -> list[Score]:
        """Score translations: return BLEU, chrF, TER, exact match and, if `moses` is set, Moses BLEU."""
        return evaluate_corpus(
            translations, references, tokenize=self.tokenize, lowercase=self.lowercase, moses=self.moses
        )


@dataclass(frozen=True)
class Signature:
    """The signature of a sacreBLEU score, such as nrefs:1|case:mixed, to be printed in a table.

    If the signature is too long for one line, it is broken only after "|" or a space.
    """

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = [""]
        for part in re.findall(r"[^| ]+[| ]?", self.text):
            if lines[-1] and len(lines[-1]) + len(part) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(line.rstrip() for line in lines), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, re.findall(r"[^| ]+[| ]?", self.text)), default=0)
        return Measurement(min(longest, options.max_width), min(len(self.text), options.max_width))


@dataclass(frozen=True)
class EvaluationReport:
    """The scores of the translations of a run, or of the translations in a file.

    data: where the references come from. If a file of translations was scored, also the name of this file.
    sentences: number of translations.
    scores: BLEU, chrF, TER, exact match and, if requested, Moses BLEU.
    perplexity: the perplexity of the references, per token. None without a run.
    alignment: the alignment error rate. None without gold alignments.
    run: a dict with the run folder ("folder"), the training step of the checkpoint ("step"), the search
        ("search") and the translation time ("seconds"). None if the translations were read from a file.
    """

    data: str
    sentences: int
    scores: list[Score]
    run: dict[str, Any] | None = None
    perplexity: float | None = None
    alignment: AlignmentScore | None = None

    def written(self) -> dict[str, Any]:
        """Return the fields of the report as a dict for JSON, without the fields that are None."""
        report: dict[str, Any] = {"data": self.data, "sentences": self.sentences}
        report |= {"run": self.run} if self.run else {}
        report["scores"] = [asdict(each) for each in self.scores]
        if self.perplexity is not None:
            report["perplexity"] = strict(self.perplexity)
        if (links := self.alignment) is not None:
            rates = {"error_rate": links.error_rate, "precision": links.precision, "recall": links.recall}
            report["alignment"] = {**rates, "proposed": links.proposed, "sure": links.sure}
        return report

    def table(self) -> Table:
        """Return a rich Table of the scores, for the terminal."""
        by_run = f" by {self.run['folder']}, step {self.run['step']:,}" if self.run else ""
        title = Text(f"{self.sentences:,} translations{by_run}: {self.data}")
        table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="bold")
        table.add_column("score", no_wrap=True)
        table.add_column("", justify="right", no_wrap=True)
        table.add_column("signature", style="dim")
        for name, value, about in self._rows():
            table.add_row(Text(name, style="cyan"), f"{value:.2f}", Signature(about))
        return table

    def _rows(self) -> list[tuple[str, float, str]]:
        rows = [(each.name, each.value, each.signature) for each in self.scores]
        if self.perplexity is not None:
            rows.append(("perplexity", self.perplexity, "per token of the references"))
        if (links := self.alignment) is not None:
            counts = f"{links.proposed:,} predicted links, {links.sure:,} sure gold links"
            rows.append(("AER", 100 * links.error_rate, counts))
            rows.append(("precision", 100 * links.precision, ""))
            rows.append(("recall", 100 * links.recall, ""))
        return rows


def built_in_references(split: str, sentences: int) -> References:
    """Generate sentence pairs of the built-in corpus with their gold alignments.

    split: name of the split, for example "test".
    sentences: number of sentence pairs.
    """
    from regard.data import korean_english  # the grammar is imported only where it is used

    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)

    examples = list(korean_english(split, sentences))
    return References(
        [each.source for each in examples],
        [[each.target for each in examples]],
        f"the built-in corpus, {split}",
        [Links(each.sure, each.possible) for each in examples],
        "the built-in corpus",
    )


def read_references(
    source: str | None, target: list[str], alignment: Path | None, base: int, encoding: str | None = None
) -> References:
    """Read source sentences, references and gold alignments from files with equal numbers of lines.

    source: the file of source sentences, or None.
    target: the files of reference translations, one or more.
    alignment: the file of gold alignments, or None.
    base: number of the first word in the alignment file, 0 or 1.
    encoding: the encoding of the files; None is UTF-8.
    """
    references = [_read_lines(each, encoding) for each in target]
    sources = None if source is None else _read_lines(source, encoding)
    links = None if alignment is None else read_links(alignment, base)
    files = ((source, sources), *zip(target, references, strict=True), (alignment, links))
    _check_counts({place_name(str(path)): len(lines) for path, lines in files if lines is not None})
    name = ", ".join(map(place_name, target))
    return References(sources or [], references, name, links, shown(alignment or ""))


def paired_references(pairs: PairStream, alignment: Path | None, base: int) -> References:
    """Convert sentence pairs to source sentences and references, and read gold alignments from a file.

    pairs: the sentence pairs.
    alignment: the file of gold alignments, or None.
    base: number of the first word in the alignment file, 0 or 1.
    """
    both = list(pairs)
    tell(Notes(), pairs)
    links = None if alignment is None else read_links(alignment, base)
    if links is not None:
        _check_counts({pairs.name: len(both), shown(alignment or ""): len(links)})
    sources, references = [source for source, _ in both], [target for _, target in both]
    return References(sources, [references], pairs.name, links, shown(alignment or ""))


def _check_counts(counts: Mapping[str, int]) -> None:
    """Raise DataError unless all files have the same number of lines.

    counts: a dict from the name of each file to its number of lines.
    """
    if len(set(counts.values())) > 1:
        problem = ", ".join(f"{name} has {count:,} lines" for name, count in counts.items())
        raise DataError(message("regard evaluate", problem, expected="the same number of lines"))


def _read_lines(path: str, encoding: str | None) -> list[str]:
    lines = Lines([path], encoding=encoding)
    texts = list(lines)
    tell(Notes(), lines)
    return texts


def evaluate_file(
    path: str, references: References, options: EvaluationOptions, encoding: str | None = None
) -> EvaluationReport:
    """Score the translations in a file against references.

    path: a file with one translation per line.
    references: the source sentences and reference translations.
    options: how the scores are computed.
    encoding: the encoding of the file; None is UTF-8.
    """
    translations = _read_lines(path, encoding)
    scores = options.scores(translations, references.references)
    return EvaluationReport(f"{shown(path)} against {references.name}", len(translations), scores)


def evaluate_run(
    translator: Any,
    references: References,
    options: EvaluationOptions,
    out: Path | None,
    page: ResultFiles,
    unit: str = "word",
) -> EvaluationReport:
    """Translate the source sentences with the model of a run, and score the translations.

    The report also has the perplexity of the references and, if there are gold alignments, the alignment
    error rate (AER).

    translator: the translator of the run.
    references: the source sentences and reference translations.
    options: how the scores are computed.
    out: file to write the translations to, or None.
    page: the HTML page to which the translations are added. The page is saved at the end.
    unit: what the gold alignments link: "word", "morpheme" or "character".
    """
    if sys.stderr.isatty():  # the first batch may take seconds
        say(f"translating {len(references.sources):,} sentences")
    start, texts, notes, unknown = time.monotonic(), list[str](), Notes(), UnknownWords()
    with nullcontext() if out is None else writing(out) as write:
        translations = translator.stream(references.sources, look=CROSS if page.enabled else None)
        pairs = zip(translations, references.references[0], strict=True)
        for number, (translation, reference) in enumerate(pairs, 1):
            notes.add(number, translation.notes)
            unknown.add(number, translation)
            page.add(translation, reference=reference)
            texts.append(translation.text)
            if write is not None:
                write(translation.text)
    seconds = time.monotonic() - start
    title = f"Translations by {translator.folder.name}"
    page.save(title, f"{references.name}; {describe_search(translator.search)}")
    tell(notes)
    unknown.say()
    if note := swapped_note(references.sources, translator.source_tokenizer):
        say(note)
    scores = options.scores(texts, references.references)
    reference_perplexity, alignment = _score_references(translator, references, unit)
    run = {"folder": str(translator.folder), "step": translator.checkpoint.step}
    run |= {"search": repr(translator.search), "seconds": round(seconds, 3)}
    return EvaluationReport(references.name, len(texts), scores, run, reference_perplexity, alignment)


def _score_references(
    translator: Any, references: References, unit: str
) -> tuple[float, AlignmentScore | None]:
    """Return the perplexity of the references, and the alignment score if gold alignments are known."""
    total, count, look = 0.0, 0, None if references.links is None else CROSS
    links: list[tuple[tuple[int, int], ...]] = []
    sizes: list[tuple[int, int]] = []
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    pairs = zip(references.sources, references.references[0], strict=True)
    for batch in in_batches(pairs, AT_ONCE):
        for each in translator.score(*batch, look=look, unit=unit):
            total, count = total + each.score, count + len(each.token_scores)
            if each.passages[0].attention:
                links.append(aligned_at(each).align().links)
                source, target = map(count_units, tokenizers, (each.source, each.text), (unit, unit))
                sizes.append((source, target))
    reference_perplexity = perplexity(-total / max(count, 1))
    if references.links is None:
        return reference_perplexity, None
    if not links:
        say("no alignment scores: the model has no attention to its source")
        return reference_perplexity, None
    check_links(references.links, sizes, references.linked)
    return reference_perplexity, score_links(links, references.links)


LEGEND = (
    "hidden: the most attended source word is masked. unknown: it is replaced by the unknown token. random: "
    "the same with a random other word, for the column before. compr., suff.: comprehensiveness and "
    "sufficiency, as probabilities. tau: Kendall's tau between weights and gradients. uniform: all weights "
    "are made equal. See docs/faithfulness.md."
)
"""Explanation of the columns of the table, printed below it."""

MAX_SENTENCES = 100
"""Maximum number of sentences to measure. It is small because each target word is scored about 15 times."""


@dataclass(frozen=True)
class FaithfulnessReport:
    """How faithful the cross-attention of a model is: does the output depend on the attended source words?

    results: the first result is for all cross-attention layers (sites) together. If there are several sites,
        one result for each site follows.
    agreement: how similar the cross-attention of this run and of another run are. None: no other run was
        compared.
    """

    results: list[Faithfulness]
    agreement: Agreement | None = None

    def written(self) -> dict[str, Any]:
        """Return the measurements of all sites and the agreement with the other run as a dict for JSON."""
        report, *sites = (each.written() for each in self.results)
        report |= {"summary": self.results[0].summary()} | ({"sites": sites} if sites else {})
        return report | ({"agreement": self.agreement.written()} if self.agreement else {})

    def described(self) -> Group:
        """Return the report for the terminal: a table, with its legend and a summary."""
        first = self.results[0]
        lines: list[RenderableType] = [Text(""), self.table()]
        lines.append(Text(LEGEND, style="dim"))
        lines.append(Text(f"{first.summary()}."))
        lines.append(Text(f"Uniform attention increases the loss by {first.uniform:.2f} nats per word."))
        if self.agreement is not None:
            lines.append(Text(f"Comparison of the attention with the other run: {self.agreement}."))
        return Group(*lines)

    def table(self) -> Table:
        """Return a table with a row for all attention layers (sites) together, and a row for each site.

        If there is only one site, the table has one row.
        """
        first = self.results[0]
        title = f"Faithfulness over {first.sentences:,} references, {len(first.words):,} words: loss in nats"
        table = FittedTable(("uniform", "suff.", "compr."))  # the uniform loss is also in the summary
        table.title, table.title_justify, table.title_style = title, "left", "bold"
        table.add_column("site")
        for name in ("hidden", "random", "unknown", "random", "compr.", "suff.", "tau", "uniform"):
            table.add_column(name, justify="right")
        names = ("hidden", "hidden_random", "unknown", "unknown_random")
        for each in self.results:
            numbers = [each.mean(name) for name in (*names, "comprehensiveness", "sufficiency", "kendall")]
            table.add_row(
                Text(each.at, "cyan"),
                *(f"{round(number, 2) + 0.0:.2f}" for number in (*numbers, each.uniform)),
            )
        return table


def measure_faithfulness(
    translator: Any, references: References, other: Any | None = None
) -> FaithfulnessReport | None:
    """Measure how much the probability of the references depends on the attended source words.

    Only the first MAX_SENTENCES pairs are measured. Progress is shown on standard error. If the model has no
    attention to the source, print a message and return None.

    translator: the translator of the run.
    references: the source sentences and reference translations.
    other: the translator of another run. Its attention is compared with this run. None: no comparison.
    """
    sources, targets = references.sources[:MAX_SENTENCES], references.references[0][:MAX_SENTENCES]
    (sample,) = translator.score(sources[:1], targets[:1])
    sites = sites_matching(sample.passages[0].attention, CROSS)
    if not sites:
        say("no faithfulness scores: the model has no attention to its source")
        return None
    tested = [CROSS, *(sites if len(sites) > 1 else [])]
    count = f"the first {len(sources)}" if len(references.sources) > len(sources) else f"{len(sources)}"
    say(f"measuring faithfulness on {count} sentences, which may take a minute or more")
    results = []
    with advancing("measuring faithfulness", len(tested)) as reached:
        for site in tested:
            results.append(faithfulness(translator, sources, targets, at=site))
            reached(len(results))
    if other is None:
        return FaithfulnessReport(results)
    return FaithfulnessReport(results, agreement(translator, other, sources, targets))
