"""Translator: translate, score and align lines of text with a model."""

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
from regard.decoding.input_checks import answer_keywords, both_single, checked_lines
from regard.decoding.long_lines import OVERLONG, Part, Tokenizer, divided, truncated
from regard.decoding.rules import check_integers
from regard.decoding.search import Search, search
from regard.decoding.translation import END, Passage, Scored, Translation
from regard.decoding.word_alignment import Alignment, Choice
from regard.errors import ArgumentError, UnknownName, message
from regard.models.base import Model

__all__ = ["Translator"]

AT_ONCE = 4096
"""Number of lines that stream() reads and translates together; sorting them by length reduces padding."""

FULL_BATCH_BEAMS = 16
"""With more hypotheses per sentence (beams or samples) than this, batches get proportionally smaller."""

MAX_TOKENS = 10_000_000
"""The largest number of tokens of a batch."""

ON_TRANSLATOR = "set it on the translator: Translator(..., {0}) or regard.load(run, {0})"
"""Hint for a search setting that was passed to a method; {0} is the setting."""


@dataclass(frozen=True)
class _Job:
    """One part of a line to translate: the index of the line, and of the part within the line."""

    line: int
    place: int
    part: Part
    prefix: tuple[int, ...]


class Translator:
    """Translate lines of text with a model: one translation per line, in order, also for blank lines.

    source_tokenizer, target_tokenizer: objects with the methods of decoding.Tokenizer.
    search: Beam(...), Greedy(...) or Sample(...). Default: Beam().
    tokens_per_batch: number of source tokens per batch, padding included.
    longest: maximum number of tokens, EOS included, of a source, and of a target in score(); less if the
        model's own maximum is less.
    overlong: what to do with a longer line: "split" translates it sentence by sentence, "truncate" translates
        only its beginning. The notes of the translation say so.
    look: the sites whose attention is recorded, with * as wildcard; None records nothing.
    alignment: the sites that alignments are computed from, averaged over layers and heads, or a Choice.
    unit: what alignments link: "word", "character", or "auto" for characters if the tokens are characters
        and words otherwise.

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

    @answer_keywords("Translator()")
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
        bounds = {"tokens_per_batch": (tokens_per_batch, 1, MAX_TOKENS), "longest": (longest, 2, MAX_TOKENS)}
        check_integers("Translator()", **bounds)
        if overlong not in OVERLONG:
            raise UnknownName("value of overlong", overlong, OVERLONG)
        sides = (
            ("source", source_tokenizer.size, model.source_size),
            ("target", target_tokenizer.size, model.target_size),
        )
        for side, tokens, size in sides:
            if tokens != size:
                raise ArgumentError(
                    message(
                        "Translator()",
                        f"the {side} tokenizer has {tokens} tokens, but the model has {size}",
                        hint="use the tokenizers that the model was trained with",
                    )
                )
        self.model, self.look, self.overlong, self.alignment = model, look, overlong, Choice.of(alignment)
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.unit = unit
        units_of(source_tokenizer, unit), units_of(target_tokenizer, unit)  # raise for an invalid unit
        self.search: Search = Beam() if search is None else search
        self.tokens_per_batch = tokens_per_batch
        self.longest = longest if model.longest_source is None else min(longest, model.longest_source)
        check_integers("Translator()", longest=(self.longest, 2))
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

    @answer_keywords("translate()", ON_TRANSLATOR)
    def translate(
        self, lines: str | Iterable[str], prefixes: str | Iterable[str] | None = None
    ) -> Translation | list[Translation]:
        """Translate one line (a str) or several; return one Translation, or a list in the same order.

        A blank line has a blank translation. prefixes: text that each translation must begin with, "" for
        none; if a line is split, it applies to the first part.
        """
        if both_single("translate()", lines, lines if prefixes is None else prefixes):
            (only,) = self.translate([str(lines)], None if prefixes is None else [str(prefixes)])
            return only
        texts = checked_lines("translate()", lines)
        starts = ["" for _ in texts] if prefixes is None else checked_lines("translate()", prefixes)
        if len(starts) != len(texts):
            problem = f"{len(starts)} prefixes for {len(texts)} lines"
            raise ArgumentError(message("translate()", problem, hint='use "" for a line without a prefix'))
        return self._translate_lines(texts, starts, first=0)

    def stream(self, lines: Iterable[str], at_once: int = AT_ONCE) -> Iterator[Translation]:
        """Translate an iterator of lines, `at_once` lines at a time, for files larger than memory."""
        check_integers("stream()", at_once=(at_once, 1))
        if isinstance(lines, str):
            hint = "put a single line in a list: stream([line])"
            raise ArgumentError(message("stream()", "lines is a str, not an iterable of lines", hint=hint))
        remaining, first = iter(lines), 0
        while chunk := list(itertools.islice(remaining, at_once)):
            texts = checked_lines("stream()", chunk, first)
            yield from self._translate_lines(texts, ["" for _ in texts], first)
            first += len(chunk)

    @overload
    def score(self, sources: str, targets: str) -> Scored: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, sources: Iterable[str], targets: Iterable[str]) -> list[Scored]: ...

    @answer_keywords("score()", ON_TRANSLATOR)
    def score(self, sources: str | Iterable[str], targets: str | Iterable[str]) -> Scored | list[Scored]:
        """Score given pairs by forced decoding: log-probability, token scores, attention and alignment.

        For one pair, two str, return one Scored. A side with more tokens than `longest`, or than the maximum
        of the model, is truncated, and the notes say so.
        """
        if both_single("score()", sources, targets):
            (only,) = self.score([str(sources)], [str(targets)])
            return only
        left, right = checked_lines("score()", sources), checked_lines("score()", targets)
        if len(left) != len(right):
            raise ArgumentError(message("score()", f"{len(left)} sources and {len(right)} targets"))
        notes = [list[str]() for _ in left]
        room = min(self.longest, self.model.longest_target or self.longest)
        source_units, target_units = self._units
        sources_in = _encode(self.source_tokenizer, source_units, left, self.longest, "source", notes)
        targets_in = _encode(self.target_tokenizer, target_units, right, room, "target", notes)
        lengths = [max(len(a.tokens), len(b.tokens)) + 1 for a, b in zip(sources_in, targets_in, strict=True)]
        passages: dict[int, Passage] = {}
        with advancing("scoring", len(left)) as report:
            for rows in _batches(lengths, self.tokens_per_batch):
                batch = Batch.collate(
                    [sources_in[row].tokens for row in rows], [targets_in[row].tokens for row in rows], rows
                )
                for part in pieces_of(batch, self.model.target_size):
                    observed = observe(self.model, part, self.look)
                    for place, row in enumerate(part.index.tolist()):
                        target, scores = (*targets_in[row].tokens, EOS), observed.token_scores[place]
                        hypothesis = Hypothesis(
                            target,
                            tuple(scores[: len(target)].tolist()),
                            0.0,
                            observed.attention_of(place),
                            observed.values_of(place),
                        )
                        passages[row] = self._passage(sources_in[row], hypothesis, right[row], 0)
                report(len(passages))
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
                bytewise=self._bytewise,
            )
            for row in range(len(left))
        ]

    @overload
    def align(self, sources: str, targets: str) -> Alignment: ...  # type: ignore[overload-overlap]

    @overload
    def align(self, sources: Iterable[str], targets: Iterable[str]) -> list[Alignment]: ...

    @answer_keywords("align()", ON_TRANSLATOR)
    def align(
        self, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> Alignment | list[Alignment]:
        """Return the word alignment of one pair, or of several; raise if no cross-attention was recorded."""
        if both_single("align()", sources, targets):
            (only,) = self.align([str(sources)], [str(targets)])
            return only
        alignments = [each.alignment for each in self.score(sources, targets)]
        if None in alignments:
            raise ArgumentError(
                message(
                    "align()",
                    f"{type(self.model).__name__} has no cross-attention that matches look={self.look!r}",
                    hint="use a model with attention, and look='*cross'",
                )
            )
        return [alignment for alignment in alignments if alignment is not None]

    @property
    def _units(self) -> tuple[Units, Units]:
        """The alignment units of the source and of the target."""
        return units_of(self.source_tokenizer, self.unit), units_of(self.target_tokenizer, self.unit)

    @property
    def _bytewise(self) -> tuple[bool, bool]:
        """Whether the source and the target tokenizer encode unknown characters as bytes."""
        return _encodes_bytes(self.source_tokenizer), _encodes_bytes(self.target_tokenizer)

    def prepare(self, line: str) -> str:
        """Preprocess a line before translation; for subclasses to override. Default: no change."""
        return line

    def _translate_lines(self, lines: list[str], prefixes: list[str], first: int) -> list[Translation]:
        """Translate lines. first: the index of the first line in the data."""
        lines = [self.prepare(line) for line in lines]
        prefix_tokens = self._encode_prefixes(prefixes, first)
        notes, jobs = [], []
        for number, tokens in enumerate(self.source_tokenizer.encode_lines(lines)):
            parts, note = self._split_line(lines[number], tokens)
            if prefix_tokens[number] and not parts:
                note = "; ".join(filter(None, (note, "its prefix is ignored: the line is empty")))
            notes.append(note)
            for place, part in enumerate(parts):
                jobs.append(_Job(number, place, part, prefix_tokens[number] if place == 0 else ()))
        results: list[list[tuple[Part, list[Hypothesis]]]] = [[] for _ in lines]
        for job, hypotheses in zip(jobs, self._search_jobs(jobs, first), strict=True):
            results[job.line].append((job.part, hypotheses))
        return [
            self._translation(line, parts, note)
            for line, parts, note in zip(lines, results, notes, strict=True)
        ]

    def _encode_prefixes(self, prefixes: list[str], first: int) -> list[tuple[int, ...]]:
        """Return the tokens of the prefixes; raise ArgumentError for unknown tokens or too many tokens."""
        limits = [limit for limit in (self.search.rules.maximum, self.model.longest_target) if limit]
        encoded = [tuple(tokens) for tokens in self.target_tokenizer.encode_lines(prefixes)]
        for number, tokens in enumerate(encoded, first + 1):
            if UNK in tokens:
                problem = f"the prefix of line {number} has words outside the target vocabulary"
                hint = "use words of the training data"
                raise ArgumentError(message("translate()", problem, hint=hint))
            if limits and len(tokens) >= min(limits):
                raise ArgumentError(
                    message(
                        "translate()",
                        f"the prefix of line {number} has {len(tokens)} tokens",
                        expected=f"fewer than {min(limits)}, the maximum length of a translation",
                    )
                )
        return encoded

    def _split_line(self, line: str, tokens: list[int]) -> tuple[list[Part], str]:
        """Return the parts of a line that are translated separately, usually one, and a note for the user."""
        room = self.longest - 1
        if not tokens:
            return [], "the tokenizer finds no tokens in this line" if line.strip() else ""
        if len(tokens) > room and self.overlong == "split":
            return divided(line, self.source_tokenizer, room, self._units[0])
        words = self._units[0].numbers(tokens)
        if len(tokens) > room:
            part, note = truncated(tokens, words, room)
            return [part], note
        return [Part(tuple(tokens), tuple(words))], ""

    @property
    def _room(self) -> int:
        """The number of source tokens per batch; it is reduced for more than FULL_BATCH_BEAMS hypotheses."""
        per_sentence = getattr(self.search, "size", getattr(self.search, "count", 1))
        return self.tokens_per_batch * FULL_BATCH_BEAMS // max(FULL_BATCH_BEAMS, per_sentence)

    def _search_jobs(self, jobs: list[_Job], first: int) -> list[list[Hypothesis]]:
        """Return the hypotheses of each job; jobs of similar length share a batch."""
        hypotheses: dict[int, list[Hypothesis]] = {}
        with advancing("translating", len(jobs)) as report:
            for rows in _batches([len(job.part.tokens) + 1 for job in jobs], self._room):
                batch_jobs = [jobs[row] for row in rows]
                # The index seeds the samples, so it depends only on the position in the data.
                index = [(job.place << 40) + first + job.line for job in batch_jobs]
                batch = Batch.collate([job.part.tokens for job in batch_jobs], index=index)
                prefixes = [job.prefix for job in batch_jobs]
                result = search(self.model, batch, self.search, prefixes=prefixes, look=self.look)
                hypotheses.update(zip(rows, result, strict=True))
                report(len(hypotheses))
        return [hypotheses[row] for row in range(len(jobs))]

    def _translation(self, line: str, parts: list[tuple[Part, list[Hypothesis]]], note: str) -> Translation:
        """Build a Translation from the hypotheses of each part; with the n-best list if there is one part."""
        others: tuple[Translation, ...] = ()
        if len(parts) == 1:
            part, (_, *next_best) = parts[0]
            others = tuple(self._translation(line, [(part, [each])], note) for each in next_best)
        passages, texts, unit = list[Passage](), list[str](), 0
        units = self._units
        for part, (best, *_) in parts:
            texts.append(" ".join(self.target_tokenizer.decode(best.output_tokens).splitlines()))
            # The parts are joined by a space, which counts as a character.
            first = unit + (units[1].name == "character" and unit > 0)
            passages.append(self._passage(part, best, texts[-1], first))
            unit = max([unit, *(number + 1 for number in passages[-1].words)])
        notes = tuple(filter(None, (note, _unfinished_note([best for _, (best, *_) in parts]))))
        ranking = sum(best.ranking for _, (best, *_) in parts)
        text = " ".join(filter(None, texts))
        source_tokens = [token for part, _ in parts for token in part.tokens]
        return Translation(
            line,
            text,
            tuple(passages),
            notes,
            ranking,
            others,
            aligned_at=self.alignment,
            units=(units[0].name, units[1].name),
            unknown=_unknown(self.source_tokenizer, line, source_tokens),
            bytewise=self._bytewise,
        )

    def _passage(self, part: Part, hypothesis: Hypothesis, text: str, first_word: int) -> Passage:
        """Return a hypothesis as a Passage, with the text and the word index of each token.

        first_word: the index in the line of the first target word of this part.
        """
        words = [
            word + first_word if word >= 0 else -1
            for word in self._units[1].numbers(hypothesis.output_tokens)
        ]
        # Tokens that decode to white space only belong to no word.
        words = words if text.strip() else [-1] * len(words)
        end = len(hypothesis.tokens) - len(hypothesis.output_tokens)
        return Passage(
            (*self.source_tokenizer.pieces(part.tokens), END),
            (*part.words, -1),
            (*self.target_tokenizer.pieces(hypothesis.output_tokens), *[END] * end),
            (*words, *[-1] * end),
            hypothesis.token_scores,
            hypothesis.attention,
            hypothesis.values,
        )


def _unknown(tokenizer: Tokenizer, line: str, tokens: Sequence[int]) -> tuple[str, ...]:
    """Return the words or characters that the vocabulary does not cover, if the tokenizer reports them."""
    uncovered = getattr(tokenizer, "uncovered", frozenset({UNK}))
    return (
        () if uncovered.isdisjoint(tokens) or not hasattr(tokenizer, "unknown") else tokenizer.unknown(line)
    )


def _encodes_bytes(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer has tokens other than UNK, bytes, for what its vocabulary does not cover."""
    return bool(getattr(tokenizer, "uncovered", frozenset()) - {UNK})


def _encode(
    tokenizer: Tokenizer, units: Units, lines: list[str], longest: int, side: str, notes: list[list[str]]
) -> list[Part]:
    """Tokenize lines, truncated to `longest` tokens; add a note to `notes` for each truncated line."""
    parts = []
    for tokens, line_notes in zip(tokenizer.encode_lines(lines), notes, strict=True):
        words = units.numbers(tokens)
        part = Part(tuple(tokens), tuple(words))
        if len(tokens) >= longest:
            part, note = truncated(tokens, words, longest - 1)
            line_notes.append(f"{side} {note}")
        parts.append(part)
    return parts


def _unfinished_note(hypotheses: list[Hypothesis]) -> str:
    """Return a note on hypotheses that reached the maximum length without EOS; "" if all finished."""
    lengths = [len(each.tokens) for each in hypotheses if not each.finished]
    if len(hypotheses) == 1 and lengths:
        return f"the translation reached the maximum length of {lengths[0]} tokens without an end"
    return f"{len(lengths)} of {len(hypotheses)} parts reached the maximum length" if lengths else ""


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of row indices, longest first, with at most `tokens` tokens each, padding included."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > tokens:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
