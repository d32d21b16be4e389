"""The data of an answering run: read and check stories, split them into two sets, and encode them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.data.batch import NO_LABEL
from regard.data.read_text import checked_path, read_lines
from regard.data.story_text import (
    FORMATS,
    EncodedStories,
    Stories,
    StoryQuestion,
    StoryWords,
    format_of_stories,
    no_questions,
    question_of_json,
    read_stories,
    sentences_of,
    task_of_file,
)
from regard.errors import DataError, message, shown
from regard.evaluation.story_answerer import task_order
from regard.tasks.answering.settings import AnsweringData
from regard.tasks.corpus import stored_json
from regard.tasks.split import Split

WORDS = "words.json"
"""File in a run folder with the vocabulary. The order of the answers is the order of the outputs of the
model."""

PART = 10
"""By default, one question in this number is held out for validation, in each task."""


@dataclass(frozen=True, eq=False)
class StorySplit(Split[Stories]):
    """The training questions and the validation questions of a run, as text."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The sorted names of the tasks of all questions. Numbers sort as numbers: ("qa2", "qa10")."""
        return tuple(sorted({*self.train.tasks, *self.valid.tasks}, key=task_order))

    @property
    def notes(self) -> tuple[str, ...]:
        """One message for the log: the number of training and validation questions, and of tasks."""
        held = ", held out from the training files" if self.is_held_out else ""
        tasks = f"{len(self.tasks)} tasks" if len(self.tasks) > 1 else f"task {self.tasks[0]}"
        counts = f"{len(self.train):,} training questions, {len(self.valid):,} validation questions"
        return (f"{counts}{held}; {tasks}",)


def read_story_split(data: AnsweringData) -> StorySplit:
    """Read and check the files of stories that the settings name.

    If no validation file is set, stories of the training files are held out as validation set.

    Raises DataError, with file and line, if a line is malformed.
    """
    whole = read_stories(data.train_file, data.format, data.encoding)
    answers = {each.answer for each in whole}
    if len(answers) < 2:
        problem = f"the answer to all {len(whole):,} questions is {answers.pop()!r}"
        raise DataError(message(whole.name, problem, expected="at least two different answers"))
    if data.valid_file:
        return StorySplit(whole, read_stories(data.valid_file, data.format, data.encoding))
    train, valid = hold_out_stories(whole, data.held_out)
    return StorySplit(train, valid, is_held_out=True)


def hold_out_stories(stories: Stories, count: int | None = None) -> tuple[Stories, Stories]:
    """Split questions into a training set and a validation set; each task is split separately.

    All questions about a story are in the same set. The split does not depend on the order of the stories.
    Each task keeps at least one story for training. So a task with a single story is not in the validation
    set.

    count: about how many questions of each task are in the validation set. Default: a tenth of the task.

    Returns the pair (training set, validation set).
    """
    texts = ("\n".join((*each.sentences, each.question)) for each in stories)
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    groups: dict[str, dict[int, list[int]]] = {}
    for row, each in enumerate(stories):
        groups.setdefault(each.task, {}).setdefault(each.group, []).append(row)
    held: set[int] = set()
    for task, own in groups.items():
        total = sum(map(len, own.values()))
        if count is not None and count >= total:
            problem = f"data.held_out is {count:,}, but the task {task} has {total:,} questions"
            raise DataError(message(stories.name, problem, expected="a smaller number, or data.valid_file"))
        wanted = max(total // PART, 1) if count is None else count
        order = sorted(own.values(), key=lambda rows: (digests[rows[0]], rows[0]))
        for rows in order[:-1]:
            if wanted <= 0:
                break
            held.update(rows)
            wanted -= len(rows)
    if not held:
        problem = "no story can be held out for validation: each task has one story"
        hint = "add stories, or set data.valid_file (--valid-file)"
        raise DataError(message(stories.name, problem, hint=hint))
    kept = [row for row in range(len(stories)) if row not in held]
    return stories.select(kept), stories.select(sorted(held))


@dataclass(frozen=True, eq=False)
class StoryCorpus:
    """The training and validation questions of a run as tensors, with the vocabulary.

    split: the questions before they were encoded.
    words: the vocabulary of the run.
    train, valid: the training and the validation questions as tensors.
    max_sentences: maximum number of sentences of a story. If a story is longer, its last sentences are used.
    """

    split: StorySplit
    words: StoryWords
    train: EncodedStories
    valid: EncodedStories
    max_sentences: int
    _copies: dict[tuple[str, str], EncodedStories] = field(default_factory=dict, repr=False)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of all tasks. A task index in EncodedStories.tasks is an index into this tuple."""
        return self.split.tasks

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of words and of answers, and the maximum number of sentences of a story."""
        return self.words.size, len(self.words.answers), self.max_sentences

    @property
    def notes(self) -> tuple[str, ...]:
        """A message for the log if the answer of a validation question is not in the training data."""
        new = int((self.valid.answers == NO_LABEL).sum())
        text = "validation questions have an answer that does not occur in the training data"
        return (f"{new:,} {text}; they count as errors",) if new else ()

    def on(self, device: str, part: str = "train") -> EncodedStories:
        """Return the training or validation questions as tensors on a device.

        The questions are copied to the device only once. All seeds of a run share this copy.

        part: "train" or "valid".
        """
        key = str(device), part
        if key not in self._copies:
            self._copies[key] = getattr(self, part).to(device)
        return self._copies[key]


def load_words(folder: Path) -> StoryWords:
    """Load the vocabulary of a run folder: the answers and the other words.

    Raises DataError if its file is missing or damaged.
    """
    names = "answers", "words"
    return stored_json(
        folder / WORDS, "vocabulary", lambda content: StoryWords(*(tuple(content[name]) for name in names))
    )


def read_story(path: str | Path, encoding: str | None = None) -> tuple[str, ...]:
    """Return the sentences of a text file with one sentence per line; blank lines are left out.

    Line numbers at the start of each line, as in bAbI files, are removed if the lines are numbered 1, 2, ...

    encoding: the encoding of the file; None is UTF-8.

    Raises DataError if the file has no sentences.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "story.txt")
    ...     _ = path.write_text("1 Mary went home.\\n2 She slept.\\n", encoding="utf-8")
    ...     read_story(path)
    ('Mary went home.', 'She slept.')
    """
    lines = [line.strip() for line in read_lines(path, encoding) if line.strip()]
    numbered = [f"{number} " for number in range(1, len(lines) + 1)]
    if all(line.startswith(number) for line, number in zip(lines, numbered, strict=True)):
        lines = [line.removeprefix(number) for line, number in zip(lines, numbered, strict=True)]
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            problem = f"sentence {number} has a tab, as a question of a bAbI file has"
            hint = "to answer all questions of such a file: regard ask RUN FILE"
            raise DataError(message(shown(path), problem, hint=hint))
    return sentences_of(lines, shown(path))


def questions_of_files(files: Sequence[str], encoding: str | None = None) -> Iterator[StoryQuestion]:
    """Yield the questions of files that contain stories and questions, one file after the other.

    A file has the format of bAbI, or JSON lines, in which the field "answer" is optional.

    encoding: the encoding of the files; None is UTF-8.

    Raises DataError if a file has no questions.
    """
    for file in files:
        path, count = checked_path(file), 0
        babi = format_of_stories(path) == "babi"
        read = FORMATS["babi"](path, task_of_file(path), 0, encoding)
        lines = enumerate(() if babi else read_lines(path, encoding), 1)
        asked = (
            question_of_json(line, f"{shown(path)}, line {number}", task_of_file(path), answered=False)
            for number, line in lines
            if line.strip()
        )
        for question in read if babi else asked:
            count += 1
            yield question
        if not count:
            raise no_questions(path)
