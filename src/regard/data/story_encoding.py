"""Encode stories and questions as word ids, with a vocabulary, and store all questions as tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from regard.data.batch import PAD, UNK
from regard.data.labelled_batch import NO_LABEL
from regard.data.story_batch import NO_FACT, StoryBatch
from regard.data.story_text import StoryQuestion, words_of
from regard.errors import ArgumentError, DataError, message

__all__ = ["EncodedStories", "StoryWords", "encode_stories", "last_sentences"]


@dataclass(frozen=True)
class StoryWords:
    """The vocabulary of stories: the answers, then all other words.

    answers: the answers, which are the classes of a memory network. An answer can be a word of the stories,
        or several words with commas between them, such as "milk,football".
    words: the words of stories and questions that are not answers.

    Word id 0 is padding, 1 is an unknown word, 2 is the first answer.

    >>> words = StoryWords(("garden", "home"), ("mary", "went"))
    >>> words.encode("Mary went home."), words.size, words.unknown("Mary slept.")
    ([4, 5, 3], 6, ('slept',))
    """

    answers: tuple[str, ...]
    words: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        every = (*self.answers, *self.words)
        for word, count in Counter(every).items():
            if not isinstance(word, str):
                raise ArgumentError(message("StoryWords()", f"{word!r} is not a string", expected="strings"))
            if count > 1:
                expected = "each word once, in answers or in words"
                raise ArgumentError(message("StoryWords()", f"{word!r} occurs twice", expected=expected))
        if len(self.answers) < 2:
            problem = f"the only answer is {self.answers[0]!r}" if self.answers else "there are no answers"
            raise ArgumentError(message("StoryWords()", problem, expected="at least two different answers"))
        object.__setattr__(self, "_ids", {word: at for at, word in enumerate(every, UNK + 1)})

    @classmethod
    def of(cls, questions: Iterable[StoryQuestion], smallest: int = 1) -> StoryWords:
        """Build the vocabulary from the answers and the words of all stories and questions.

        smallest: the minimum count of a word; rarer words are not in the vocabulary. A sentence that occurs
            several times is counted once.
        """
        answers: set[str] = set()
        sentences: set[str] = set()
        for each in questions:
            answers.update(() if each.answer is None else (each.answer,))
            sentences.update((*each.sentences, each.question))
        counts = Counter(word for sentence in sentences for word in words_of(sentence))
        words = {word for word, count in counts.items() if count >= smallest}
        return cls(tuple(sorted(answers)), tuple(sorted(words - answers)))

    @property
    def size(self) -> int:
        """The number of word ids, including padding and the unknown word."""
        return UNK + 1 + len(self.answers) + len(self.words)

    def encode(self, text: str) -> list[int]:
        """Return the word ids of a sentence; a word that is not in the vocabulary has the id UNK."""
        return [self._ids.get(word, UNK) for word in words_of(text)]

    def unknown(self, text: str) -> tuple[str, ...]:
        """Return the words of a sentence that are not in the vocabulary, each once."""
        return tuple(dict.fromkeys(word for word in words_of(text) if word not in self._ids))

    def answer_index(self, answer: str | None) -> int:
        """Return the index of an answer in `answers`; NO_LABEL if it is not one of them."""
        at = self._ids.get(answer or "", 0) - UNK - 1
        return at if 0 <= at < len(self.answers) else NO_LABEL


@dataclass(frozen=True, eq=False)
class EncodedStories:
    """All N questions of a dataset as tensors. A batch is made of some rows, on the device of the tensors.

    Each different sentence is stored once; a story is a row of indices of sentences.

    vectors: (U, W), the word ids of U different sentences. Row 0 is an empty sentence, which pads stories.
    stories: (N, S), for each question, the rows of its sentences in `vectors`, oldest first.
    lengths: (N,), number of sentences of the story of each question.
    questions: (N, W), the word ids of each question.
    answers: (N,), index of each answer; NO_LABEL if the answer is not in the vocabulary.
    facts: (N, F), indices of the supporting facts in the story, padded with NO_FACT.
    tasks: (N,), index of the task of each question.
    """

    vectors: Tensor
    stories: Tensor
    lengths: Tensor
    questions: Tensor
    answers: Tensor
    facts: Tensor
    tasks: Tensor

    def __len__(self) -> int:
        return len(self.stories)

    def to(self, device: torch.device | str) -> EncodedStories:
        """Return a copy with all tensors on another device."""
        return EncodedStories(*(getattr(self, each.name).to(device) for each in fields(self)))

    def batch(self, rows: Tensor, *, linear: bool = False) -> StoryBatch:
        """Return some questions as a batch on the device of the tensors.

        rows: (B,), the indices of the questions.
        linear: whether the network computes attention without softmax (linear start).
        """
        rows = rows.to(self.stories.device)
        return StoryBatch(
            self.vectors[self.stories[rows]],
            self.lengths[rows],
            self.questions[rows],
            self.answers[rows],
            self.facts[rows],
            rows,
            linear,
        )


def last_sentences(question: StoryQuestion, most: int) -> StoryQuestion:
    """Return a copy of the question with only the last `most` sentences of its story.

    A supporting fact that is not among these sentences is removed from the facts.

    >>> question = StoryQuestion(("a", "b", "c"), "q", "x", (0, 2), "", "", 0)
    >>> last_sentences(question, 2).sentences, last_sentences(question, 2).facts
    (('b', 'c'), (1,))
    """
    cut = len(question.sentences) - most
    if cut <= 0:
        return question
    facts = tuple(fact - cut for fact in question.facts if fact >= cut)
    return replace(question, sentences=question.sentences[cut:], facts=facts)


def encode_stories(
    questions: Sequence[StoryQuestion], words: StoryWords, tasks: Sequence[str], most: int = 50
) -> EncodedStories:
    """Encode questions and their stories as tensors of word ids.

    words: the vocabulary.
    tasks: the names of all tasks. The task of a question is encoded as an index into `tasks`.
    most: maximum number of sentences of a story. Of a longer story, only the last `most` sentences are used.

    Raises DataError, with file and line, if no word of a question is in the vocabulary.

    >>> question = StoryQuestion(("Mary went home.",), "Where is Mary?", "home", (0,), "qa1", "", 0)
    >>> words = StoryWords(("garden", "home"), ("is", "mary", "went", "where"))
    >>> encoded = encode_stories([question], words, ["qa1"])
    >>> encoded.batch(torch.tensor([0])).sentences
    tensor([[[5, 6, 3]]])
    """
    rows: dict[str, int] = {"": 0}
    stories, facts = list[list[int]](), list[tuple[int, ...]]()
    for each in questions:
        cut = last_sentences(each, most)
        stories.append([rows.setdefault(sentence, len(rows)) for sentence in cut.sentences])
        facts.append(cut.facts)
        if all(word == UNK for word in words.encode(each.question)):
            problem = "no word of the question occurs in the training data"
            raise DataError(message(each.place, problem))
    indices = {task: at for at, task in enumerate(tasks)}
    asked = [words.encode(each.question) for each in questions]
    vectors = [words.encode(sentence) for sentence in rows]
    width = max([1, *map(len, vectors), *map(len, asked)])
    return EncodedStories(
        _padded(vectors, width, PAD),
        _padded(stories, max([1, *map(len, stories)]), 0),
        torch.tensor([len(each) for each in stories], dtype=torch.long),
        _padded(asked, width, PAD),
        torch.tensor([words.answer_index(each.answer) for each in questions], dtype=torch.long),
        _padded(facts, max([1, *map(len, facts)]), NO_FACT),
        torch.tensor([indices.get(each.task, -1) for each in questions], dtype=torch.long),
    )


def _padded(rows: Sequence[Sequence[int]], width: int, value: int) -> Tensor:
    """Return lists of integers as one tensor (len(rows), width), padded with `value`."""
    padded = torch.full((len(rows), width), value, dtype=torch.long)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = torch.tensor(list(row), dtype=torch.long)
    return padded
