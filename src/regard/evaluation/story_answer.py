"""StoryAnswer: the answer of a memory network to a question about a story, and the attention of each hop.

A hop is one attention of the network to the sentences of the story.

print(result) prints the answer. rich.print(result) and notebooks draw the attention of every hop over the
story. result.save("x.html") writes a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.errors import printable
from regard.evaluation.sentence_effects import SentenceEffects
from regard.roles import BySite
from regard.viewing import Picture, Seen, Site, hops
from regard.viewing.html_document import safe
from regard.viewing.picture import noted
from regard.viewing.result import Chances, Saved, listed, unknown_note

__all__ = ["EMPTY_SENTENCES", "NO_FURTHER_FACT", "StoryAnswer"]

LISTED = 5
"""Maximum number of answers whose probabilities are printed, the most probable first."""

NO_FURTHER_FACT = "(no further fact)"
"""The label of key 0 of a supervised memory network."""

EMPTY_SENTENCES = "(empty sentences)"
"""The label of the empty sentences that pad a short story of an end-to-end memory network."""

SMALLEST = 0.005
"""Drawings show the weight of the empty sentences from here on. Smaller weights would be drawn as .00."""


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
    unknown: words of the story and the question that are not in the vocabulary.
    notes: messages for the user.
    place: file and line of the question; "" if it does not come from a file.
    unknown_in_story, unknown_in_question: the words of `unknown` in the story, and those in the question.

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
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    place: str = ""
    unknown_in_story: tuple[str, ...] = ()
    unknown_in_question: tuple[str, ...] = ()
    page_title = "An answer"

    @property
    def probability(self) -> float:
        """The probability of `answer`, 0 to 1."""
        return self.probabilities[self.answer]

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
        """All messages for the user.

        These are `notes` and a message that lists words not in the vocabulary. If `effects` were measured,
        another message names the sentence with the largest effect: without this sentence, the probability of
        the answer is lowest.
        """
        words = unknown_note(self.unknown)
        effect = () if self.effects is None else (self.effects.summary(),)
        return (*self.notes, *((words,) if self.unknown else ()), *filter(None, effect))

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
