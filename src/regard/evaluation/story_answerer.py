"""StoryAnswerer: answer questions about stories with a memory network, and measure their causes.

A hop is one attention of the network to the sentences of the story. print(result) prints the answer.
rich.print(result) and notebooks draw the attention of every hop over the story. result.save("x.html") writes
a page. A task is a set of questions of one kind, for example qa1 of the bAbI corpus.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.data.batch import UNK, StoryBatch
from regard.data.line_io import advancing
from regard.data.story_text import StoryQuestion, StoryWords, last_sentences, sentences_of
from regard.errors import ArgumentError, message, positive, printable
from regard.evaluation.attribution import Attribution
from regard.evaluation.erasure import HideKeys, effects, in_nats, ranked_and_random
from regard.evaluation.text_classifier import log_probabilities, recorded_probabilities
from regard.named_models.memory_networks import StoryModel
from regard.roles import BySite
from regard.sites import scope
from regard.viewing import Picture, Seen, Site, hops
from regard.viewing.html_document import safe
from regard.viewing.picture import noted
from regard.viewing.result import Chances, Saved, listed
from regard.viewing.terminal import Shown

AT_ONCE = 1024
"""Number of questions that stream() reads and answers together."""

ALL_HOPS = "memory"
"""A pattern that matches the attention sites of all hops. It is the kind of their role, "memory"."""

NO_KNOWN_WORD = (
    "no word of the story is in the vocabulary of the run, so the words of the story have no effect on the "
    "answer"
)
"""The note of an answer about a story that has only unknown words."""

LISTED = 5
"""Maximum number of answers whose probabilities are printed, the most probable first."""

NO_FURTHER_FACT = "(no further fact)"
"""The label of key 0 of a supervised memory network."""

EMPTY_SENTENCES = "(empty sentences)"
"""The label of the empty sentences that pad a short story of an end-to-end memory network."""

SMALLEST = 0.005
"""Drawings show the weight of the empty sentences from here on. Smaller weights would be drawn as .00."""

LEAST_CHANCE = 2.0**-149
"""Lower limit of a probability, so that its logarithm is finite."""

ROWS = 12
"""Maximum number of sentences in the printed table. For a longer story, the sentences with the largest
effects are printed."""

FAILED = 0.05
"""A task is failed if its error rate is larger than this (Weston et al. 2015)."""


@dataclass(frozen=True)
class SentenceEffect:
    """The probability of the answer to a question about a story, if one sentence of the story is masked.

    index: the index of the sentence in the story, from 0.
    sentence: the sentence.
    weight: the sum of the attention weights of the sentence over all hops; None if they were not recorded.
    probability: the probability of the answer if the sentence is masked in every hop.
    """

    index: int
    sentence: str
    weight: float | None
    probability: float


@dataclass(frozen=True)
class SentenceEffects(Shown):
    """How the probability of an answer changes if a sentence of the story is masked; print() shows a table.

    answer: the answer.
    probability: the probability of the answer with all sentences.
    sentences: for each sentence, the probability of the answer if this sentence is masked.

    >>> effect = SentenceEffect(1, "Mary went home.", 0.9, 0.25)
    >>> print(SentenceEffects("home", 0.75, (effect,)))
       sentence         sum of weights  p(home) if hidden
    2  Mary went home.           0.900     0.250 (-0.500)
    """

    answer: str
    probability: float
    sentences: tuple[SentenceEffect, ...]

    def summary(self) -> str:
        """Return a text for a picture: the sentence whose masking gives the lowest probability."""
        if not self.sentences:
            return ""
        lowest = min(self.sentences, key=lambda each: each.probability)
        change = f"from {self.probability:.3f} to {lowest.probability:.3f}"
        sentence = repr(printable(lowest.sentence))
        return (
            f"hiding sentence {lowest.index + 1}, {sentence}, changes the probability of "
            f"{printable(self.answer)} {change}, the lowest of all sentences"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer, its probability, and its probability without each sentence as a dict for JSON.

        Sentences are numbered from 1.
        """
        rows = [
            {"number": each.index + 1, "weight": each.weight, "probability": each.probability}
            for each in self.sentences
        ]
        return {"answer": self.answer, "probability": self.probability, "sentences": rows}

    def html(self) -> str:
        """Return an HTML table: the probability of the answer without each sentence. Texts are escaped."""
        rows = "".join(
            f'<tr><th scope="row" dir="auto" lang="">{safe(each.sentence)}</th>'
            f"<td>{self._change(each)}</td></tr>"
            for each in self._largest()
        )
        return f"<table><tbody>{rows}</tbody></table>"

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("", justify="right")
        table.add_column("sentence", overflow="fold")
        weighted = any(each.weight is not None for each in self.sentences)
        if weighted:
            table.add_column("sum of weights", justify="right")
        table.add_column(Text(f"p({printable(self.answer)}) if hidden"), justify="right")
        for each in self._largest():
            weight = [f"{each.weight:.3f}" if each.weight is not None else ""] if weighted else []
            table.add_row(str(each.index + 1), Text(printable(each.sentence)), *weight, self._change(each))
        return table

    def _largest(self) -> list[SentenceEffect]:
        """Return the sentences with the largest effects on the answer, ROWS or fewer, in story order."""
        order = sorted(self.sentences, key=lambda each: -abs(self.probability - each.probability))[:ROWS]
        return sorted(order, key=lambda each: each.index)

    def _change(self, each: SentenceEffect) -> str:
        return f"{each.probability:.3f} ({each.probability - self.probability:+.3f})"


@dataclass(frozen=True, eq=False, repr=False)
class StoryAnswer(Chances):
    """The answer of a memory network to a question about a story.

    The network attends to the sentences in several hops, one after the other.

    answer: the most probable answer.
    probabilities: maps each answer to its probability.
    sentences: the sentences that the model has read, oldest first.
    question: the question.
    attention: maps the name of each hop (site) to its weights on the S sentences, (1, S). The weights of a
        supervised network are (1, 1 + S): its first key is "no further fact". Empty if nothing was recorded.
    true_answer: the true answer, if it is known.
    facts: the indices of the true supporting facts in `sentences`, if they are known.
    effects: for each sentence, the probability of the answer if this sentence is hidden; None if it was not
        measured.
    notes: messages for the user.
    place: file and line of the question; "" if it does not come from a file.
    unknown_in_story, unknown_in_question: the words that are not in the vocabulary.

    >>> weights = BySite({"hop.1": numpy.array([[0.1, 0.9]])})
    >>> result = StoryAnswer("home", {"home": 0.75, "garden": 0.25}, ("Ann sat.", "Mary went home."),
    ...     "Where is Mary?", weights)
    >>> result, str(result), result.probability, result.hops.tolist()
    (StoryAnswer('home', 0.75, 'Where is Mary?'), 'home', 0.75, [[0.1, 0.9]])
    """

    answer: str
    probabilities: dict[str, float]
    sentences: tuple[str, ...]
    question: str
    attention: BySite[NDArray[Any]] = field(default_factory=BySite)
    true_answer: str | None = None
    facts: tuple[int, ...] = ()
    effects: SentenceEffects | None = None
    notes: tuple[str, ...] = ()
    place: str = ""
    unknown_in_story: tuple[str, ...] = ()
    unknown_in_question: tuple[str, ...] = ()
    page_title = "An answer"

    @property
    def probability(self) -> float:
        """The probability of `answer`, 0 to 1."""
        return self.probabilities[self.answer]

    @property
    def unknown(self) -> tuple[str, ...]:
        """The words of the story and the question that are not in the vocabulary, each once."""
        return tuple(dict.fromkeys((*self.unknown_in_story, *self.unknown_in_question)))

    def unknown_words(self) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        yield "story word", self.unknown_in_story, False
        yield "question word", self.unknown_in_question, False

    @property
    def hops(self) -> NDArray[numpy.float64]:
        """The attention weights of K hops on S sentences, (K, S); of a supervised network, (K, 1 + S).

        The columns are the keys that `memories` names. The shape is (0, 0) if nothing was recorded.
        """
        weights = [each.reshape(1, -1) for each in self.attention.values()]
        return numpy.concatenate(weights).astype(numpy.float64) if weights else numpy.zeros((0, 0))

    @property
    def memories(self) -> tuple[str, ...]:
        """The keys that a hop attends to, as texts: the sentences of the story.

        In a supervised network, "(no further fact)" comes before the sentences.
        """
        more = self.hops.shape[1] - len(self.sentences)
        return (*(NO_FURTHER_FACT,) * max(more, 0), *self.sentences)

    @property
    def empty(self) -> NDArray[numpy.float64]:
        """The weight of each hop on the empty sentences that pad the story, (K,): the rest of `hops` up to 1.

        An end-to-end network pads short stories with empty sentences, which take part in the softmax.
        """
        return (1 - self.hops.sum(1)).clip(min=0)

    def _drawn(self) -> tuple[NDArray[numpy.float64], tuple[str, ...]]:
        """Return the weights that drawings show, and the names of their columns.

        These are `hops` and `memories`, with a last column for the empty sentences if their weight is not 0.
        """
        if not (self.empty >= SMALLEST).any():
            return self.hops, self.memories
        return numpy.column_stack((self.hops, self.empty)), (*self.memories, EMPTY_SENTENCES)

    def attribution(self) -> Attribution:
        """Return the weights of each hop, and what it costs to hide each sentence, as rows of one picture.

        Raises ArgumentError if the effects of hiding sentences were not measured.
        """
        if self.effects is None or not self.effects.sentences:
            problem = "the effects of hiding sentences were not measured"
            raise ArgumentError(message("attribution()", problem, hint="answerer.ask(..., hide=True)"))
        costs = [
            math.log(self.probability / max(each.probability, LEAST_CHANCE))
            for each in self.effects.sentences
        ]
        weights = self.hops[:, -len(costs) :] if len(self.hops) else self.hops
        values = {f"hop {number}": row[None] for number, row in enumerate(weights, 1)}
        values["erasure"] = numpy.asarray([costs])
        title = f"{self.question} {self.answer}"
        return Attribution(
            (self.answer,), self.sentences, values, title=title, removed="hidden from every hop"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON: answer, probabilities, story, question and hops.

        Facts and hidden sentences are given as sentence numbers: 1 is the first sentence of "story".
        "outside_story" has the rest of the weights of each hop, up to a sum of 1: the weight on empty
        sentences (see `empty`) or, in a supervised network, on "no further fact".
        """
        known = {} if self.true_answer is None else {"true_answer": self.true_answer}
        facts = {"facts": [fact + 1 for fact in self.facts]} if self.facts else {}
        effects = {} if self.effects is None else {"without": self.effects.to_dict()["sentences"]}
        shift = len(self.memories) - len(self.sentences)
        weights = {site: each.reshape(-1).tolist()[shift:] for site, each in self.attention.items()}
        outside = {site: max(0.0, 1 - sum(each)) for site, each in weights.items()}
        return {
            "question": self.question,
            "answer": self.answer,
            "probability": self.probability,
            **known,
            "probabilities": dict(self.ranked),
            "story": list(self.sentences),
            **facts,
            "hops": weights,
            "outside_story": outside,
            **effects,
            "unknown": list(self.unknown),
            "notes": list(self.notes),
        }

    def picture(self) -> Picture | None:
        """Draw the attention weights of every hop on the sentences; None if they were not recorded."""
        if not len(self.hops):
            return None
        true = set(self.facts)
        shift = len(self.memories) - len(self.sentences)
        weights, columns = self._drawn()
        labels = [f"{each} *" if at - shift in true else each for at, each in enumerate(columns)]
        drawn = hops(weights, labels, self.question, self.summary(1))
        return noted(drawn, *(["* a supporting fact"] if true else []), *self.all_notes)

    def seen(self, title: str = "") -> Seen:
        """Return the attention weights of all hops, with the sentences as keys, to draw, explore or save.

        If the empty sentences have a weight, they are the last key.

        title: the title of drawings.
        """
        sites = []
        hops_KS, columns = self._drawn()
        numbers = tuple(range(len(columns)))
        for name, weights in zip(self.attention, hops_KS, strict=True):
            role = self.attention.role(name)
            rows = (self.question,)
            sites.append(Site(name, weights.reshape(1, -1), rows, columns, None, (0,), numbers, role))
        heading = title or f"{self.question} {self.answer}"
        return Seen(tuple(sites), columns, (self.question,), numbers, (0,), heading, self.all_notes)

    def __str__(self) -> str:
        return self.answer

    def __repr__(self) -> str:
        return f"StoryAnswer({self.answer!r}, {self.probability:.4g}, {self.question!r})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        drawn = self.picture()
        if drawn is None:
            yield Text(printable(self.question))
            yield Text(f"answer: {self.summary()}", "bold")
            for note in self.all_notes:
                yield Text(printable(note), "dim")
        else:
            yield drawn
        if self.effects is not None and self.effects.sentences:
            yield Text()
            yield self.effects

    @property
    def all_notes(self) -> tuple[str, ...]:
        """All messages for the user: `notes`, the words not in the vocabulary, and the largest effect.

        If `effects` were measured, a message names the sentence without which the probability of the answer
        is lowest.
        """
        effect = "" if self.effects is None else self.effects.summary()
        return (*super().all_notes, *([effect] if effect else []))

    def summary(self, listed: int = LISTED) -> str:
        """Return the answer and probabilities as one line of text: "home (home 0.750, garden 0.250)".

        listed: number of answers whose probabilities are part of the text, the most probable first.
        """
        true = "" if self.true_answer is None else f"; the true answer is {printable(self.true_answer)}"
        if listed == 1:
            return f"{printable(self.answer)} ({self.probability:.3f}{true})"
        return f"{printable(self.answer)} ({self.chances(listed)}{true})"

    def drawing(self) -> Saved:
        drawn = self.picture()
        return super().drawing() if drawn is None else drawn

    def html(self) -> Iterator[str]:
        """Yield the lines of an HTML list with question, answer, hops, probabilities and notes.

        Texts are escaped.
        """
        yield "<dl>"
        yield listed("question", self.question, "source")
        yield listed("answer", self.answer, "target")
        if self.true_answer is not None:
            wrong = "" if self.true_answer == self.answer else " (the answer of the model is wrong)"
            yield f'<dt>true answer</dt><dd dir="auto" lang="">{safe(self.true_answer)}{wrong}</dd>'
        drawn = self.picture()
        if drawn is None:
            story = "<br>".join(map(safe, self.sentences))
            yield f'<dt>story</dt><dd dir="auto" lang="">{story}</dd>'
        else:
            yield f"<dt>hops</dt><dd>{drawn.svg('attention of each hop to the sentences of the story')}</dd>"
        yield self.chances_table(LISTED)
        if self.effects is not None and self.effects.sentences:
            yield f"<dt>without a sentence</dt><dd>{self.effects.html()}</dd>"
        yield from (listed("note", note) for note in self.all_notes)
        yield "</dl>"


class StoryAnswerer:
    """Answers questions about stories with a memory network.

    model: a memory network.
    words: the vocabulary that the network was trained with.
    batch_size: number of questions that are answered together.

    If a story has more sentences than the network can store, only the last sentences are read. The result
    then has a note about this.

    >>> from regard.named_models.memory_networks import build_memory_network
    >>> words = StoryWords(("garden", "home"), ("is", "mary", "went", "where"))
    >>> model = build_memory_network("end-to-end", words.size, 2, 10, hops=2)
    >>> answer = StoryAnswerer(model, words).ask(["Mary went home.", "Mary is home."], "Where is Mary?")
    >>> answer.hops.shape, sorted(answer.probabilities)
    ((2, 2), ['garden', 'home'])
    """

    def __init__(self, model: StoryModel, words: StoryWords, *, batch_size: int = 256):
        positive("StoryAnswerer()", batch_size=batch_size)
        if (words.size, len(words.answers)) != (model.vocabulary_size, model.answers):
            problem = f"the vocabulary has {words.size} words and {len(words.answers)} answers"
            expected = f"{model.vocabulary_size} words and {model.answers} answers, as the model"
            raise ArgumentError(message("StoryAnswerer()", problem, expected=expected))
        self.model, self.words, self.batch_size = model, words, batch_size

    def ask(
        self,
        story: str | Sequence[str],
        question: str,
        *,
        look: str | None = ALL_HOPS,
        hide: bool = False,
    ) -> StoryAnswer:
        """Answer one question about a story.

        story: a list of sentences, or a text with one sentence per line.
        question: the question.
        look: the names of the hops (attention sites) to record, with * as wildcard; None records nothing.
        hide: whether to also measure the probability of the answer without each sentence of the story.

        Raises DataError if the story is empty, and ArgumentError if no word of the question is known.
        """
        if not isinstance(question, str):
            problem = f"the question is of type {type(question).__name__}"
            raise ArgumentError(message("ask()", problem, expected="a str"))
        asked = StoryQuestion(sentences_of(story, "ask()"), question, None, (), "", "", 0)
        return next(self.stream([asked], look=look, hide=hide))

    def check_question(self, question: StoryQuestion) -> None:
        """Raise ArgumentError if no word of the question is in the vocabulary. It then has no answer."""
        if all(word == UNK for word in self.words.encode(question.question)):
            shown = printable(question.question)[:80]
            problem = f"no word of the question is in the vocabulary of the run: {shown!r}"
            hint = "ask with words of the training data; regard show lists the files"
            raise ArgumentError(message(question.place or "the question", problem, hint=hint))

    def stream(
        self,
        questions: Iterable[StoryQuestion],
        at_once: int = AT_ONCE,
        *,
        look: str | None = ALL_HOPS,
        hide: bool = False,
    ) -> Iterator[StoryAnswer]:
        """Yield the answer to each question, in order.

        questions: the questions with their stories; an iterator is read in parts.

        at_once: the number of questions that are read and answered together.
        look: the names of the hops (attention sites) to record, with * as wildcard; None records nothing.
        hide: whether to also measure the probability of the answer without each sentence of the story.
        """
        positive("stream()", at_once=at_once)
        remaining = iter(questions)
        while rows := list(itertools.islice(remaining, min(at_once, self.batch_size))):
            for result in self._answered(rows, look):
                yield replace(result, effects=self.effects(result)) if hide else result

    def evaluate(self, questions: Sequence[StoryQuestion]) -> StoryReport:
        """Answer questions whose answers are known, and count the wrong answers of each task.

        The task of a question is StoryQuestion.task, for example "qa1".
        """
        correct: list[bool] = []
        with advancing("answering", len(questions)) as report:
            for result in self.stream(questions, look=None):
                correct.append(result.answer == result.true_answer)
                report(len(correct))
        return story_report([each.task for each in questions], correct)

    def effects(self, result: StoryAnswer) -> SentenceEffects:
        """Measure the probability of an answer without each sentence of the story, one sentence at a time.

        The sentence is masked in every hop. The other sentences keep their positions in the story.

        result: the answer, with its question and story.
        """
        sentences = range(len(result.sentences))
        scores = self._hidden([result] * len(sentences), [[index] for index in sentences])
        weights = result.hops[:, -len(sentences) :].sum(0) if len(result.hops) else None
        rows = tuple(
            SentenceEffect(
                index,
                result.sentences[index],
                None if weights is None else float(weights[index]),
                float(numpy.exp(scores[index])),
            )
            for index in sentences
            if len(sentences) > 1  # the only sentence of a story cannot be masked
        )
        return SentenceEffects(result.answer, result.probability, rows)

    def erase_sentences(self, questions: Sequence[StoryQuestion], *, seed: int = 0) -> StoryErasure:
        """Measure how much the answers depend on the sentences that the hops attend to.

        The log-probability of each answer is computed several times, each time with one sentence masked in
        every hop:

        - the sentence with the largest attention weight, summed over the hops;
        - another sentence, sampled at random;
        - each supporting fact, if the supporting facts are known. The mean of their effects is reported.

        seed: random seed.
        """
        results = [each for each in self.stream(questions) if len(each.sentences) > 1]
        rows, hidden, kinds = list[StoryAnswer](), list[list[int]](), list[tuple[int, str]]()
        for number, result in enumerate(results):
            weights = result.hops[:, -len(result.sentences) :].sum(0)
            order, samples = ranked_and_random(weights, 1, 1, (seed, number))
            trials = [("looked", order[0]), ("random", samples[0][0])]
            trials += [("facts", fact) for fact in result.facts]
            for kind, sentence in trials:
                rows.append(result)
                hidden.append([sentence])
                kinds.append((number, kind))
        scores = self._hidden(rows, hidden)
        values: dict[tuple[int, str], list[float]] = {}
        for row, score, key in zip(rows, scores, kinds, strict=True):
            values.setdefault(key, []).append(float(numpy.log(row.probability) - score))
        means = {
            kind: tuple(float(numpy.mean(values.get((at, kind), [numpy.nan]))) for at in range(len(results)))
            for kind in ("looked", "random", "facts")
        }
        return StoryErasure(**means, skipped=len(questions) - len(results))

    def _answered(self, questions: Sequence[StoryQuestion], look: str | None) -> Iterator[StoryAnswer]:
        """Answer one batch of questions, and record the attention of the hops that match `look`.

        look: names of hops (sites), with * as wildcard; None records nothing.
        """
        batch, most = self._batch(questions), self.model.sentences
        scores_BA, record = recorded_probabilities(self.model, batch, look, "ask()")
        sites = {
            name: calls[0].weights.float().cpu().numpy()
            for name, calls in record.items()
            if calls[0].weights is not None
        }
        more = int(self.model.facts_needed)  # key 0 of a supervised network is "no further fact"
        for row, question in enumerate(questions):
            cut, count = last_sentences(question, most), len(question.sentences)
            notes = [f"only the last {most:,} of {count:,} sentences are read"] * (count > most)
            if all(word == UNK for sentence in cut.sentences for word in self.words.encode(sentence)):
                notes.append(NO_KNOWN_WORD)
            size = len(cut.sentences) + more
            weights = {name: each[row, ..., :size].copy() for name, each in sites.items()}
            chances = dict(zip(self.words.answers, numpy.exp(scores_BA[row]).tolist(), strict=True))
            yield StoryAnswer(
                self.words.answers[int(scores_BA[row].argmax())],
                chances,
                cut.sentences,
                question.question,
                BySite(weights, record.roles),
                question.answer,
                cut.facts,
                None,
                tuple(notes),
                question.place,
                self._unknown(*cut.sentences),
                self._unknown(question.question),
            )

    def _batch(self, questions: Sequence[StoryQuestion]) -> StoryBatch:
        """Encode questions as a batch of token ids; raise ArgumentError if no word of a question is known."""
        stories, asked = [], []
        for each in questions:
            cut = last_sentences(each, self.model.sentences)
            stories.append([self.words.encode(sentence) for sentence in cut.sentences])
            self.check_question(each)
            asked.append(self.words.encode(each.question))
        return StoryBatch.collate(stories, asked)

    def _unknown(self, *texts: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for text in texts for word in self.words.unknown(text)))

    def _hidden(self, results: Sequence[StoryAnswer], hidden: Sequence[Sequence[int]]) -> NDArray[Any]:
        """Return the log-probability of the answer of each result if some sentences are masked, (results,).

        hidden: for each result, the indices of the sentences to mask in every hop.
        """
        scores = numpy.zeros(len(results))
        device, more = next(self.model.parameters()).device, int(self.model.facts_needed)
        for at in range(0, len(results), self.batch_size):
            rows = results[at : at + self.batch_size]
            batch = StoryBatch.collate(
                [[self.words.encode(sentence) for sentence in row.sentences] for row in rows],
                [self.words.encode(row.question) for row in rows],
            )
            keys = self.model.keys(batch.sentences.shape[1])
            masked_B1S = torch.zeros(len(rows), 1, keys, dtype=torch.bool)
            for row, indices in enumerate(hidden[at : at + self.batch_size]):
                masked_B1S[row, 0, [index + more for index in indices]] = True
            with scope(edit=HideKeys(masked_B1S.to(device)), at=ALL_HOPS):
                log_BA = log_probabilities(self.model, batch)
            places = [self.words.answers.index(row.answer) for row in rows]
            scores[at : at + len(rows)] = log_BA[numpy.arange(len(rows)), places]
        return scores


@dataclass(frozen=True)
class StoryErasure:
    """How much the answers of a memory network depend on the sentences that its hops attend to.

    A hop is one attention of the network to the sentences of the story.

    looked: for each question, the decrease of the log-probability of the answer, in nats, if the sentence
        with the largest weight is masked in every hop.
    random: for each question, the decrease if another sentence, sampled at random, is masked.
    facts: for each question, the mean decrease if one of its supporting facts is masked; NaN for a question
        without known facts.
    skipped: number of questions that were not measured, because their story has one sentence only.

    >>> print(StoryErasure((2.0, 4.0), (0.5, 0.0), (3.0, math.nan), 1))
    hiding the most attended sentence lowers the log-probability of the answer by 3.0 nats on average;
    another sentence by 0.25; a supporting fact by 3.0 (2 questions)
    """

    looked: tuple[float, ...]
    random: tuple[float, ...]
    facts: tuple[float, ...] = ()
    skipped: int = 0

    def means(self) -> dict[str, float | None]:
        """Return the means over questions, in nats, as a dict with the keys "looked", "random" and "facts".

        A mean is None if there are no values to average.
        """
        known = {
            name: [each for each in getattr(self, name) if each == each]
            for name in ("looked", "random", "facts")
        }
        return {name: float(numpy.mean(each)) if each else None for name, each in known.items()}

    @property
    def better(self) -> float:
        """The fraction of questions for which the most attended sentence matters more than a random sentence.

        For these questions, `looked` is larger than `random`. NaN if there are no questions.
        """
        wins = [looked > other for looked, other in zip(self.looked, self.random, strict=True)]
        return sum(wins) / len(wins) if wins else math.nan

    def __str__(self) -> str:
        if not self.looked:
            return "the stories have too few sentences to measure the effect of hiding a sentence"
        known = {name: mean for name, mean in self.means().items() if mean is not None}
        texts = dict(zip(known, in_nats(*known.values()), strict=True))
        names = {"random": "another sentence", "facts": "a supporting fact"}
        others = {title: texts[name] for name, title in names.items() if name in texts}
        changed = effects(texts["looked"], others, " of the answer").replace("; another", ";\nanother")
        count = f"{len(self.looked):,} question{'s' * (len(self.looked) != 1)}"
        return f"hiding the most attended sentence {changed} ({count})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the number of questions, the means over them in nats, and `better`."""
        better = None if math.isnan(self.better) else self.better
        return {"questions": len(self.looked), "skipped": self.skipped, **self.means(), "better": better}


@dataclass(frozen=True)
class TaskErrors:
    """The number of questions of a task, and how many of them were answered wrongly.

    task: the name of the task, for example "qa1".
    """

    task: str
    questions: int
    wrong: int

    @property
    def error(self) -> float:
        """The error rate of the task: the fraction of its questions that were answered wrongly."""
        return self.wrong / self.questions if self.questions else 0.0


@dataclass(frozen=True)
class StoryReport:
    """The error rates of a model on one or more tasks. A task is a set of questions, for example qa1 of bAbI.

    tasks: the number of questions and of errors of each task. The tasks are sorted by name: qa2 before qa10.

    >>> report = story_report(["qa1", "qa1", "qa2"], [True, False, True])
    >>> report.error, round(report.accuracy, 3), report.failed
    (0.25, 0.667, 1)
    """

    tasks: tuple[TaskErrors, ...]

    @property
    def error(self) -> float:
        """The unweighted mean of the error rates of the tasks, which papers on bAbI report."""
        return sum(each.error for each in self.tasks) / len(self.tasks) if self.tasks else 0.0

    @property
    def accuracy(self) -> float:
        """The fraction of all questions that were answered correctly."""
        questions = sum(each.questions for each in self.tasks)
        return 1 - sum(each.wrong for each in self.tasks) / questions if questions else 0.0

    @property
    def failed(self) -> int:
        """The number of tasks with an error rate above 5 %, which papers on bAbI call failed."""
        return sum(each.error > FAILED for each in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """Return the error rates of all tasks and their means as a dict for JSON; 0.05 is 5 % errors."""
        tasks = {
            each.task: {"error": each.error, "questions": each.questions, "wrong": each.wrong}
            for each in self.tasks
        }
        return {"error": self.error, "accuracy": self.accuracy, "failed": self.failed, "tasks": tasks}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("task", overflow="fold")
        for name in ("questions", "wrong", "error"):
            table.add_column(name, justify="right")
        for each in self.tasks:
            style = "red" if each.error > FAILED else ""
            error = Text(f"{100 * each.error:.1f} %", style)
            table.add_row(Text(printable(each.task)), f"{each.questions:,}", f"{each.wrong:,}", error)
        yield table
        mean = f"mean error {100 * self.error:.1f} %, accuracy {100 * self.accuracy:.1f} %"
        more = f", {self.failed} of {len(self.tasks)} tasks with more than 5 % errors"
        yield Text(mean + (more if len(self.tasks) > 1 else ""), "bold")


def story_report(tasks: Sequence[str], correct: Sequence[bool]) -> StoryReport:
    """Count the wrong answers of each task.

    tasks: for each question, the name of its task, for example "qa1".
    correct: whether each question was answered correctly.
    """
    counts: dict[str, list[int]] = {}
    for task, right in zip(tasks, correct, strict=True):
        both = counts.setdefault(task, [0, 0])
        both[0] += 1
        both[1] += not right
    return StoryReport(tuple(TaskErrors(task, *counts[task]) for task in sorted(counts, key=task_order)))


def task_order(task: str) -> list[tuple[int, int, str]]:
    """Return a sort key for the name of a task, so that numbers in names are compared as numbers.

    >>> sorted(["qa10", "qa2", "qa1"], key=task_order)
    ['qa1', 'qa2', 'qa10']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", task)
    return [(0, int(each), "") if each.isdecimal() and len(each) < 18 else (1, 0, each) for each in parts]
