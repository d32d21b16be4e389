"""StoryAnswerer: answer questions about stories with a memory network."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from regard.data.batch import UNK, StoryBatch
from regard.data.progress_bar import advancing
from regard.data.story_text import StoryQuestion, StoryWords, last_sentences, sentences_of
from regard.errors import ArgumentError, message, positive, printable
from regard.evaluation.erasure import HideKeys, ranked_and_random
from regard.evaluation.sentence_effects import SentenceEffect, SentenceEffects, StoryErasure
from regard.evaluation.story_answer import StoryAnswer
from regard.evaluation.story_report import StoryReport, story_report
from regard.evaluation.text_classifier import log_probabilities, recorded_probabilities
from regard.named_models.memory_networks import StoryModel
from regard.roles import BySite
from regard.sites import scope

__all__ = ["StoryAnswerer"]

AT_ONCE = 1024
"""Number of questions that stream() reads and answers together."""

ALL_HOPS = "memory"
"""A pattern that matches the attention sites of all hops. It is the kind of their role, "memory"."""

NO_KNOWN_WORD = (
    "no word of the story is in the vocabulary of the run, so the words of the story have no effect on the "
    "answer"
)
"""The note of an answer about a story that has only unknown words."""


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
        while chunk := list(itertools.islice(remaining, at_once)):
            for rows in (chunk[at : at + self.batch_size] for at in range(0, len(chunk), self.batch_size)):
                for result in self._answered(rows, look):
                    yield replace(result, effects=self.effects(result)) if hide else result

    def evaluate(self, questions: Sequence[StoryQuestion]) -> StoryReport:
        """Answer questions whose answers are known, and count the wrong answers of each task.

        The task of a question is StoryQuestion.task, for example "qa1".
        """
        predicted: list[str] = []
        with advancing("answering", len(questions)) as report:
            for at in range(0, len(questions), self.batch_size):
                scores_BA = log_probabilities(self.model, self._batch(questions[at : at + self.batch_size]))
                predicted += [self.words.answers[best] for best in scores_BA.argmax(-1).tolist()]
                report(len(predicted))
        correct = [each.answer == answer for each, answer in zip(questions, predicted, strict=True)]
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
        notes = [self._notes(each) for each in questions]
        batch = self._batch(questions)
        scores_BA, record = recorded_probabilities(self.model, batch, look, "ask()")
        sites = {
            name: calls[0].weights.float().cpu().numpy()
            for name, calls in record.items()
            if calls[0].weights is not None
        }
        more = int(self.model.facts_needed)  # key 0 of a supervised network is "no further fact"
        for row, question in enumerate(questions):
            cut = last_sentences(question, self.model.sentences)
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
                self._unknown(*cut.sentences, question.question),
                notes[row],
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

    def _notes(self, question: StoryQuestion) -> tuple[str, ...]:
        most, size = self.model.sentences, len(question.sentences)
        notes = [f"only the last {most:,} of {size:,} sentences are read"] * (size > most)
        read = last_sentences(question, most).sentences
        if all(word == UNK for sentence in read for word in self.words.encode(sentence)):
            notes.append(NO_KNOWN_WORD)
        return tuple(notes)

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
