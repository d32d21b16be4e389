"""Read the input of `regard ask`: a story from a text file, or stories with questions from data files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.data.read_text import checked_path, read_lines
from regard.data.story_text import (
    FORMATS,
    StoryQuestion,
    format_of_stories,
    no_questions,
    question_of_json,
    sentences_of,
    task_of_file,
)
from regard.errors import DataError, message, shown

__all__ = ["questions_of_files", "read_story"]


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
        for question in read if babi else _json_questions(path, encoding):
            count += 1
            yield question
        if not count:
            raise no_questions(path)


def _json_questions(path: Path, encoding: str | None) -> Iterator[StoryQuestion]:
    for number, line in enumerate(read_lines(path, encoding), 1):
        if line.strip():
            place = f"{shown(path)}, line {number}"
            yield question_of_json(line, place, task_of_file(path), answered=False)
