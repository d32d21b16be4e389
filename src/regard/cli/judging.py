"""Judging: translations of a run or of a file against what people made of the same sentences."""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regard.cli.align import seen_at
from regard.cli.page_option import Page
from regard.cli.run_options import described
from regard.data import korean_english
from regard.data.korean.corpus import VERSION
from regard.data.line_io import Lines, Notes, read_pairs, say, tell, writing
from regard.decoding import Translator
from regard.decoding.unknown_words import UnknownWords
from regard.errors import DataError, UnknownName, message, shown
from regard.evaluation import AlignmentScore, Links, Score, evaluate_corpus, read_links
from regard.evaluation.gold_alignment import judged
from regard.training.logs.json_log import strict
from regard.training.logs.live_table import perplexity

__all__ = ["Given", "Judging", "Report", "built_in", "judge_file", "judge_run", "read_given"]

AT_ONCE = 1024
"""Pairs that are scored at once: the attention of all of them may be held."""

SPLITS = ("test", "long", "valid")


@dataclass(frozen=True)
class Given:
    """Sentences, what people made of each, several times perhaps, and the links that they drew.

    name, linked: where the references and the links are from.
    """

    sources: list[str]
    references: list[list[str]]
    name: str
    links: list[Links] | None = None
    linked: str = ""


@dataclass(frozen=True)
class Judging:
    """How BLEU finds words, whether capital letters count, and for which language Moses is asked as well."""

    tokenize: str = "13a"
    lowercase: bool = False
    moses: str | None = None

    def scores(self, translations: list[str], references: list[list[str]]) -> list[Score]:
        """BLEU, chrF, TER, exact match, and Moses BLEU where requested."""
        return evaluate_corpus(
            translations, references, tokenize=self.tokenize, lowercase=self.lowercase, moses=self.moses
        )


@dataclass(frozen=True)
class Signature:
    """What says how a score was made, a:1|b:2, broken between its parts and nowhere else."""

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
class Report:
    """How good translations are; run: what made them, where a run did."""

    data: str
    sentences: int
    scores: list[Score]
    run: dict[str, Any] | None = None
    perplexity: float | None = None
    alignment: AlignmentScore | None = None

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        found: dict[str, Any] = {"data": self.data, "sentences": self.sentences}
        found |= {"run": self.run} if self.run else {}
        found["scores"] = [asdict(each) for each in self.scores]
        if self.perplexity is not None:
            found["perplexity"] = strict(self.perplexity)
        if (links := self.alignment) is not None:
            rates = {"error_rate": links.error_rate, "precision": links.precision, "recall": links.recall}
            found["alignment"] = {**rates, "proposed": links.proposed, "sure": links.sure}
        return found

    def table(self) -> Table:
        """As people read it."""
        made = f" by {self.run['folder']}, step {self.run['step']:,}" if self.run else ""
        title = Text(f"{self.sentences:,} translations{made}: {self.data}")
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
            counts = f"{links.proposed:,} links proposed, {links.sure:,} sure"
            rows.append(("AER", 100 * links.error_rate, counts))
            rows.append(("precision", 100 * links.precision, ""))
            rows.append(("recall", 100 * links.recall, ""))
        return rows


def built_in(split: str, sentences: int, version: int = VERSION) -> Given:
    """Sentences of the built-in corpus, made by this version of its grammar, with their links."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    examples = list(korean_english(split, sentences, version=version))
    return Given(
        [each.source for each in examples],
        [[each.target for each in examples]],
        f"the built-in corpus (grammar {version}), {split}",
        [Links(each.sure, each.possible) for each in examples],
        "the built-in corpus",
    )


def read_given(source: str | None, target: list[str], alignment: Path | None, base: int) -> Given:
    """Sentences, references and links from files; as many of each."""
    references = [_whole(each) for each in target]
    sources = None if source is None else _whole(source)
    links = None if alignment is None else read_links(alignment, base)
    counts = {"--source": sources, **dict(zip(target, references, strict=True)), "--alignment": links}
    given = {shown(name): len(lines) for name, lines in counts.items() if lines is not None}
    if len(set(given.values())) > 1:
        problem = ", ".join(f"{name} has {count:,} lines" for name, count in given.items())
        raise DataError(message("regard evaluate", problem, expected="as many of each"))
    return Given(sources or [], references, ", ".join(map(shown, target)), links, shown(alignment or ""))


def _whole(place: str) -> list[str]:
    lines = Lines([place])
    found = list(lines)
    tell(Notes(), lines)
    return found


def judge_file(place: str, given: Given, how: Judging) -> Report:
    """How good the translations in a file are."""
    found = _whole(place)
    return Report(f"{shown(place)} against {given.name}", len(found), how.scores(found, given.references))


def judge_run(translator: Any, given: Given, how: Judging, out: Path | None, page: Page) -> Report:
    """How good a run translates and aligns; its translations are written where they are wanted."""
    if sys.stderr.isatty():  # a bar moves once a batch is done, and the first may take seconds
        say(f"translating {len(given.sources):,} sentences")
    began, found, notes, unknown = time.monotonic(), list[str](), Notes(), UnknownWords()
    with nullcontext() if out is None else writing(out) as write:
        translations = _looking(translator, page.wanted).stream(given.sources)
        for number, (each, reference) in enumerate(zip(translations, given.references[0], strict=True), 1):
            notes.add(number, each.notes)
            unknown.add(number, each)
            page.add(each, reference)
            found.append(each.text)
            if write is not None:
                write(each.text)
    seconds = time.monotonic() - began
    page.save(f"Translations by {translator.folder.name}", f"{given.name}; {described(translator.search)}")
    tell(notes)
    unknown.say()
    scores = how.scores(found, given.references)
    surprise, alignment = _judged_references(translator, given)
    run = {"folder": str(translator.folder), "step": translator.checkpoint.step}
    run |= {"search": repr(translator.search), "seconds": round(seconds, 3)}
    return Report(given.name, len(found), scores, run, surprise, alignment)


def _looking(translator: Translator, wanted: bool) -> Translator:
    """The same translator, which keeps what it looked at, or does not."""
    made = copy.copy(translator)
    made.look = "*cross" if wanted else None
    return made


def _judged_references(translator: Any, given: Given) -> tuple[float, AlignmentScore | None]:
    """The perplexity of the references, and how the model aligns them, where that is known."""
    scoring, total, count = _looking(translator, given.links is not None), 0.0, 0
    scoring.unit = "word"  # as people draw links
    links: list[tuple[tuple[int, int], ...]] = []
    words: list[tuple[int, int]] = []
    for pairs in read_pairs(given.sources, given.references[0], AT_ONCE):
        for each in scoring.score(*map(list, zip(*pairs, strict=True))):
            total, count = total + each.score, count + len(each.token_scores)
            if each.passages[0].attention:
                links.append(seen_at(each).align().links)
                words.append((len(each.source.split()), len(each.text.split())))
    surprise = perplexity(-total / max(count, 1))
    if given.links is None:
        return surprise, None
    if not links:
        say("the model does not look at its source, so there is no alignment to judge")
        return surprise, None
    return surprise, judged(links, given.links, words, given.linked)
