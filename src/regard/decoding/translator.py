"""Translator: lines of text in, as many translations out, in the same order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from regard.data.batch import EOS, UNK, Batch
from regard.data.progress_bar import advancing
from regard.decoding.alignment_units import Units, units_of
from regard.decoding.beam import Beam
from regard.decoding.forced_decoding import CROSS, check_look, observe, pieces_of
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.long_lines import OVERLONG, Part, Tokenizer, divided, truncated
from regard.decoding.rules import whole
from regard.decoding.search import Search, search
from regard.decoding.translation import END, Passage, Scored, Translation
from regard.decoding.word_alignment import Alignment, Choice
from regard.errors import ArgumentError, UnknownName, message
from regard.models.base import Model

__all__ = ["Translator"]

AT_ONCE = 4096
"""How many lines stream() reads before it translates them: sorted by length they fill batches better."""

MANY = 16
"""Hypotheses of a sentence from which on fewer sentences are searched at once."""

MOST = 10_000_000
"""The largest number of tokens of a batch."""


@dataclass(frozen=True)
class _Job:
    """One part of a line, to be translated: its place among the lines and within its line."""

    line: int
    place: int
    part: Part
    prefix: tuple[int, ...]


class Translator:
    """Translate lines of text with a model: N lines in, N translations out, in order, whatever they hold.

    source_tokenizer, target_tokenizer: encode_lines, decode, pieces, words and size. search: Beam(...),
    Greedy(...) or Sample(...). tokens_per_batch: source tokens, padding counted, translated at once. longest:
    how many tokens are read at once of a source, and of a target to be scored, EOS counted; fewer where the
    model reads fewer. overlong: "split" translates a longer line sentence by sentence, "truncate" only its
    beginning; its notes say so. look: the sites whose attention is kept, with * as wildcard; None for none.
    alignment: those of them that alignments are made from, a mean over layers and heads, or a Choice. unit:
    what alignments link and pictures show: "word", "character", or "auto": characters where the tokenizer's
    tokens are characters, words otherwise.

    >>> from regard.decoding import Beam, Translator
    >>> from regard.models import build_model
    >>> class Letters:
    ...     size = 30
    ...     def encode_lines(self, lines):
    ...         return [[ord(letter) - 93 for letter in line if letter.islower()] for line in lines]
    ...     def pieces(self, tokens):
    ...         return [chr(token + 93) for token in tokens]
    ...     def words(self, tokens):
    ...         return list(range(len(tokens)))
    ...     def decode(self, tokens):
    ...         return "".join(self.pieces(tokens))
    >>> model = build_model("bahdanau", 30, 30, width=8, embedding=8)
    >>> translator = Translator(model, Letters(), Letters(), search=Beam(size=4))
    >>> first, blank = translator.translate(["abc", ""])
    >>> first.attention["decoder.cross"].shape == (len(first.pieces), 4), blank.text
    (True, '')
    >>> translator.translate("abc").text == first.text
    True
    """

    def __init__(
        self,
        model: Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: Search | None = None,
        tokens_per_batch: int = 4096,
        longest: int = 512,
        overlong: str = "split",
        look: str | None = CROSS,
        alignment: str | Choice = CROSS,
        unit: str = "auto",
    ):
        whole("Translator()", tokens_per_batch=(tokens_per_batch, 1, MOST), longest=(longest, 2, MOST))
        if overlong not in OVERLONG:
            raise UnknownName("way with a line that is too long", overlong, OVERLONG)
        sides = (
            ("source", source_tokenizer.size, model.source_size),
            ("target", target_tokenizer.size, model.target_size),
        )
        for side, tokens, size in sides:
            if tokens != size:
                raise ArgumentError(
                    message(
                        "Translator()",
                        f"the {side} tokenizer has {tokens} tokens, and the model was made for {size}",
                        hint="take the tokenizers that the model was trained with",
                    )
                )
        self.model, self.look, self.overlong, self.alignment = model, look, overlong, Choice.of(alignment)
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.unit = unit
        units_of(source_tokenizer, unit), units_of(target_tokenizer, unit)  # raise where there are none
        self.search: Search = Beam() if search is None else search
        self.tokens_per_batch = tokens_per_batch
        self.longest = longest if model.longest_source is None else min(longest, model.longest_source)
        whole("Translator()", longest=(self.longest, 2))
        if not isinstance(self.search, Search):
            expected = "Greedy(...), Beam(...) or Sample(...)"
            problem = f"search is {self.search!r}"
            raise ArgumentError(message("Translator()", problem, expected=expected))
        if look is not None and look != CROSS:
            check_look(model, look)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.model).__name__}, search={self.search!r}, look={self.look!r})"
        )

    @overload
    def translate(self, lines: str, prefixes: str | None = None) -> Translation: ...  # type: ignore[overload-overlap]

    @overload
    def translate(self, lines: Iterable[str], prefixes: Iterable[str] | None = None) -> list[Translation]: ...

    def translate(
        self, lines: str | Iterable[str], prefixes: str | Iterable[str] | None = None
    ) -> Translation | list[Translation]:
        """Translate lines: as many translations, in the same order; of a blank line, a blank one.

        One line alone, a str, gives one translation. prefixes: what each translation must begin with, "" for
        nothing; in a line that is split, its first part.
        """
        if _alone("translate()", lines, lines if prefixes is None else prefixes):
            (only,) = self.translate([str(lines)], None if prefixes is None else [str(prefixes)])
            return only
        given = _checked("translate()", lines)
        begun = ["" for _ in given] if prefixes is None else _checked("translate()", prefixes)
        if len(begun) != len(given):
            problem = f"{len(begun)} prefixes for {len(given)} lines"
            raise ArgumentError(message("translate()", problem, hint='"" leaves a line free'))
        return self._translated(given, begun, first=0)

    def stream(self, lines: Iterable[str], at_once: int = AT_ONCE) -> Iterator[Translation]:
        """Translate lines as they come, `at_once` together, for files larger than memory."""
        whole("stream()", at_once=(at_once, 1))
        if isinstance(lines, str):
            hint = "put a single line in a list: stream([line])"
            raise ArgumentError(message("stream()", "a line was given where lines are expected", hint=hint))
        remaining, first = iter(lines), 0
        while some := list(itertools.islice(remaining, at_once)):
            yield from self._translated(_checked("stream()", some, first), ["" for _ in some], first)
            first += len(some)

    @overload
    def score(self, sources: str, targets: str) -> Scored: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, sources: Iterable[str], targets: Iterable[str]) -> list[Scored]: ...

    def score(self, sources: str | Iterable[str], targets: str | Iterable[str]) -> Scored | list[Scored]:
        """What the model thinks of given pairs: log-probability, token scores, attention, alignment.

        One pair alone, of two str, gives one. A side of more than `longest` tokens, or of more than the model
        can take, is cut, and the notes say so.
        """
        if _alone("score()", sources, targets):
            (only,) = self.score([str(sources)], [str(targets)])
            return only
        left, right = _checked("score()", sources), _checked("score()", targets)
        if len(left) != len(right):
            raise ArgumentError(message("score()", f"{len(left)} sources and {len(right)} targets"))
        notes = [list[str]() for _ in left]
        room = min(self.longest, self.model.longest_target or self.longest)
        source_units, target_units = self._units
        sources_in = _read(self.source_tokenizer, source_units, left, self.longest, "source", notes)
        targets_in = _read(self.target_tokenizer, target_units, right, room, "target", notes)
        lengths = [max(len(a.tokens), len(b.tokens)) + 1 for a, b in zip(sources_in, targets_in, strict=True)]
        passages: dict[int, Passage] = {}
        with advancing("scoring", len(left)) as reached:
            for rows in _batches(lengths, self.tokens_per_batch):
                batch = Batch.collate(
                    [sources_in[row].tokens for row in rows], [targets_in[row].tokens for row in rows], rows
                )
                for piece in pieces_of(batch, self.model.target_size):
                    observed = observe(self.model, piece, self.look)
                    for place, row in enumerate(piece.index.tolist()):
                        said, scores = (*targets_in[row].tokens, EOS), observed.token_scores[place]
                        found = Hypothesis(
                            said,
                            tuple(scores[: len(said)].tolist()),
                            0.0,
                            observed.attention_of(place),
                            observed.values_of(place),
                        )
                        passages[row] = self._passage(sources_in[row], found, right[row], 0)
                reached(len(passages))
        return [
            Scored(
                left[row],
                right[row],
                (passages[row],),
                tuple(notes[row]),
                aligned_at=self.alignment,
                units=(source_units.name, target_units.name),
                unknown=_unknown(self.source_tokenizer, left[row], sources_in[row].tokens),
                unknown_target=_unknown(self.target_tokenizer, right[row], targets_in[row].tokens),
            )
            for row in range(len(left))
        ]

    @overload
    def align(self, sources: str, targets: str) -> Alignment: ...  # type: ignore[overload-overlap]

    @overload
    def align(self, sources: Iterable[str], targets: Iterable[str]) -> list[Alignment]: ...

    def align(
        self, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> Alignment | list[Alignment]:
        """The word alignments of pairs, or of one; raises for a model that does not look at its source."""
        if _alone("align()", sources, targets):
            (only,) = self.align([str(sources)], [str(targets)])
            return only
        found = [each.alignment for each in self.score(sources, targets)]
        if None in found:
            raise ArgumentError(
                message(
                    "align()",
                    f"{type(self.model).__name__} shows no attention to its source at {self.look!r}",
                    hint="align with a model that has attention, and with look='*cross'",
                )
            )
        return [alignment for alignment in found if alignment is not None]

    @property
    def _units(self) -> tuple[Units, Units]:
        """What is aligned of the source, and of the target."""
        return units_of(self.source_tokenizer, self.unit), units_of(self.target_tokenizer, self.unit)

    def prepare(self, line: str) -> str:
        """Preprocess a line before translation; for subclasses to override. Default: no change."""
        return line

    def _translated(self, lines: list[str], prefixes: list[str], first: int) -> list[Translation]:
        """Translate lines whose first has this number in the data."""
        lines = [self.prepare(line) for line in lines]
        begun = self._begun(prefixes, first)
        notes, jobs = [], []
        for number, tokens in enumerate(self.source_tokenizer.encode_lines(lines)):
            parts, note = self._divided(lines[number], tokens)
            if begun[number] and not parts:
                note = "; ".join(
                    filter(None, (note, "its prefix was not used: there is nothing to translate"))
                )
            notes.append(note)
            for place, part in enumerate(parts):
                jobs.append(_Job(number, place, part, begun[number] if place == 0 else ()))
        found: list[list[tuple[Part, list[Hypothesis]]]] = [[] for _ in lines]
        for job, hypotheses in zip(jobs, self._searched(jobs, first), strict=True):
            found[job.line].append((job.part, hypotheses))
        return [
            self._translation(line, said, note) for line, said, note in zip(lines, found, notes, strict=True)
        ]

    def _begun(self, prefixes: list[str], first: int) -> list[tuple[int, ...]]:
        """The tokens of prefixes; raises where one leaves nothing to say after it."""
        limits = [limit for limit in (self.search.rules.maximum, self.model.longest_target) if limit]
        found = [tuple(tokens) for tokens in self.target_tokenizer.encode_lines(prefixes)]
        for number, tokens in enumerate(found, first + 1):
            if UNK in tokens:
                problem = f"the prefix of line {number} holds what the target tokenizer does not know"
                raise ArgumentError(message("translate()", problem, hint="use words that it was trained on"))
            if limits and len(tokens) >= min(limits):
                raise ArgumentError(
                    message(
                        "translate()",
                        f"the prefix of line {number} has {len(tokens)} tokens",
                        expected=f"fewer than the {min(limits)} that a translation may have",
                    )
                )
        return found

    def _divided(self, line: str, tokens: list[int]) -> tuple[list[Part], str]:
        """A line in the parts that are read at once, one as a rule, and what is to be said of it."""
        room = self.longest - 1
        if not tokens:
            return [], "nothing in it could be read" if line.strip() else ""
        if len(tokens) > room and self.overlong == "split":
            return divided(line, self.source_tokenizer, room, self._units[0])
        words = self._units[0].numbers(tokens)
        if len(tokens) > room:
            part, note = truncated(tokens, words, room)
            return [part], note
        return [Part(tuple(tokens), tuple(words))], ""

    @property
    def _room(self) -> int:
        """Tokens that are searched at once: fewer where a sentence has more than MANY hypotheses."""
        each = getattr(self.search, "size", getattr(self.search, "count", 1))
        return self.tokens_per_batch * MANY // max(MANY, each)

    def _searched(self, jobs: list[_Job], first: int) -> list[list[Hypothesis]]:
        """The hypotheses of each job, the jobs of like length searched together."""
        found: dict[int, list[Hypothesis]] = {}
        with advancing("translating", len(jobs)) as reached:
            for rows in _batches([len(job.part.tokens) + 1 for job in jobs], self._room):
                some = [jobs[row] for row in rows]
                # Samples are drawn by this number, so it depends on nothing but the place in the data.
                index = [(job.place << 40) + first + job.line for job in some]
                batch = Batch.collate([job.part.tokens for job in some], index=index)
                prefixes = [job.prefix for job in some]
                said = search(self.model, batch, self.search, prefixes=prefixes, look=self.look)
                found.update(zip(rows, said, strict=True))
                reached(len(found))
        return [found[row] for row in range(len(jobs))]

    def _translation(self, line: str, said: list[tuple[Part, list[Hypothesis]]], note: str) -> Translation:
        """A line and what was found for its parts; the next best where it was read as one."""
        others: tuple[Translation, ...] = ()
        if len(said) == 1:
            part, (_, *next_best) = said[0]
            others = tuple(self._translation(line, [(part, [each])], note) for each in next_best)
        passages, texts, unit = list[Passage](), list[str](), 0
        units = self._units
        for part, (best, *_) in said:
            texts.append(" ".join(self.target_tokenizer.decode(best.said).splitlines()))
            # The texts of parts are joined by a space, which is a character.
            first = unit + (units[1].name == "character" and unit > 0)
            passages.append(self._passage(part, best, texts[-1], first))
            unit = max([unit, *(number + 1 for number in passages[-1].words)])
        notes = [note, _unended([best for _, (best, *_) in said])]
        ranking = sum(best.ranking for _, (best, *_) in said)
        text = " ".join(filter(None, texts))
        noted = tuple(filter(None, notes))
        read = [token for part, _ in said for token in part.tokens]
        return Translation(
            line,
            text,
            tuple(passages),
            noted,
            ranking,
            others,
            aligned_at=self.alignment,
            units=(units[0].name, units[1].name),
            unknown=_unknown(self.source_tokenizer, line, read),
        )

    def _passage(self, part: Part, found: Hypothesis, text: str, first_word: int) -> Passage:
        """One hypothesis with the pieces and the words of its tokens, numbered from the first word given."""
        words = [word + first_word if word >= 0 else -1 for word in self._units[1].numbers(found.said)]
        # Tokens that are nothing but spaces are part of no word.
        words = words if text.strip() else [-1] * len(words)
        end = len(found.tokens) - len(found.said)
        return Passage(
            (*self.source_tokenizer.pieces(part.tokens), END),
            (*part.words, -1),
            (*self.target_tokenizer.pieces(found.said), *[END] * end),
            (*words, *[-1] * end),
            found.token_scores,
            found.attention,
            found.values,
        )


def _alone(call: str, first: object, second: object) -> bool:
    """Whether both are one line alone; raises where one is and the other is not."""
    single = [isinstance(each, str) for each in (first, second)]
    if single[0] != single[1]:
        problem = "a line alone was given with a list of lines"
        raise ArgumentError(message(call, problem, expected="two lines, or two lists of them"))
    return single[0]


def _checked(call: str, lines: Iterable[str], first: int = 0) -> list[str]:
    """Lines as a list of text that can be written: halves of characters are joined, or replaced."""
    if not isinstance(lines, Iterable):
        problem = f"what was given is of type {type(lines).__name__}"
        raise ArgumentError(message(call, problem, expected="a line, or a list of lines"))
    checked = []
    for number, line in enumerate(lines, first + 1):
        if not isinstance(line, str):
            problem = f"line {number} is of type {type(line).__name__}"
            raise ArgumentError(message(call, problem, expected="text"))
        checked.append(line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    return checked


def _unknown(tokenizer: Tokenizer, line: str, tokens: Sequence[int]) -> tuple[str, ...]:
    """The words or characters of a line that the vocabulary does not cover, if the tokenizer reports them."""
    uncovered = getattr(tokenizer, "uncovered", frozenset({UNK}))
    return (
        () if uncovered.isdisjoint(tokens) or not hasattr(tokenizer, "unknown") else tokenizer.unknown(line)
    )


def _read(
    tokenizer: Tokenizer, units: Units, lines: list[str], longest: int, side: str, notes: list[list[str]]
) -> list[Part]:
    """The tokens of lines, cut where there are too many; the notes of each line say so."""
    parts = []
    for tokens, said in zip(tokenizer.encode_lines(lines), notes, strict=True):
        words = units.numbers(tokens)
        part = Part(tuple(tokens), tuple(words))
        if len(tokens) >= longest:
            part, note = truncated(tokens, words, longest - 1)
            said.append(f"{side} {note}")
        parts.append(part)
    return parts


def _unended(said: list[Hypothesis]) -> str:
    """What is to be said of translations that were cut before they ended; nothing where none was."""
    cut = [len(each.tokens) for each in said if not each.finished]
    if len(said) == 1 and cut:
        return f"the translation did not end: cut at {cut[0]} tokens"
    return f"{len(cut)} of {len(said)} parts did not end, and were cut" if cut else ""


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Rows of like length together, the longest first, so many that their padded tokens fit."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > tokens:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
