"""Faithfulness: whether what a model looked at is what it used, word by word, found out by taking it away."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message
from regard.evaluation.erasure import CROSS, Pair, Trial, ended, saliencies, word_scores
from regard.evaluation.rank_correlation import kendall, spearman
from regard.interventions import intervene
from regard.models.base import Model
from regard.viewing.word_groups import spelled_or_space

__all__ = ["Faithfulness", "Translates", "WordTruth", "faithfulness"]

FRACTIONS = (0.1, 0.2, 0.5)
"""Of the source words, how many are taken away, or left alone, for comprehensiveness and sufficiency."""


@runtime_checkable
class Result(Protocol):
    """A source and a target: what translate() and score() give."""

    @property
    def source(self) -> str:
        """What was read."""

    @property
    def text(self) -> str:
        """What was said."""


class Translates(Protocol):
    """What a Translator has that is needed here."""

    model: Model
    source_tokenizer: Any
    target_tokenizer: Any
    look: str | None

    def translate(self, lines: Any) -> Any:
        """Translations of lines."""

    def score(self, sources: Any, targets: Any) -> Any:
        """Pairs with their attention."""


@dataclass(frozen=True)
class WordTruth:
    """How much a target word depended on what was looked at while it was said.

    sentence, word: numbers from 0 on. looked: the k source words with most weight. hidden, unknown: what
    their loss costs the target word, in nats, in the two ways to erase; hidden_random, unknown_random: the
    mean cost of k other words. comprehensiveness, sufficiency: in probability (DeYoung et al. 2020).
    kendall, spearman: of the weights with |gradient x input| over the source words, NaN where undefined.
    """

    sentence: int
    word: int
    text: str
    looked: tuple[int, ...]
    hidden: float
    hidden_random: float
    unknown: float
    unknown_random: float
    comprehensiveness: float
    sufficiency: float
    kendall: float
    spearman: float


@dataclass(frozen=True)
class Faithfulness:
    """How faithful attention is over some sentences; words has the numbers of each word.

    uniform: what it costs, in nats a word, if the attention is even instead. skipped: target words of
    sentences with no more than k source words, where nothing can be compared. unit: what a word is here,
    "word" or "character".

    >>> word = WordTruth(0, 0, "cat", (1,), 3.0, 0.5, 4.0, 1.0, 0.9, 0.1, 0.8, 0.9)
    >>> print(Faithfulness((word,), uniform=2.0, k=1, sentences=1))
    removing what it looked at costs 3.0 nats, random words 0.50 (1 word, hidden one at a time)
    """

    words: tuple[WordTruth, ...] = field(repr=False)
    uniform: float
    k: int
    sentences: int
    at: str = CROSS
    head: int | None = None
    skipped: int = 0
    unit: str = "word"

    def mean(self, name: str) -> float:
        """The mean of a field of the words, those left out where it is not defined."""
        values = numpy.array([getattr(each, name) for each in self.words], dtype=float)
        values = values[~numpy.isnan(values)]
        return float(values.mean()) if len(values) else float("nan")

    @property
    def better(self) -> float:
        """Of how many words, as a share, what was looked at costs more to hide than random words do."""
        return float(numpy.mean([each.hidden > each.hidden_random for each in self.words or [_NONE]]))

    def summary(self) -> str:
        """One sentence, to stand under a picture."""
        if not self.words:
            return f"too few source {self.unit}s to tell whether what it looked at matters"
        looked, random = (_in_nats(self.mean(name)) for name in ("hidden", "hidden_random"))
        return f"removing what it looked at costs {looked} nats, random {self.unit}s {random}"

    def __str__(self) -> str:
        if not self.words:
            return self.summary()
        many = f"{len(self.words):,} {self.unit}{'s' * (len(self.words) != 1)}"
        together = "one at a time" if self.k == 1 else f"{self.k} at a time"
        return f"{self.summary()} ({many}, hidden {together})"

    def written(self) -> dict[str, Any]:
        """The means, as JSON has them; None for what is not defined."""
        names = [name for name in asdict(_NONE) if name not in ("sentence", "word", "text", "looked")]
        numbers: dict[str, float] = {name: self.mean(name) for name in names}
        numbers |= {"better": self.better if self.words else math.nan, "uniform": self.uniform}
        told = {"at": self.at, "head": self.head, "k": self.k, "sentences": self.sentences}
        told |= {"words": len(self.words), "skipped": self.skipped}
        return told | {name: None if math.isnan(number) else number for name, number in numbers.items()}


def _in_nats(mean: float) -> str:
    """With one digit after the point, and two where the first says little; never -0.0."""
    digits = 2 if 0.005 <= abs(mean) < 0.95 else 1
    return f"{round(mean, digits) + 0.0:.{digits}f}"


_NONE = WordTruth(0, 0, "", (), *[math.nan] * 8)


def faithfulness(
    translator: Translates,
    sources: str | Result | Iterable[str],
    targets: str | Iterable[str] | None = None,
    *,
    k: int = 1,
    samples: int = 3,
    seed: int = 0,
    at: str = CROSS,
    head: int | None = None,
) -> Faithfulness:
    """Erase what each target word looked at most, and words drawn at random, and compare what that costs.

    sources, targets: pairs, of str for one; without targets, what the translator says. A translation or a
    scored pair of this translator may be given by itself. k: how many source words are erased. samples: how
    many draws of k other words, by the seed. at, head: whose attention says what was looked at, and is made
    even for the baseline; a word that is hidden is hidden at all cross sites.

    >>> from regard.data import train_tokenizers
    >>> from regard.decoding import Translator
    >>> from regard.models import build_model
    >>> pairs = [("나는 고양이 로소이다", "I am a cat")]
    >>> source, target = train_tokenizers(pairs, "word")
    >>> model = build_model("bahdanau", source.size, target.size, width=8)
    >>> found = faithfulness(Translator(model, source, target), *pairs[0])
    >>> len(found.words), found.words[3].text
    (4, 'cat')
    """
    if k < 1 or samples < 1:
        problem = f"k is {k} and samples {samples}"
        raise ArgumentError(message("faithfulness()", problem, expected="1 or more of each"))
    looking = copy.copy(translator)
    looking.look = CROSS
    if isinstance(sources, Result):
        targets = sources.text if targets is None else targets
        sources = sources.source
    left = [sources] if isinstance(sources, str) else list(sources)
    if targets is None:
        targets = [each.text for each in looking.translate(left)]
    right = [targets] if isinstance(targets, str) else list(targets)
    plan = _Plan(k, samples, seed)
    for number, each in enumerate(looking.score(left, right)):
        plan.add(number, looking, each, at, head)
    return plan.run(translator.model, at, head)


@dataclass(frozen=True)
class _Word:
    """A target word, its weights on the source words, and the numbers of its trials by what they are for."""

    sentence: int
    word: int
    text: str
    weights: NDArray[numpy.float64]
    tokens: tuple[tuple[int, ...], ...]  # of each source word
    looked: tuple[int, ...]
    trials: dict[str, list[int]]


class _Plan:
    """All trials of all words, so that they run together."""

    def __init__(self, k: int, samples: int, seed: int):
        self.k, self.samples, self.seed = k, samples, seed
        self.pairs: list[Pair] = []
        self.trials: list[Trial] = []
        self.known: dict[Trial, int] = {}
        self.words: list[_Word] = []
        self.skipped = 0
        self.unit = "word"

    def add(self, number: int, translator: Translates, scored: Any, at: str, head: int | None) -> None:
        """Plan the trials of one pair."""
        (passage,) = scored.passages
        self.unit = scored.units[1]
        if not passage.attention:
            problem = f"{type(translator.model).__name__} does not look at its source"
            hint = "bahdanau, luong and transformer do"
            raise ArgumentError(message("faithfulness()", problem, hint=hint))
        weights_VW = scored.align(at, head).matrix.double().numpy()
        self.pairs.append(
            Pair(
                _tokens(translator.source_tokenizer, scored.source, passage.source_pieces),
                _tokens(translator.target_tokenizer, scored.text, passage.pieces),
            )
        )
        columns, rows = _places(passage.source_words), _places(passage.words)
        for word, places in rows.items():
            if len(columns) <= self.k or any(source >= weights_VW.shape[1] for source in columns):
                self.skipped += 1
                continue
            text = spelled_or_space([passage.pieces[place] for place in places])
            weights_W = weights_VW[word, list(columns)]
            self.words.append(self._planned(number, word, text, weights_W, tuple(columns.values()), places))

    def _planned(
        self,
        sentence: int,
        word: int,
        text: str,
        weights: NDArray[numpy.float64],
        tokens: tuple[tuple[int, ...], ...],
        rows: tuple[int, ...],
    ) -> _Word:
        """A word with its trials; draws depend on its place alone, not on what else is asked."""
        order = [int(each) for each in numpy.argsort(-weights, kind="stable")]
        looked, others = order[: self.k], order[self.k :]
        draw = numpy.random.default_rng([self.seed, sentence, word])
        some = min(self.k, len(others))
        drawn = [draw.choice(others, some, replace=False).tolist() for _ in range(self.samples)]
        most = [order[: max(1, math.ceil(part * len(order)))] for part in FRACTIONS]
        all_tokens = range(len(self.pairs[-1].source))
        trials: dict[str, list[int]] = {}

        def plan(name: str, hidden: Iterable[int] = (), unknown: Iterable[int] = ()) -> None:
            trial = Trial(len(self.pairs) - 1, rows, tuple(sorted(hidden)), tuple(sorted(unknown)))
            if trial not in self.known:  # the most attended word is the first tenth of a short sentence too
                self.known[trial] = len(self.trials)
                self.trials.append(trial)
            trials.setdefault(name, []).append(self.known[trial])

        plan("plain")
        plan("hidden", _of(tokens, looked))
        plan("unknown", unknown=_of(tokens, looked))
        for each in drawn:
            plan("hidden_random", _of(tokens, each))
            plan("unknown_random", unknown=_of(tokens, each))
        for each in most:
            plan("without", _of(tokens, each))
            plan("alone", set(all_tokens) - set(_of(tokens, each)))
        return _Word(sentence, word, text, weights, tokens, tuple(looked), trials)

    def run(self, model: Model, at: str, head: int | None) -> Faithfulness:
        """Run the trials and add them up."""
        scores = word_scores(model, self.pairs, self.trials)
        plain = [self.trials[each.trials["plain"][0]] for each in self.words]
        gradients = saliencies(model, self.pairs, plain)
        with intervene(uniform=True, at=at, head=head) if plain else nullcontext():
            even = word_scores(model, self.pairs, plain)
        found = []
        for each, gradient in zip(self.words, gradients, strict=True):
            by_name = {name: scores[numbers] for name, numbers in each.trials.items()}
            found.append(_judged(each, by_name, gradient))
        whole = scores[[each.trials["plain"][0] for each in self.words]]
        uniform = float((whole - even).mean()) if len(even) else math.nan
        return Faithfulness(tuple(found), uniform, self.k, len(self.pairs), at, head, self.skipped, self.unit)


def _judged(
    word: _Word, scores: dict[str, NDArray[numpy.float64]], gradient: NDArray[numpy.float64]
) -> WordTruth:
    before = scores["plain"][0]
    costs = {
        name: float((before - scores[name]).mean())
        for name in ("hidden", "hidden_random", "unknown", "unknown_random")
    }
    by_word = [gradient[list(tokens)].sum() for tokens in word.tokens]
    return WordTruth(
        word.sentence,
        word.word,
        word.text,
        word.looked,
        **costs,
        comprehensiveness=float((math.exp(before) - numpy.exp(scores["without"])).mean()),
        sufficiency=float((math.exp(before) - numpy.exp(scores["alone"])).mean()),
        kendall=kendall(word.weights, by_word),
        spearman=spearman(word.weights, by_word),
    )


def _tokens(tokenizer: Any, line: str, pieces: Sequence[str]) -> tuple[int, ...]:
    """The tokens of a line, as many as were read of it, with EOS."""
    (tokens,) = tokenizer.encode_lines([line])
    return ended(tokens[: len(pieces) - 1])


def _places(words: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The places of the tokens of each word; those that belong to none are left out."""
    found: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word >= 0:
            found.setdefault(word, []).append(place)
    return {word: tuple(places) for word, places in found.items()}


def _of(tokens: Sequence[tuple[int, ...]], words: Iterable[int]) -> tuple[int, ...]:
    return tuple(place for word in words for place in tokens[word])
