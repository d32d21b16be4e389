"""Translator: translate, score and align lines of text with a model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

from regard.data.batch import EOS, UNK, Batch
from regard.data.line_io import advancing
from regard.decoding.active_rows import device_of
from regard.decoding.beam import Beam
from regard.decoding.forced_decoding import check_look, observe, pieces_of
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.input_checks import (
    DEFAULT,
    OVERLONG,
    Default,
    Part,
    Tokenizer,
    both_single,
    checked_lines,
    divided,
    encode_prefixes,
    search_hint,
    truncated,
)
from regard.decoding.rules import TRANSLATION_LIMIT, check_integers
from regard.decoding.search import Search, search
from regard.decoding.translation import END, Passage, Scored, Translation
from regard.decoding.word_alignment import Alignment, BatchAlignments, Choice, Units, check_units, units_of
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

    searcher: Callable[..., list[list[Hypothesis]]] = staticmethod(search)
    """The function that decodes a batch, with the arguments of search(). An engine can replace it."""

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
        self.guided = ""  # the site that was trained to align, see Scored.guided
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
                guided=self.guided,
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


FULL_BATCH_BEAMS = 16
"""The largest number of beams (or samples) for which a batch may have all tokens_per_batch tokens.

With more beams, a batch has proportionally fewer tokens, so that it needs no more memory.
"""


MOST_ROWS = 256
"""The largest number of sentences of a batch. Larger batches decode no more sentences per second."""


@dataclass(frozen=True)
class Side:
    """The tokenizer of one side (the source or the target) of a translator, and its alignment units.

    tokenizer: the tokenizer.
    units: the units that alignments link (words, morphemes or characters), and which tokens belong to each
        of them.
    """

    tokenizer: Tokenizer
    units: Units

    @functools.cached_property
    def bytewise(self) -> bool:
        """Whether the tokenizer encodes characters outside its vocabulary as bytes, instead of UNK."""
        return bool(getattr(self.tokenizer, "uncovered", frozenset()) - {UNK})

    def unknown(self, line: str, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the words or characters of a line that are not in the vocabulary.

        If the tokenizer has no method `unknown`, return ().

        tokens: the token ids of the line.
        """
        uncovered = getattr(self.tokenizer, "uncovered", frozenset({UNK}))
        if uncovered.isdisjoint(tokens) or not hasattr(self.tokenizer, "unknown"):
            return ()
        unknown: tuple[str, ...] = self.tokenizer.unknown(line)
        return unknown


class LineDecoder:
    """Decodes lines with the model of a translator, in one call of one of its methods.

    translator: the model, the tokenizers and their settings.
    look: the attention layers (sites) whose weights are recorded, or None.
    unit: the requested unit of alignments, such as "auto".
    """

    def __init__(self, translator: Translator, look: str | None, unit: str):
        self.translator, self.model, self.look = translator, translator.model, look
        tokenizers = translator.source_tokenizer, translator.target_tokenizer
        self.source, self.target = (Side(each, units_of(each, unit)) for each in tokenizers)
        self.units = self.source.units.name, self.target.units.name
        self.bytewise = self.source.bytewise, self.target.bytewise

    def search(
        self,
        parts: list[list[Part]],
        prefixes: list[tuple[int, ...]],
        first: int,
        how: Search,
    ) -> list[list[list[Hypothesis]]]:
        """Return the hypotheses of each part of each line. Parts of similar length are in the same batch.

        parts: for each line, its parts. A line that is not too long has one part.
        prefixes: the tokens that the translation of each line must begin with.
        first: the number of input lines before these lines. Sample(...) derives its random seeds from it.
        how: Greedy(...), Beam(...) or Sample(...).
        """
        places = [(line, place) for line, own in enumerate(parts) for place in range(len(own))]
        found: list[list[list[Hypothesis]]] = [[[] for _ in own] for own in parts]
        tokens, done = tokens_per_batch(self.translator.tokens_per_batch, how), 0
        with advancing("translating", len(places)) as report:
            for rows in _batches([len(parts[line][place].tokens) + 1 for line, place in places], tokens):
                some = [places[row] for row in rows]
                # Sampling seeds its random numbers with `index`, so it must depend only on line and part.
                index = [(place << 40) + first + line for line, place in some]
                batch = Batch.collate([parts[line][place].tokens for line, place in some], index=index)
                starts = [prefixes[line] if place == 0 else () for line, place in some]
                result = self.translator.searcher(
                    self.model, batch, how, prefixes=starts, look=self.look, limit=self.translator.limit
                )
                for (line, place), hypotheses in zip(some, result, strict=True):
                    found[line][place] = hypotheses
                done += len(rows)
                report(done)
        return found

    def score(self, pairs: list[tuple[Part, Part]], targets: list[str]) -> list[Passage]:
        """Run forced decoding on pairs (source, target). Pairs of similar length are in the same batch.

        targets: the target text of each pair.
        """
        lengths = [max(len(source.tokens), len(target.tokens)) + 1 for source, target in pairs]
        passages: dict[int, Passage] = {}
        with advancing("scoring", len(pairs)) as report:
            for rows in _batches(lengths, self.translator.tokens_per_batch):
                batch = Batch.collate(
                    [pairs[row][0].tokens for row in rows], [pairs[row][1].tokens for row in rows], rows
                )
                for part in pieces_of(batch, self.model.target_size):
                    observed = observe(self.model, part, self.look)
                    for place, row in enumerate(part.index.tolist()):
                        source, target = pairs[row][0], (*pairs[row][1].tokens, EOS)
                        scores = tuple(observed.token_scores[place, : len(target)].tolist())
                        sides = self.source, self.target
                        fields = _pieces_and_words(sides, source, target, targets[row])
                        fields["source_token_ids"] = (*source.tokens, EOS)
                        seen = observed.attention_of(place), observed.values_of(place)
                        fields |= {"token_scores": scores, "token_ids": target}
                        passages[row] = Passage(**fields, attention=seen[0], values=seen[1])
                report(len(passages))
        return [passages[row] for row in range(len(pairs))]

    def translations(
        self,
        lines: list[str],
        parts: list[list[Part]],
        hypotheses: list[list[list[Hypothesis]]],
        notes: list[str],
    ) -> list[Translation]:
        """Return the Translation of each line.

        lines: the source texts.
        parts: for each line, its parts.
        hypotheses: for each line and part, the hypotheses, best first.
        notes: for each line, a message for the user, such as that it was truncated, or "".
        """
        aligned = BatchAlignments(self.translator.alignment)
        every = [each for outputs in hypotheses for ranked in outputs for each in ranked]
        tokens, tokenizer = [each.output_tokens for each in every], self.target.tokenizer
        decode_lines = getattr(tokenizer, "decode_lines", None)
        decoded = decode_lines(tokens) if decode_lines else [tokenizer.decode(each) for each in tokens]
        texts = {id(each): " ".join(text.splitlines()) for each, text in zip(every, decoded, strict=True)}
        return [
            self._translation(line, list(zip(own, outputs, strict=True)), note, texts, aligned)
            for line, own, outputs, note in zip(lines, parts, hypotheses, notes, strict=True)
        ]

    def _translation(
        self,
        line: str,
        parts: list[tuple[Part, list[Hypothesis]]],
        note: str,
        texts: dict[int, str],
        aligned: BatchAlignments,
    ) -> Translation:
        """Build the Translation of a line from the best hypothesis of each of its parts.

        Its attribute `others`, with the other hypotheses of the n-best list, is empty if the line has several
        parts.

        line: the source text.
        parts: for each part of the line, the part and its hypotheses, best first.
        note: a message for the user about the line, such as that it was truncated, or "".
        texts: the text of each hypothesis, by its id().
        aligned: computes the word alignments of all translations of a call; those of this line are added.
        """
        others: tuple[Translation, ...] = ()
        if len(parts) == 1:
            part, (_, *next_best) = parts[0]
            single = ([(part, [each])] for each in next_best)
            others = tuple(self._translation(line, each, note, texts, aligned) for each in single)
        passages, unit = list[Passage](), 0
        for part, (best, *_) in parts:
            # Parts are joined by a space. If the units are characters, this space has an index too.
            number = unit + (self.target.units.name == "character" and unit > 0)
            passages.append(self._later_passage(part, best, texts[id(best)], number, aligned))
            if len(parts) > 1:
                unit = max([unit, *(number + 1 for number in passages[-1].words)])
        source_tokens = (
            parts[0][0].tokens if len(parts) == 1 else [t for part, _ in parts for t in part.tokens]
        )
        lengths, cut = [len(best.tokens) for _, (best, *_) in parts if not best.finished], ""
        if lengths:
            cut = f"the translation reached the maximum length of {lengths[0]} tokens without EOS"
        if lengths and len(parts) > 1:
            cut = f"{len(lengths)} of {len(parts)} parts of the line reached their maximum length without EOS"
        return Translation(
            line,
            " ".join(filter(None, (texts[id(best)] for _, (best, *_) in parts))),
            tuple(passages),
            tuple(filter(None, (note, cut))),
            sum(best.ranking for _, (best, *_) in parts),
            others,
            aligned_at=self.translator.alignment,
            guided=self.translator.guided,
            units=self.units,
            unknown=self.source.unknown(line, source_tokens),
            bytewise=self.bytewise,
        )

    def _later_passage(
        self, part: Part, best: Hypothesis, text: str, first: int, aligned: BatchAlignments
    ) -> Passage:
        """Return the Passage of one part of a line. Its pieces, words and attention are computed later.

        best: the hypothesis.
        text: its text.
        first: see _words().
        aligned: see _translation().
        """
        fields: dict[str, Any] = {
            "source_token_ids": (*part.tokens, EOS),
            "token_ids": best.tokens,
        }
        # These functions do not keep the model in memory.
        arguments = (self.source, self.target), part, best.tokens, text, first
        place = best.recorded_place()
        if place is not None:
            words = functools.partial(_words, *arguments)
            fields["_alignment"] = (aligned.choice, aligned.add(place, words))
        others = functools.partial(_pieces_and_words, *arguments)
        if "token_scores" in vars(best):
            fields["token_scores"] = best.token_scores
        else:  # of an engine that computes them when they are read
            others = functools.partial(_with_scores, best, others)
        passage: Passage = Passage.with_lazy_attention(
            lambda: (best.attention, best.values), others, **fields
        )
        return passage


def _pieces_and_words(
    sides: tuple[Side, Side], part: Part, token_ids: tuple[int, ...], text: str, first: int = 0
) -> dict[str, Any]:
    """Return the pieces and words of the Passage of one part of a line; for the arguments, see _words()."""
    output, end = _without_end(token_ids)
    source_words, words = _words(sides, part, token_ids, text, first)
    return {
        "source_pieces": (*sides[0].units.pieces(part.tokens), END),
        "source_words": source_words,
        "pieces": (*sides[1].units.pieces(output), *[END] * end),
        "words": words,
    }


def _with_scores(best: Hypothesis, others: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {**others(), "token_scores": best.token_scores}


def _words(
    sides: tuple[Side, Side], part: Part, token_ids: tuple[int, ...], text: str, first: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the index of the word (or character) of each source token, and of each target token.

    sides: the source and the target.
    part: the source tokens and the indices of their words.
    token_ids: the target tokens. The last one is EOS, unless the target was cut.
    text: the target text.
    first: the index in the whole target line of the first word or character of this part.
    """
    output, end = _without_end(token_ids)
    source = sides[0].units.numbers(part.tokens) if part.words is None else part.words
    words: Sequence[int] = [-1] * len(output)
    if text.strip():  # if the text is only white space, its tokens belong to no word
        words = sides[1].units.numbers(output)
        words = [word + first if word >= 0 else -1 for word in words] if first else words
    return (*source, -1), (*words, *[-1] * end)


def _without_end(token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the target tokens without EOS, and the number of EOS, 0 or 1."""
    end = int(token_ids[-1:] == (EOS,))
    return token_ids[: len(token_ids) - end], end


def tokens_per_batch(tokens: int, how: Search) -> int:
    """Return the maximum number of source tokens per batch. It is smaller if a search has many hypotheses.

    tokens: the maximum for a search with up to FULL_BATCH_BEAMS hypotheses per sentence.
    """
    hypotheses = getattr(how, "size", getattr(how, "count", 1))
    return tokens * FULL_BATCH_BEAMS // max(FULL_BATCH_BEAMS, hypotheses)


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Group rows (token sequences) of similar length in batches. Yield the row indices of each batch.

    The batch with the longest rows comes first. A batch has at most MOST_ROWS rows.

    lengths: the number of tokens of each row.
    tokens: the maximum number of tokens per batch, with padding.
    """
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and ((len(rows) + 1) * lengths[rows[0]] > tokens or len(rows) == MOST_ROWS):
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
