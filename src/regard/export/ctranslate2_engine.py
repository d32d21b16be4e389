"""Engine: search with CTranslate2 instead of PyTorch, with the same options and the same results.

Only the search is done by CTranslate2. Token scores and attention are computed by the model itself, by forced
decoding of the outputs, when they are read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.data.batch import BOS, EOS, PAD, UNK, Batch
from regard.decoding.beam import Average, Beam
from regard.decoding.forced_decoding import observe, pieces_of
from regard.decoding.greedy import Greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit, Rules
from regard.decoding.search import Search
from regard.errors import ArgumentError, message
from regard.roles import CROSS, BySite

if TYPE_CHECKING:
    from regard.models import Model

PRECISIONS = {
    "auto": "float32",
    "float32": "float32",
    "int8": "int8_float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
}
"""The compute type of CTranslate2 for each value of --precision on a CPU."""

PATIENCE = 2
"""CTranslate2 ends the search of a sentence after beam size * PATIENCE finished hypotheses. With 1, it can
miss hypotheses that the search of Regard finds."""


class Engine:
    """A converted model, and a function that searches with it like regard.decoding.search.search().

    folder: a folder that an export to ctranslate2 wrote.
    names: the names of the source tokens and of the target tokens.
    compute: the compute type of CTranslate2.
    """

    def __init__(self, folder: Path, names: tuple[list[str], list[str]], compute: str = "float32"):
        import ctranslate2

        threads = torch.get_num_threads()
        self._model = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=compute, intra_threads=threads
        )
        self._names = names
        self._numbers = {name: number for number, name in enumerate(names[1])}

    def search(
        self,
        model: Model,
        batch: Batch,
        how: Search,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        look: str | None = CROSS,
        limit: LengthLimit = TRANSLATION_LIMIT,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source of a batch, best first.

        The arguments are those of regard.decoding.search.search(). Token scores and attention of a hypothesis
        are computed when they are first read, for all hypotheses of the batch.
        """
        check_search(how, prefixes)
        limits = how.rules.limits(model, batch.source_lengths, None, limit).tolist()
        sources = [
            row[:n] for row, n in zip(batch.source.tolist(), batch.source_lengths.tolist(), strict=True)
        ]
        ranked = self._ranked(sources, how, max(limits, default=0))
        # CTranslate2 has one limit for a batch: sentences that passed their own limit are searched again.
        for row, (most, own) in enumerate(zip(limits, ranked, strict=True)):
            if any(len(tokens) > most or (tokens[-1:] != (EOS,)) for tokens, _ in own):
                (ranked[row],) = self._ranked([sources[row]], how, most)
        forced = _Forced(
            model, batch, [tokens for own in ranked for tokens, _ in own], [*map(len, ranked)], look
        )
        number, hypotheses = 0, list[list[Hypothesis]]()
        for own in ranked:
            listed = []
            for tokens, ranking in own:
                ended = tokens[-1:] == (EOS,)
                # At the maximum length, CTranslate2 returns the score of another step.
                divisor = None if ended else _divisor(how, len(tokens))
                compute = functools.partial(forced.attention, number)
                others = functools.partial(forced.scores, number, divisor)
                fields = {"tokens": tokens} | ({"ranking": ranking} if ended else {})
                listed.append(Hypothesis.with_lazy_attention(compute, others, **fields))
                number += 1
            hypotheses.append(listed)
        return hypotheses

    def _ranked(
        self, sources: list[list[int]], how: Search, longest: int
    ) -> list[list[tuple[tuple[int, ...], float]]]:
        """Return the tokens and the ranking of the hypotheses of each source, best first.

        longest: the maximum number of tokens, EOS included.
        """
        names, size = self._names, how.size if isinstance(how, Beam) else 1
        length = how.length if isinstance(how, Beam) else None
        forbidden = {PAD, BOS, *how.rules.forbidden} - {UNK}
        results = self._model.translate_batch(
            [[names[0][token] for token in source[:-1]] for source in sources],  # EOS is added
            beam_size=size,
            num_hypotheses=size,
            patience=PATIENCE if size > 1 else 1,
            # GNMT is no length penalty of CTranslate2: all hypotheses are ranked again below.
            length_penalty=length.alpha if isinstance(length, Average) else 0,
            max_decoding_length=longest,
            max_input_length=0,
            min_decoding_length=0,
            disable_unk=UNK in how.rules.forbidden,
            suppress_sequences=[[names[1][token]] for token in sorted(forbidden) if token < len(names[1])],
            return_scores=True,
            return_end_token=True,
        )
        ranked, averaged = [], isinstance(length, Average)
        for result in results:
            own = []
            for pieces, score in zip(result.hypotheses, result.scores, strict=True):
                tokens = tuple(self._numbers[piece] for piece in pieces)
                own.append((tokens, score if averaged else score / _divisor(how, len(tokens))))
            own.sort(key=lambda each: -each[1])
            ended = [each for each in own if each[0][-1:] == (EOS,)]
            ranked.append((ended or own)[: how.best if isinstance(how, Beam) else 1])
        return ranked


def _divisor(how: Search, length: int) -> float:
    """Return the length penalty of a hypothesis with `length` tokens."""
    return how.length.base(max(length, 1)) ** how.length.alpha if isinstance(how, Beam) else 1.0


class _Forced:
    """Scores and attention of the hypotheses of a batch, by forced decoding when they are first read.

    tokens: the tokens of all hypotheses.
    counts: the number of hypotheses of each source.
    look: the attention layers (sites) that are recorded, or None.
    """

    def __init__(
        self, model: Model, batch: Batch, tokens: list[tuple[int, ...]], counts: list[int], look: str | None
    ):
        self._model, self._batch, self._tokens, self._look = model, batch, tokens, look
        self._rows = [row for row, count in enumerate(counts) for _ in range(count)]

    @functools.cached_property
    def _observed(self) -> list[tuple[Any, Any, Any]]:
        """For each hypothesis: scores of its tokens, attention, and norms of the value vectors."""
        pairs = self._batch.select(torch.tensor(self._rows))
        lengths = torch.tensor([len(each) for each in self._tokens])
        most = int(lengths.max()) if len(lengths) else 0
        rows = [[BOS, *each, *[PAD] * (most - len(each))] for each in self._tokens]
        pairs = replace(pairs, target=torch.tensor(rows), target_lengths=lengths)
        observed = []
        for part in pieces_of(pairs, self._model.target_size):
            one = observe(self._model, part, self._look)
            for row, length in enumerate(part.target_lengths.tolist()):
                scores = tuple(one.token_scores[row, :length].tolist())
                observed.append((scores, one.attention_of(row), one.values_of(row)))
        return observed

    def scores(self, number: int, divisor: float | None = None) -> dict[str, Any]:
        """Return the token scores; with a divisor, also the ranking, the sum of the scores divided by it."""
        scores = self._observed[number][0]
        return {"token_scores": scores} | ({} if divisor is None else {"ranking": sum(scores) / divisor})

    def attention(self, number: int) -> tuple[BySite[Any], dict[str, Any]]:
        return self._observed[number][1:]


def check_search(how: Search, prefixes: Sequence[Sequence[int]] | None) -> None:
    """Raise ArgumentError if CTranslate2 cannot search with these options."""
    call, hint = "engine ctranslate2", "leave out --engine ctranslate2"
    problem = ""
    if not isinstance(how, Beam | Greedy):
        problem = "CTranslate2 samples other random numbers, so it cannot repeat a sample of Regard"
    elif isinstance(how, Beam) and how.coverage:
        problem = "CTranslate2 has no coverage penalty of Wu et al."
    elif replace(how.rules, maximum=None, forbidden=()) != Rules(forbidden=()):
        problem = "the rules minimum and repeat are not supported"
    elif prefixes is not None and any(map(len, prefixes)):
        problem = "prefixes of translations are not supported"
    elif isinstance(how, Beam) and how.best > how.size:
        problem = f"{how.best} hypotheses for a beam size of {how.size}"
    if problem:
        raise ArgumentError(message(call, problem, hint=hint))
