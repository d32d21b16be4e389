"""LineDecoder: decode lines in batches (search or forced decoding), and add text and words to the results."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.data.batch import EOS, UNK, Batch
from regard.data.line_io import advancing
from regard.decoding.alignment_units import Units, units_of
from regard.decoding.forced_decoding import observe, pieces_of
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.long_lines import Part, Tokenizer
from regard.decoding.search import Search, search
from regard.decoding.translation import END, Passage, Translation
from regard.decoding.word_alignment import BatchAlignments

if TYPE_CHECKING:
    from regard.decoding.translator import Translator

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
                result = search(
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
            "token_scores": best.token_scores,
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
