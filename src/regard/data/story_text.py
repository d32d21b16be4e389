"""Stories with questions, answers and supporting facts, read from bAbI files or JSON lines.

    read_stories("qa1_single-supporting-fact_train.txt.gz")     the format of bAbI (Weston et al. 2015)
    read_stories("own.jsonl")     {"story": ["Mary sat."], "question": "...", "answer": "...", "facts": [1]}

Files are UTF-8 (or another encoding that is named), plain or gzip. All stories are kept in memory.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.read_text import checked_path
from regard.data.story_formats import FORMATS, StoryQuestion, words_of
from regard.errors import ArgumentError, DataError, UnknownName, message, shown

__all__ = [
    "Stories",
    "StoryQuestion",
    "format_of_stories",
    "no_questions",
    "read_stories",
    "task_of_file",
    "words_of",
]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

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
    files = list(map(checked_path, [paths] if isinstance(paths, str | os.PathLike) else paths))
    if not files:
        raise ArgumentError(message("read_stories()", "the list of files is empty", expected="at least one"))
    questions: list[StoryQuestion] = []
    for path in files:
        read = FORMATS[format_of_stories(path, format)]
        first = questions[-1].group + 1 if questions else 0
        before = len(questions)
        questions.extend(read(path, task_of_file(path), first, encoding))
        if len(questions) == before:
            raise no_questions(path)
    names = [shown(path) for path in files]
    name = ", ".join(names) if len(names) <= 4 else f"{names[0]}, ..., {names[-1]}"
    return Stories(tuple(questions), name)


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
