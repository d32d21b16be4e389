"""Translator: translate, score and align lines of text with a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import overload

from regard.decoding.active_rows import device_of
from regard.decoding.alignment_units import Units, check_units
from regard.decoding.beam import Beam
from regard.decoding.forced_decoding import check_look
from regard.decoding.input_checks import (
    DEFAULT,
    Default,
    both_single,
    checked_lines,
    encode_prefixes,
    search_hint,
)
from regard.decoding.line_decoder import LineDecoder
from regard.decoding.long_lines import (
    OVERLONG,
    Part,
    Tokenizer,
    divided,
    truncated,
)
from regard.decoding.rules import TRANSLATION_LIMIT, check_integers
from regard.decoding.search import Search
from regard.decoding.translation import Scored, Translation
from regard.decoding.word_alignment import Alignment, Choice
from regard.errors import ArgumentError, UnknownName, check_keywords, message
from regard.models.base import Model
from regard.roles import CROSS

AT_ONCE = 4096
"""Number of lines that stream() reads and translates together.

The lines are sorted by length before they are divided into batches. If more lines are read together, the
lines of a batch have more similar lengths, so batches need less padding.
"""

TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 8192}
"""Default number of source tokens per batch, by the type of the device of the model."""

MAX_TOKENS = 10_000_000
"""The largest value of tokens_per_batch and longest."""

_on_translator = partial(
    search_hint, where="set it on the translator: Translator(..., {0}) or regard.load(run, {0})"
)


class Translator:
    """Translate lines of text with a model.

    source_tokenizer, target_tokenizer: objects with the methods of decoding.Tokenizer.
    search: Beam(...), Greedy(...) or Sample(...). Default: Beam().
    tokens_per_batch: maximum number of source tokens per batch, padding included. Default: 4096; 8192 if the
        model is on a GPU.
    longest: maximum number of tokens of a source line, EOS included; in score(), also of a target line. The
        maximum of the model is used instead if it is smaller.
    overlong: what to do with a longer line in translate(): "split" translates it sentence by sentence,
        "truncate" translates only its beginning. Translation.notes says if a line was split or truncated.
    look: the attention layers (sites) whose weights are recorded: a role such as "cross", or names with * as
        wildcard. None records nothing.
    alignment: which attention weights alignments are computed from. A str (a role or names of sites, as in
        `look`) selects the mean over these sites and all their heads. A Choice can also select one head, and
        can align each token with the weights of the next decoding step.
    unit: what alignments link: "word", "morpheme", "character", or "auto" (characters for character
        tokenizers, morphemes for morpheme tokenizers, otherwise words).

    A method call can use other values of search, look and unit. Several threads can share a translator.

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

    limit = TRANSLATION_LIMIT
    """The maximum number of tokens of a translation, used if the rules of the search have no maximum."""

    @partial(check_keywords, hint=search_hint)
    def __init__(
        self,
        model: Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: Search | None = None,
        tokens_per_batch: int | None = None,
        longest: int = 512,
        overlong: str = "split",
        look: str | None = CROSS,
        alignment: str | Choice = CROSS,
        unit: str = "auto",
    ):
        if tokens_per_batch is None:
            tokens_per_batch = TOKENS_PER_BATCH.get(device_of(model).type, TOKENS_PER_BATCH["cpu"])
        bounds = {"tokens_per_batch": (tokens_per_batch, 1, MAX_TOKENS), "longest": (longest, 2, MAX_TOKENS)}
        check_integers("Translator()", **bounds)
        if overlong not in OVERLONG:
            raise UnknownName("value of overlong", overlong, OVERLONG)
        sizes = (source_tokenizer.size, model.source_size), (target_tokenizer.size, model.target_size)
        for side, (tokens, size) in zip(("source", "target"), sizes, strict=True):
            if tokens != size:
                problem = f"the {side} tokenizer has {tokens} tokens, but the model expects {size}"
                hint = "use the tokenizers that the model was trained with"
                raise ArgumentError(message("Translator()", problem, hint=hint))
        self.model, self.look, self.overlong, self.alignment = model, look, overlong, Choice.of(alignment)
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.unit = unit
        check_units(source_tokenizer, target_tokenizer, unit)
        self.search: Search = Beam() if search is None else _checked_search("Translator()", search)
        self.tokens_per_batch = tokens_per_batch
        self.longest = longest if model.longest_source is None else min(longest, model.longest_source)
        check_integers("Translator()", longest=(self.longest, 2))
        if look is not None and look != CROSS:
            check_look(model, look)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.model).__name__}, search={self.search!r}, look={self.look!r})"
        )

    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        lines: str,
        prefixes: str | None = None,
        *,
        search: Search | None = None,
        look: str | Default | None = DEFAULT,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        *,
        search: Search | None = None,
        look: str | Default | None = DEFAULT,
    ) -> list[Translation]: ...

    @partial(check_keywords, hint=_on_translator)
    def translate(
        self,
        lines: str | Iterable[str],
        prefixes: str | Iterable[str] | None = None,
        *,
        search: Search | None = None,
        look: str | Default | None = DEFAULT,
    ) -> Translation | list[Translation]:
        """Translate one line (a str) or several. Return one Translation, or a list in the same order.

        The translation of a blank line is blank.

        prefixes: the text that each translation must begin with, "" for none. If a long line is split into
            parts, the translation of its first part begins with this text.
        search, look: used instead of those of the translator.
        """
        if both_single("translate()", lines, lines if prefixes is None else prefixes):
            starts = None if prefixes is None else [str(prefixes)]
            (only,) = self.translate([str(lines)], starts, search=search, look=look)
            return only
        texts = checked_lines("translate()", lines)
        starts = ["" for _ in texts] if prefixes is None else checked_lines("translate()", prefixes)
        if len(starts) != len(texts):
            problem = f"{len(starts)} prefixes for {len(texts)} lines"
            raise ArgumentError(message("translate()", problem, hint='use "" for a line without a prefix'))
        how = self.search if search is None else _checked_search("translate()", search)
        return self._translate_lines(texts, starts, 0, how, self._decoder("translate()", look))

    def stream(
        self,
        lines: Iterable[str],
        at_once: int = AT_ONCE,
        *,
        search: Search | None = None,
        look: str | Default | None = DEFAULT,
    ) -> Iterator[Translation]:
        """Yield the translation of each line. Lines may be an iterator, e.g. over a file larger than memory.

        at_once: the number of lines that are read and translated together.
        search, look: used instead of those of the translator.
        """
        check_integers("stream()", at_once=(at_once, 1))
        if isinstance(lines, str):
            hint = "put a single line in a list: stream([line])"
            raise ArgumentError(message("stream()", "lines is a str, not an iterable of lines", hint=hint))
        how = self.search if search is None else _checked_search("stream()", search)
        decoder = self._decoder("stream()", look)
        remaining, first = iter(lines), 0
        while chunk := list(itertools.islice(remaining, at_once)):
            texts = checked_lines("stream()", chunk, first)
            yield from self._translate_lines(texts, ["" for _ in texts], first, how, decoder)
            first += len(chunk)

    @overload
    def score(  # type: ignore[overload-overlap]
        self, sources: str, targets: str, *, look: str | Default | None = DEFAULT, unit: str | None = None
    ) -> Scored: ...

    @overload
    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        look: str | Default | None = DEFAULT,
        unit: str | None = None,
    ) -> list[Scored]: ...

    @partial(check_keywords, hint=_on_translator)
    def score(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        look: str | Default | None = DEFAULT,
        unit: str | None = None,
    ) -> Scored | list[Scored]:
        """Score given sentence pairs by forced decoding: log-probabilities, attention and alignment.

        sources, targets: two str, or two lists of the same length. Return one Scored, or a list. A source or
            target with more than `longest` tokens, or more than the maximum of the model, is truncated, and
            Scored.notes says so.
        look, unit: used instead of those of the translator.
        """
        if both_single("score()", sources, targets):
            (only,) = self.score([str(sources)], [str(targets)], look=look, unit=unit)
            return only
        left, right = checked_lines("score()", sources), checked_lines("score()", targets)
        if len(left) != len(right):
            raise ArgumentError(message("score()", f"{len(left)} sources and {len(right)} targets"))
        decoder = self._decoder("score()", look, unit)
        room = min(self.longest, self.model.longest_target or self.longest)
        encoded = [
            [truncated(each, side.units, longest - 1) for each in side.tokenizer.encode_lines(lines)]
            for side, lines, longest in ((decoder.source, left, self.longest), (decoder.target, right, room))
        ]
        pairs = [(source, target) for (source, _), (target, _) in zip(*encoded, strict=True)]
        passages = decoder.score(pairs, right)
        return [
            Scored(
                left[row],
                right[row],
                (passage,),
                tuple(
                    f"{name} {note}"
                    for name, (_, note) in zip(("source", "target"), notes, strict=True)
                    if note
                ),
                aligned_at=self.alignment,
                units=decoder.units,
                unknown=decoder.source.unknown(left[row], pairs[row][0].tokens),
                unknown_target=decoder.target.unknown(right[row], pairs[row][1].tokens),
                bytewise=decoder.bytewise,
            )
            for row, (passage, *notes) in enumerate(zip(passages, *encoded, strict=True))
        ]

    @overload
    def align(  # type: ignore[overload-overlap]
        self, sources: str, targets: str, *, look: str | Default = DEFAULT, unit: str | None = None
    ) -> Alignment: ...

    @overload
    def align(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        look: str | Default = DEFAULT,
        unit: str | None = None,
    ) -> list[Alignment]: ...

    @partial(check_keywords, hint=_on_translator)
    def align(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        *,
        look: str | Default = DEFAULT,
        unit: str | None = None,
    ) -> Alignment | list[Alignment]:
        """Return the word alignment of one sentence pair (two str), or of several.

        sources, targets: two str, or two lists of the same length. The result is one Alignment, or a list.
        look, unit: used instead of those of the translator.

        Raise ArgumentError if the model has no cross-attention that `look` records.
        """
        if both_single("align()", sources, targets):
            (only,) = self.align([str(sources)], [str(targets)], look=look, unit=unit)
            return only
        alignments = [each.alignment for each in self.score(sources, targets, look=look, unit=unit)]
        if None in alignments:
            sites = self.look if look is DEFAULT else look
            problem = f"{type(self.model).__name__} has no cross-attention that matches look={sites!r}"
            hint = "set look='cross', or use a model with cross-attention"
            raise ArgumentError(message("align()", problem, hint=hint))
        return [alignment for alignment in alignments if alignment is not None]

    def _decoder(self, call: str, look: str | Default | None, unit: str | None = None) -> LineDecoder:
        """Return the LineDecoder of one call of a public method, with the settings of this call.

        call: the name of the method, for error messages.

        look: the argument of the method. DEFAULT: use the value of the translator. None: record nothing.
        unit: the argument of the method. None: use the value of the translator.
        """
        if look is DEFAULT:
            look = self.look
        elif look not in (None, CROSS, self.look):
            check_look(self.model, str(look), call)
        unit = self.unit if unit is None else unit
        check_units(self.source_tokenizer, self.target_tokenizer, unit)
        return LineDecoder(self, look, unit)

    def prepare(self, line: str) -> str:
        """Return the text to translate for a line, by default the line itself. Subclasses may override it."""
        return line

    def _translate_lines(
        self, lines: list[str], prefixes: list[str], first: int, how: Search, decoder: LineDecoder
    ) -> list[Translation]:
        """Return the Translation of each line.

        prefixes: for each line, the text that its translation must begin with, "" for none.
        first: the number of input lines before these lines. Error messages and Sample(...) use it to number
            the lines.
        how: the search method.
        """
        lines = [self.prepare(line) for line in lines]
        limits = [limit for limit in (how.rules.maximum, self.model.longest_target) if limit]
        starts = encode_prefixes(self.target_tokenizer, prefixes, limits, first)
        notes, parts = list[str](), list[list[Part]]()
        for number, tokens in enumerate(self.source_tokenizer.encode_lines(lines)):
            own, note = self._split_line(lines[number], tokens, decoder.source.units)
            if starts[number] and not own:
                note = "; ".join(filter(None, (note, "its prefix is ignored: the line is empty")))
            notes.append(note)
            parts.append(own)
        hypotheses = decoder.search(parts, starts, first, how)
        return decoder.translations(lines, parts, hypotheses, notes)

    def _split_line(self, line: str, tokens: list[int], units: Units) -> tuple[list[Part], str]:
        """Return the parts of a line that are translated separately, and a note for the user, or "".

        Usually, there is one part. There are more if the line is too long for the model, and none if it has
        no tokens.

        tokens: the token ids of the line.
        """
        room = self.longest - 1
        if not tokens:
            return [], "the tokenizer finds no tokens in this line" if line.strip() else ""
        if len(tokens) > room and self.overlong == "split":
            return divided(line, self.source_tokenizer, room, units)
        part, note = truncated(tokens, units, room)
        return [part], note


def _checked_search(call: str, search: Search) -> Search:
    if not isinstance(search, Search):
        expected = "Greedy(...), Beam(...) or Sample(...)"
        raise ArgumentError(message(call, f"search is {search!r}", expected=expected))
    return search
