"""`regard evaluate` for translation: the options, the references, and the report of scores."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regard.data.column_names import two_columns, two_names
from regard.data.line_io import Lines, Notes, advancing, check_standard_input, place_name, say, tell, writing
from regard.data.pairs import PairStream, in_batches
from regard.decoding.search_options import describe_search, search_of
from regard.decoding.unknown_words import UnknownWords
from regard.decoding.word_alignment import check_units, count_units
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.evaluation import (
    AlignmentScore,
    Links,
    Score,
    agreement,
    evaluate_corpus,
    faithfulness,
    read_links,
)
from regard.evaluation.alignment_error_rate import check_links, score_links
from regard.evaluation.attribution import METHODS, mean_correlations
from regard.evaluation.faithfulness import attribute_words
from regard.files.untrusted import strict
from regard.roles import CROSS, sites_matching
from regard.runs.run_commands import ChosenRun, RunReport
from regard.runs.run_facts import FittedTable
from regard.runs.run_folder import config_of, is_run
from regard.runs.run_task import RunTask
from regard.tasks.file_checks import SIDES, check_first_lines, check_sides, columns_of_header, sides_of_run
from regard.tasks.file_options import COLUMNS, ENCODING, FAITHFULNESS, FIELDS, JSONL, PAGE, SPLIT, TSV
from regard.tasks.picture_outputs import ResultFiles, check_output_ending
from regard.tasks.task_table import task_of
from regard.tasks.translation.alignment import aligned_at
from regard.tasks.translation.data import swapped_note
from regard.tasks.translation.settings import ENGINE, TranslationSettings, describe_quality
from regard.training.command_options import CommandOption
from regard.training.logs.live_table import perplexity
from regard.training.settings import build

SENTENCES = 1000
"""Default number of sentences of the built-in corpus."""

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
        most=10_000_000,
        shown_default=f"{SENTENCES} with --split, otherwise all",
    ),
    CommandOption(
        "--gold-alignments",
        "Also evaluate the alignments of the model, against the gold alignments in this file. Line N "
        "has the links of pair N: 0-2 is a sure link of source word 0 and target word 2, 0p2 or 0?2 is a "
        "possible link.",
        "FILE",
        Path,
        panel="Gold alignments",
    ),
    CommandOption(
        "--base",
        "Number of the first word in --gold-alignments: 0 or 1.",
        "INT",
        int,
        0,
        least=0,
        most=1,
        panel="Gold alignments",
    ),
    CommandOption(
        "--unit",
        "Unit that the links of --gold-alignments count: word, morpheme or character.",
        "NAME",
        default="word",
        panel="Gold alignments",
    ),
    CommandOption(
        "--lowercase/--cased",
        "Whether to lowercase translations and references before scoring.",
        kind=bool,
        shown_default="the setting of the run; without a run, --cased",
        panel="Scores",
    ),
    CommandOption(
        "--tokenize",
        "Tokenizer that sacreBLEU uses for BLEU.",
        "NAME",
        shown_default="the setting of the run; without a run, 13a",
        panel="Scores",
    ),
    CommandOption(
        "--moses",
        "Also compute BLEU with the Moses tokenizer for this language, e.g. en.",
        "LANGUAGE",
        panel="Scores",
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
        panel="Checkpoint and device",
    ),
    ENGINE,
)
"""The options of `regard evaluate` for translation."""

GOLD_UNITS = ("word", "morpheme", "character")
"""The values of --unit."""

SPLITS = ("test", "long", "valid")

AT_ONCE = 1024
"""Number of sentence pairs that are scored in one call. It is limited because the attention of all pairs is
in memory."""

MAX_SENTENCES = 100
"""Maximum number of sentences to measure. It is small because each target word is scored about 15 times."""

ATTRIBUTED = 30
"""Maximum number of sentences for gradients: each target word needs about 20 forward and backward passes."""

LEGEND = (
    "hidden: the most attended source word is masked. unknown: it is replaced by the unknown token. random: "
    "the same with a random other word, for the column before. compr., suff.: comprehensiveness and "
    "sufficiency, as probabilities. tau: Kendall's tau between weights and gradients. uniform: all weights "
    "are made equal. See docs/faithfulness.md."
)
"""Explanation of the columns of the table, printed below it."""


def evaluate_translation(task: type[RunTask], run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
    """Evaluate the translations of a run, or the translations in a file, against references.

    task: the task class.
    run: the run folder and the checkpoint to load. None if the translations are in a file (--translations).
    options: the values of EVALUATE_OPTIONS.
    """
    _check(options)
    translations, encoding = options["translations"], options["encoding"]
    search = search_of(options)
    html = ResultFiles("line", options["page"])
    references = _references(run, options)
    if empty := sum(not any(map(str.strip, each)) for each in zip(*references.references, strict=True)):
        pairs = "1 pair has an empty reference" if empty == 1 else f"{empty:,} pairs have empty references"
        say(f"note: {pairs}, which lowers the scores; training drops such pairs")
    scoring = {"tokenize": options["tokenize"], "lowercase": options["lowercase"], "moses": options["moses"]}
    if run is None:
        if translations is None:
            expected = "a run folder, or --translations"
            raise ArgumentError(message("regard evaluate", "nothing to evaluate", expected=expected))
        if options["output"] is not None or html.enabled or options["faithfulness"]:
            problem = "--output, --page and --faithfulness need a run"
            raise ArgumentError(message("--translations", problem))
        scoring |= {"tokenize": options["tokenize"] or "13a", "lowercase": bool(options["lowercase"])}
        texts = _read_lines(translations, encoding)
        scores = evaluate_corpus(texts, references.references, **scoring)
        return _report("", 0, f"{shown(translations)} against {references.name}", len(texts), scores)
    if translations is not None:
        problem, expected = "it cannot be combined with a run", "either a run folder or --translations"
        raise ArgumentError(message("--translations", problem, expected=expected))
    limits = {"tokens_per_batch": options["batch_tokens"], "longest": options["max_source_length"]}
    limits |= {"engine": options["engine"]}
    translator = run.load(task, search=search, precision=options["precision"], **limits)
    check_units(translator.source_tokenizer, translator.target_tokenizer, options["unit"])
    partner = None
    if options["other"] is not None:
        task_of(options["other"], "translation")  # raises an error if the other run has another task
        partner = ChosenRun(options["other"], device=run.device).load(task, precision=options["precision"])
    if options["split"] is not None and translator.settings.data.built_in is None:
        hint = "use files: regard data korean --split test, then --source and --target"
        problem = "this run was not trained on the built-in corpus"
        raise ArgumentError(message(f"--split {options['split']}", problem, hint=hint))
    settings = translator.settings.evaluation
    scoring["tokenize"] = options["tokenize"] or settings.tokenize
    scoring["lowercase"] = settings.lowercase if options["lowercase"] is None else options["lowercase"]
    report = evaluate_translator(translator, references, options["output"], html, options["unit"], **scoring)
    bleu, chrf = (each["value"] for each in report.values["scores"][:2])
    best = translator.settings.training.best
    sides = zip(references.sources, references.references[0], strict=True)
    if swapped := swapped_note(sides, translator.source_tokenizer, translator.target_tokenizer):
        say(swapped)
    quality = "" if swapped else describe_quality({"bleu": bleu, "chrf": chrf}, best, on="test set")
    values, printed = dict(report.values), list(report.printed or ())
    printed += [Text(quality, style="yellow")] if quality else []
    if options["faithfulness"] and (measured := _faithfulness(translator, references, partner)):
        values["faithfulness"] = measured[0]
        printed += measured[1]
    return replace(report, values=values, printed=printed)


def _check(options: Mapping[str, Any]) -> None:
    """Raise an error if options are incomplete, contradict each other, or have no effect."""
    needed: dict[str, tuple[str, int | None]] = {
        "other": ("faithfulness", None),
        "columns": ("tsv", None),
        "fields": ("jsonl", None),
        "base": ("gold_alignments", 0),
    }
    for name, (other, default) in needed.items():
        if options[name] != default and not options[other]:
            problem = f"requires --{other.replace('_', '-')}"
            raise ArgumentError(message(f"--{name}", problem, hint=f"leave --{name} out"))
    check_output_ending(options["output"], page=True)
    translations, source, target = options["translations"], options["source"], options["target"]
    files, rows = source is not None or bool(target), bool(options["tsv"] or options["jsonl"])
    split, gold, unit = options["split"], options["gold_alignments"], options["unit"]
    if split is not None and (files or rows or gold is not None):
        problem = "the built-in corpus has its own source, target and alignments"
        raise ArgumentError(message(f"--split {split}", problem, hint="remove the file options"))
    expected = "--source and --target, or --tsv, or --jsonl, or --translations and --target, or --split"
    if (files and rows) or (options["tsv"] and options["jsonl"]):
        problem = "the references are given in more than one way"
        raise ArgumentError(message("regard evaluate", problem, expected=expected))
    complete = target and (source is not None or translations is not None)
    if split is None and not complete and not rows:
        hint = "" if translations else "regard show RUN prints the scores on the validation data"
        problem = "there are no reference translations"
        expected = expected if translations else f"a file of pairs, or {expected}"
        raise ArgumentError(message("regard evaluate", problem, expected=expected, hint=hint))
    if gold is not None and source is None and not (rows and translations is None):
        problem = "alignments can be evaluated for a run only, not for a file of translations"
        raise ArgumentError(message("--gold-alignments", problem))
    if unit not in GOLD_UNITS:
        raise UnknownName("unit of alignment", unit, GOLD_UNITS)
    if unit != "word" and gold is None:
        problem = "it counts the links of --gold-alignments, which is not set"
        if split is not None:
            problem = "the gold alignments of the built-in corpus link words"
        raise ArgumentError(message(f"--unit {unit}", problem, hint="remove --unit"))
    check_standard_input(source, translations, *(target or ()))
    if translations is not None and options["sentences"] is not None:
        raise ArgumentError(message("--sentences", "cannot be combined with --translations"))


@dataclass(frozen=True)
class References:
    """Source sentences with one or more lists of reference translations, and gold alignments if known.

    sources: the source sentences.
    references: lists of translations; each list has one translation for each source sentence.
    name: where the references come from, for example the name of a file.
    links: the gold alignment of each sentence pair.
    linked: the file that the gold alignments come from.
    numbers: the line number of each pair in its file, for messages.
    """

    sources: list[str]
    references: list[list[str]]
    name: str
    links: list[Links] | None = None
    linked: str = ""
    numbers: Sequence[int] = ()

    def first(self, count: int | None) -> References:
        """Return the first sentences with their references and gold alignments; None means all."""
        if count is None or all(len(lines) <= count for lines in self.references):
            return self
        references = [lines[:count] for lines in self.references]
        links = None if self.links is None else self.links[:count]
        name = f"the first {count:,} of {self.name}"
        return replace(self, sources=self.sources[:count], references=references, links=links, name=name)


def _references(run: ChosenRun | None, options: Mapping[str, Any]) -> References:
    """Read the references from the files of the options, or generate those of the built-in corpus.

    run: for --tsv without --columns, the columns that this run was trained with, if the header names them.
    """
    source, tsv, encoding = options["source"], options["tsv"], options["encoding"]
    if options["split"] is not None:
        return built_in_references(options["split"], options["sentences"] or SENTENCES)
    gold = options["gold_alignments"]
    links = None if gold is None else read_links(gold, options["base"])
    if tsv or options["jsonl"]:
        columns, sides = options["columns"], SIDES
        if columns is None and tsv and run is not None and is_run(run.folder):
            config = str(run.folder / "config.toml")
            data = build(TranslationSettings, config_of(run.folder), config).data
            columns = columns_of_header(tsv, data.columns, encoding)
            sides = sides_of_run(vars(data))
        places = two_columns(columns or "1,2")
        check_first_lines(tsv or (), places, encoding, sides)
        fields = two_names("--fields", options["fields"] or "source,target")
        pairs = PairStream.rows(tsv, options["jsonl"], places, fields, encoding)
        both = list(pairs)
        tell(Notes(), pairs)
        sources, references = [each for each, _ in both], [[each for _, each in both]]
        name, counts, numbers = pairs.name, {pairs.name: len(both)}, tuple(pairs.numbers)
    else:
        check_sides([source] if source else [], options["target"], None, encoding)
        references = [_read_lines(each, encoding) for each in options["target"]]
        sources, numbers = [] if source is None else _read_lines(source, encoding), ()
        name = ", ".join(map(place_name, options["target"]))
        counts = {} if source is None else {place_name(source): len(sources)}
        lengths = map(len, references)
        counts |= dict(zip(map(place_name, options["target"]), lengths, strict=True))
    if links is not None:
        counts[place_name(str(gold))] = len(links)
    if len(set(counts.values())) > 1:
        problem = ", ".join(f"{file} has {count:,} lines" for file, count in counts.items())
        raise DataError(message("regard evaluate", problem, expected="the same number of lines"))
    read = References(sources, references, name, links, shown(gold or ""), numbers)
    return read.first(options["sentences"])


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


def _read_lines(path: str, encoding: str | None) -> list[str]:
    lines = Lines([path], encoding=encoding)
    texts = list(lines)
    tell(Notes(), lines)
    return texts


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


def _report(
    folder: str,
    step: int,
    data: str,
    sentences: int,
    scores: list[Score],
    perplexity: float | None = None,
    alignment: AlignmentScore | None = None,
    **run: Any,
) -> RunReport:
    """Return the report of scores.

    folder, step: the run folder and the training step of the checkpoint; "" and 0 for a file of translations.
    data: where the references come from.
    sentences: number of translations.
    perplexity: the perplexity of the references, per token. None without a run.
    alignment: the alignment error rate. None without gold alignments.
    run: further facts about the translations of a run.
    """
    values: dict[str, Any] = {"sentences": sentences, "scores": [asdict(each) for each in scores]}
    if folder:
        values["run"] = {"folder": folder, "step": step, **run}
    rows = [(each.name, each.value, each.signature) for each in scores]
    if perplexity is not None:
        values["perplexity"] = strict(perplexity)
        rows.append(("perplexity", perplexity, "per token of the references"))
    if (links := alignment) is not None:
        rates = {"error_rate": links.error_rate, "precision": links.precision, "recall": links.recall}
        values["alignment"] = {**rates, "proposed": links.proposed, "sure": links.sure}
        counts = f"{links.proposed:,} predicted links, {links.sure:,} sure gold links"
        rows.append(("AER", 100 * links.error_rate, counts))
        rows += [("precision", 100 * links.precision, ""), ("recall", 100 * links.recall, "")]
    table = Table(box=None, header_style="dim")
    table.add_column("score", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("signature", style="dim")
    for name, value, about in rows:
        table.add_row(Text(name, style="cyan"), f"{value:.2f}", Signature(about))
    by_run = f" by {folder}, step {step:,}" if folder else ""
    title = f"{sentences:,} translations{by_run}: {data}"
    return RunReport(folder, step, data, values, [table], title)


def evaluate_translator(
    translator: Any,
    references: References,
    out: Path | None,
    page: ResultFiles,
    unit: str = "word",
    **scoring: Any,
) -> RunReport:
    """Translate the source sentences with the model of a run, and score the translations.

    The report also has the perplexity of the references and, if there are gold alignments, the alignment
    error rate (AER).

    translator: the translator of the run.
    references: the source sentences and reference translations.
    out: file to write the translations to, or None.
    page: the HTML page to which the translations are added. The page is saved at the end.
    unit: what the gold alignments link: "word", "morpheme" or "character".
    scoring: further arguments of evaluate_corpus(), such as tokenize.
    """
    if sys.stderr.isatty():  # the first batch may take seconds
        say(f"translating {len(references.sources):,} sentences")
    start, texts, notes, unknown = time.monotonic(), list[str](), Notes(), UnknownWords()
    with nullcontext() if out is None else writing(out) as write:
        translations = translator.stream(references.sources, look=CROSS if page.enabled else None)
        pairs = zip(translations, references.references[0], strict=True)
        numbers = references.numbers or itertools.count(1)
        for number, (translation, reference) in zip(numbers, pairs, strict=False):
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
    scores = evaluate_corpus(texts, references.references, **scoring)
    measured = _score_references(translator, references, unit)
    folder, step = str(translator.folder), translator.checkpoint.step
    run: dict[str, Any] = {"search": repr(translator.search), "seconds": round(seconds, 3)}
    return _report(folder, step, references.name, len(texts), scores, *measured, **run)


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


def _faithfulness(
    translator: Any, references: References, other: Any | None
) -> tuple[dict[str, Any], list[RenderableType]] | None:
    """Measure how much the probability of the references depends on the attended source words.

    Only the first MAX_SENTENCES pairs are measured. Progress is shown on standard error. If the model has no
    attention to the source, print a message and return None. Otherwise, return the measurements as a dict for
    JSON, and as a table and texts. The first row is for all cross-attention layers (sites) together. If there
    are several sites, one row for each site follows.

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
    first, *single = results
    few = [
        each
        for each in translator.score(sources[:ATTRIBUTED], targets[:ATTRIBUTED], look=CROSS)
        if len(each.passages) == 1 and each.text.strip() and each.source.strip()
    ]
    agree = mean_correlations(attribute_words(translator, each) for each in few)
    values: dict[str, Any] = first.written() | {"summary": first.summary()}
    values["rank_correlation_with_erasure"] = {"sentences": len(few), **agree}
    values |= {"sites": [each.written() for each in single]} if single else {}
    title = f"Faithfulness over {first.sentences:,} references, {len(first.words):,} words: loss in nats"
    table = FittedTable(("uniform", "suff.", "compr."))  # the uniform loss is also in the summary
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    table.add_column("site")
    for name in ("hidden", "random", "unknown", "random", "compr.", "suff.", "tau", "uniform"):
        table.add_column(name, justify="right")
    names = ("hidden", "hidden_random", "unknown", "unknown_random", "comprehensiveness", "sufficiency")
    for each in results:
        numbers = [*map(each.mean, (*names, "kendall")), each.uniform]
        table.add_row(Text(each.at, "cyan"), *(f"{round(number, 2) + 0.0:.2f}" for number in numbers))
    uniform = f"Uniform attention increases the loss by {first.uniform:.2f} nats per word."
    printed: list[RenderableType] = [
        Text(),
        table,
        Text(LEGEND, style="dim"),
        Text(f"{first.summary()}."),
        Text(uniform),
    ]
    if agree:
        named = ", ".join(f"{METHODS.get(name, name)} {value:.2f}" for name, value in agree.items())
        about = f"what it costs to replace each source word ({len(few):,} sentences)"
        printed.append(Text(f"Rank correlation with {about}: {named}."))
    if other is not None:
        compared = agreement(translator, other, sources, targets)
        values["agreement"] = compared.written()
        printed.append(Text(f"Comparison of the attention with the other run: {compared}."))
    return values, printed
