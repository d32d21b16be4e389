"""Evaluation report: scores of the translations of a run, or of a file, against reference translations."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regard.data import korean_english
from regard.data.line_io import Lines, Notes, place_name, say, tell, writing
from regard.data.pairs import PairStream, in_batches
from regard.decoding.alignment_units import count_units
from regard.decoding.search_options import describe_search
from regard.decoding.unknown_words import UnknownWords
from regard.errors import DataError, UnknownName, message, shown
from regard.evaluation import AlignmentScore, Links, Score, evaluate_corpus, read_links
from regard.evaluation.alignment_error_rate import evaluate_alignments
from regard.roles import CROSS
from regard.tasks.picture_outputs import ResultFiles
from regard.tasks.translation.alignment_choice import aligned_at
from regard.training.logs.json_log import strict
from regard.training.logs.live_table import perplexity

__all__ = [
    "EvaluationOptions",
    "EvaluationReport",
    "References",
    "built_in_references",
    "evaluate_file",
    "evaluate_run",
    "paired_references",
    "read_references",
]

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
    return reference_perplexity, evaluate_alignments(links, references.links, sizes, references.linked)
