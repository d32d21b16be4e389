"""Stories with questions, answers and supporting facts, read from bAbI files or JSON lines.

    read_stories("qa1_single-supporting-fact_train.txt.gz")     the format of bAbI (Weston et al. 2015)
    read_stories("own.jsonl")     {"story": ["Mary sat."], "question": "...", "answer": "...", "facts": [1]}

Files are UTF-8 (or another encoding that is named), plain or gzip. All stories are kept in memory. To add a
format, write a function that yields questions and add a line to FORMATS.

encode_stories() encodes stories and questions as word ids, with a vocabulary, and stores all questions as
tensors.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.batch import NO_FACT, NO_LABEL, PAD, UNK, StoryBatch, padded
from regard.data.read_text import Paths, checked_paths, read_lines, shown_paths
from regard.data.table_formats import json_field, json_object, json_typed
from regard.errors import ArgumentError, DataError, UnknownName, message, printable, shown

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_NUMBERED = re.compile(r"([0-9]{1,9})[ \t]+(.*)")

BABI = "a number, a space and a sentence, or a question, an answer and supporting facts separated by tabs"
"""What a line of a bAbI file contains, for error messages."""


@dataclass(frozen=True)
class StoryQuestion:
    """A question about a story.

    sentences: the sentences of the story that come before the question, oldest first.
    question: the question.
    answer: the answer, in lower case; None if it is not known. "milk,football" is one answer.
    facts: the indices of the supporting facts in `sentences`, from 0, in the order of the file.
    task: the name of the task, such as "qa1_single-supporting-fact".
    place: file and line, for messages.
    group: the number of the story. Questions about the same story have the same number.
    """

    sentences: tuple[str, ...]
    question: str
    answer: str | None
    facts: tuple[int, ...]
    task: str
    place: str
    group: int


def words_of(text: str) -> list[str]:
    """Return the words of a sentence in lower case, without punctuation.

    >>> words_of("Mary went back to the hallway.")
    ['mary', 'went', 'back', 'to', 'the', 'hallway']
    """
    return _WORD.findall(text.lower())


def babi(path: Path, task: str, group: int, encoding: str | None = None) -> Iterator[StoryQuestion]:
    """Yield the questions of a file in the format of the bAbI tasks (Weston et al. 2015).

    Each line starts with a number. The numbers start at 1 in each story. A line without tabs is a sentence,
    without a question mark. A line with tabs is a question, a tab, the answer, and optionally a tab and the
    numbers of the supporting facts.

    path: the file.
    task: the name of the task of all its questions.
    group: the number of the first story of the file. Each further story has the next number.
    encoding: the encoding of the file; None is UTF-8.
    """
    sentences: list[str] = []
    indices: dict[str, int] = {}  # number of a line in its story -> index of the sentence
    last = 0
    for place, line in _filled_lines(path, encoding):
        number, text = _numbered(line.strip(), place)
        if number == 1:
            group += bool(last)
            sentences, indices = [], {}
        elif number != last + 1:
            expected = f"{last + 1}, or 1 for a new story" if last else "1"
            raise DataError(message(place, f"the line has the number {number}", expected=expected))
        last = number
        question, *columns = (part.strip() for part in text.split("\t"))
        if not columns:
            if "?" in question:
                problem = f"a question without a tab and an answer: {printable(question)[:60]!r}"
                raise DataError(message(place, problem, expected=BABI))
            indices[str(number)] = len(sentences)
            sentences.append(_worded(question, place, "the sentence"))
            continue
        if len(columns) > 2:
            raise DataError(message(place, f"the line has {len(columns) + 1} columns", expected=BABI))
        if not sentences:
            problem = "the story is empty: there is no sentence before the question"
            raise DataError(message(place, problem, expected="at least one sentence"))
        facts = _facts(columns[1].split() if len(columns) > 1 else [], indices, place)
        yield _question(tuple(sentences), question, columns[0], facts, task, place, group)


def json_lines(path: Path, task: str, group: int, encoding: str | None = None) -> Iterator[StoryQuestion]:
    """Yield the questions of a file with one JSON object per line. The fields of an object are:

    story: a list of sentences, or a text with one sentence per line.
    question: the question, a text.
    answer: the answer, a text.
    facts: optional, the numbers of the supporting sentences, from 1.
    task: optional, the name of the task; the default is the argument `task`.
    """
    for number, (place, line) in enumerate(_filled_lines(path, encoding), group):
        yield question_of_json(line, place, task, number)


def _filled_lines(path: Path, encoding: str | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file that are not blank, each after its place."""
    for number, line in enumerate(read_lines(path, encoding), 1):
        if line.strip():
            yield f"{shown(path)}, line {number}", line


FORMATS: dict[str, Callable[[Path, str, int, str | None], Iterator[StoryQuestion]]] = {
    "babi": babi,
    "jsonl": json_lines,
}
"""Name of a file format of stories -> the function that reads it."""

FIELDS = ("story", "question", "answer", "facts", "task")


def question_of_json(
    line: str, place: str, task: str = "", group: int = 0, *, answered: bool = True
) -> StoryQuestion:
    """Parse a line that contains a question and its story as a JSON object.

    place: file and line, for error messages.
    task: the name of the task if the object has no field "task".
    group: the number of the story.
    answered: whether the field "answer" is required.

    >>> line = '{"story": ["A cat sat.", "It slept."], "question": "Who slept?", "answer": "cat", '
    >>> question_of_json(line + '"facts": [2]}', "x.jsonl, line 1").facts
    (1,)
    """
    row = json_object(line, place)
    for name in row:
        if name not in FIELDS:
            problem = f"unknown field {printable(name)[:80]!r}"
            raise DataError(message(place, problem, expected=f"only the fields {', '.join(FIELDS)}"))
    sentences = sentences_of(row.get("story"), place)
    given = row.get("facts") or []
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise DataError(message(place, "facts is not a list of integers", expected="a list such as [1, 3]"))
    facts = _facts(given, {at + 1: at for at in range(len(sentences))}, place)
    if row.get("task") is not None:
        task = json_field(row, "task", str, place).strip()
    answer = row.get("answer")
    if answer is None and answered:
        raise DataError(message(place, "there is no answer", expected='the field "answer", a text'))
    if answer is not None:
        answer = json_typed(str(answer) if type(answer) is int else answer, str, place).strip()
    question = json_field(row, "question", str, place).strip()
    return _question(sentences, question, answer, facts, task, place, group)


def sentences_of(story: Any, place: str) -> tuple[str, ...]:
    """Return the sentences of a story, which is a list of sentences or a text with one sentence per line.

    Raises DataError if the story has another type, or if it is empty.

    place: where the story is from, for error messages.

    >>> sentences_of("Mary went home.\\nShe slept.\\n", "story.txt")
    ('Mary went home.', 'She slept.')
    """
    lines = story.splitlines() if isinstance(story, str) else story
    if not isinstance(lines, list | tuple):
        problem = "there is no story" if story is None else f"the story is of type {type(story).__name__}"
        expected = "a list of sentences, or a text with one sentence per line"
        raise DataError(message(place, problem, expected=expected))
    for number, each in enumerate(lines, 1):
        if not isinstance(each, str):
            problem = f"item {number} of the story is of type {type(each).__name__}"
            raise DataError(message(place, problem, expected="a sentence, as a text"))
    sentences = tuple(_worded(each.strip(), place, "the sentence") for each in lines if each.strip())
    if not sentences:
        raise DataError(message(place, "the story is empty", expected="at least one sentence"))
    return sentences


def _worded(text: str, place: str, what: str) -> str:
    """Return the text; raise DataError if it has no words."""
    if not words_of(text):
        raise DataError(message(place, f"{what} has no words: {printable(text)[:60]!r}"))
    return text


def _numbered(line: str, place: str) -> tuple[int, str]:
    found = _NUMBERED.fullmatch(line)
    if found is None:
        shortened = repr(printable(line)[:60])
        problem = f"the line does not start with a number: {shortened}"
        if line.isdecimal():
            problem = f"the line has no sentence and no question, only the number {shortened}"
        raise DataError(message(place, problem, expected=BABI))
    return int(found[1]), found[2]


def _facts(given: Sequence[Any], known: Mapping[Any, int], place: str) -> tuple[int, ...]:
    """Return the index of the sentence of each supporting fact. `known`: the number of each sentence."""
    for each in given:
        if each not in known:
            problem = f"the supporting fact {printable(str(each))[:40]} does not exist"
            expected = f"the number of a sentence of the story: {', '.join(map(str, list(known)[:20]))}"
            raise DataError(message(place, problem, expected=expected))
    return tuple(known[each] for each in given)


def _question(
    sentences: tuple[str, ...],
    question: str,
    answer: str | None,
    facts: tuple[int, ...],
    task: str,
    place: str,
    group: int,
) -> StoryQuestion:
    _worded(question, place, "the question")
    if answer == "":
        raise DataError(message(place, "the answer is empty", expected="a text of one or more words"))
    return StoryQuestion(sentences, question, answer and answer.lower(), facts, task, place, group)


_SPLIT = re.compile(r"[_.-](train|valid|validation|dev|test)$", re.IGNORECASE)


@dataclass(frozen=True, eq=False, repr=False)
class Stories:
    """A sequence of questions about stories, in the order of the files that they were read from.

    questions: the questions, each with its story.
    name: a name for all files together, for error messages.

    >>> question = StoryQuestion(("Mary is here.",), "Where is Mary?", "here", (0,), "qa1", "a, line 2", 0)
    >>> stories = Stories((question,), "a.txt")
    >>> len(stories), stories.tasks, stories[0].answer
    (1, ('qa1',), 'here')
    """

    questions: tuple[StoryQuestion, ...]
    name: str

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> StoryQuestion:
        return self.questions[index]

    def __iter__(self) -> Iterator[StoryQuestion]:
        return iter(self.questions)

    def __repr__(self) -> str:
        return f"Stories({len(self)} questions, {self.name})"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks of the questions, in the order in which they first occur."""
        return tuple(dict.fromkeys(question.task for question in self.questions))

    def select(self, rows: Sequence[int]) -> Stories:
        """Return a Stories object with only the questions whose indices are in `rows`."""
        return Stories(tuple(self.questions[row] for row in rows), self.name)

    @property
    def fingerprint(self) -> str:
        """A hash of all stories, questions, answers, facts and tasks. It does not depend on file names."""
        digest = hashlib.sha256()
        for each in self.questions:
            facts = " ".join(map(str, each.facts))
            parts = (*each.sentences, each.question, each.answer or "", facts, each.task)
            for part in parts:
                encoded = part.encode("utf-8", "surrogatepass")
                digest.update(b"%d " % len(encoded) + encoded)
            digest.update(b"\n")
        return digest.hexdigest()


def read_stories(paths: Paths, format: str | None = None, encoding: str | None = None) -> Stories:
    """Read questions about stories from one or more files.

    paths: a path or a list of paths, plain or gzip.
    format: "babi", or "jsonl" (one JSON object per line). By default, the file name decides: .jsonl and
        .ndjson are JSON lines, all other files have the format of bAbI.
    encoding: the encoding of the files, such as "cp949"; None is UTF-8.

    The task of a question is the name of its file without _train or _test, such as
    "qa1_single-supporting-fact". In JSON lines, the field "task" can give another name.

    Raises DataError, with file and line, for a malformed line, a question without a story, and a supporting
    fact that does not exist.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "qa1_train.txt")
    ...     _ = path.write_text("1 Mary went home.\\n2 Where is Mary?\\thome\\t1\\n", encoding="utf-8")
    ...     first = read_stories(path)[0]
    >>> first.sentences, first.question, first.answer, first.facts, first.task
    (('Mary went home.',), 'Where is Mary?', 'home', (0,), 'qa1')
    """
    files = checked_paths("read_stories()", paths)
    questions: list[StoryQuestion] = []
    for path in files:
        read = FORMATS[format_of_stories(path, format)]
        first = questions[-1].group + 1 if questions else 0
        before = len(questions)
        questions.extend(read(path, task_of_file(path), first, encoding))
        if len(questions) == before:
            raise no_questions(path)
    return Stories(tuple(questions), shown_paths(files))


def no_questions(path: Path) -> DataError:
    """Return the error for a file without questions."""
    empty = not path.stat().st_size
    hint = "the file is empty" if empty else "in a bAbI file, a question has a tab and an answer"
    return DataError(message(shown(path), "the file contains no questions", hint=hint))


def format_of_stories(path: Path, requested: str | None = None) -> str:
    """Return the format of a file of stories, "babi" or "jsonl".

    requested: the format that the user has chosen; None if the file name extension decides.

    >>> format_of_stories(Path("qa1_train.txt.gz")), format_of_stories(Path("own.jsonl"))
    ('babi', 'jsonl')
    """
    if requested is not None:
        if requested not in FORMATS:
            raise UnknownName("format of stories", requested, FORMATS)
        return requested
    name = path.name.lower().removesuffix(".gz")
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else "babi"


def task_of_file(path: Path) -> str:
    """Return the name of the task of a file: its name without extension and without _train or _test.

    >>> task_of_file(Path("en/qa1_single-supporting-fact_train.txt.gz")), task_of_file(Path("train.jsonl"))
    ('qa1_single-supporting-fact', 'train')
    """
    name = shown(path.name)
    for suffix in (".gz", ".txt", ".jsonl", ".ndjson"):
        name = name[: -len(suffix)] if name.lower().endswith(suffix) else name
    return _SPLIT.sub("", name) or name


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

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: at for at, word in enumerate((*self.answers, *self.words), UNK + 1)}

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
        padded(vectors, PAD, width),
        padded(stories, 0, 1),
        torch.tensor([len(each) for each in stories], dtype=torch.long),
        padded(asked, PAD, width),
        torch.tensor([words.answer_index(each.answer) for each in questions], dtype=torch.long),
        padded(facts, NO_FACT, 1),
        torch.tensor([indices.get(each.task, -1) for each in questions], dtype=torch.long),
    )
