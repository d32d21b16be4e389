"""regard ask: answer questions about stories with a memory network."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.json_output import json_text
from regard.cli.pair_file_options import Encoding
from regard.cli.printable_console import printable_console
from regard.cli.run_options import CheckpointName, Device, RunFolder, Threads, open_task, output_option
from regard.data.line_io import Lines, Notes, given_lines, say, tell, writing
from regard.data.story_text import StoryQuestion
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, message, printable, shown
from regard.tasks.answering.answer_pictures import PICTURES, AnswerPictures, is_picture
from regard.tasks.answering.data import questions_of_files, read_story

__all__ = ["ask"]

DRAWN_WIDTH = 100
"""The width, in characters, of drawings that are written to a file."""

NAMED = 5
"""Maximum number of skipped questions that are reported one by one."""

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILES",
        help="Files of stories with questions, in the format of bAbI or, if named .jsonl, as JSON lines with "
        "the fields story and question.",
    ),
]
StoryFile = Annotated[
    str | None, typer.Option("--story", metavar="FILE", help="Text file with a story, one sentence per line.")
]
Questions = Annotated[
    list[str] | None,
    typer.Option(
        "--question",
        metavar="TEXT",
        help="A question about the story. May be repeated. Without it, questions are read from standard "
        "input, one per line.",
    ),
]
OutputFile = Annotated[
    Path | None,
    output_option(
        "Write to this file instead of standard output. For one question, it can be a picture of the "
        "attention of every hop: .png, .svg or .pdf.",
        PICTURES,
    ),
]
PageFile = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Also write an HTML page with the answers and the attention of every hop.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object per question: answer, probability of each answer, and the attention "
        "weights of every hop.",
    ),
]
Draw = Annotated[
    bool,
    typer.Option("--draw", help="Draw the attention weights of every hop on the sentences of the story."),
]
Hide = Annotated[
    bool,
    typer.Option(
        "--hide", help="Also compute the probability of the answer without each sentence of the story."
    ),
]


def ask(
    run: RunFolder,
    files: Files = None,
    story: StoryFile = None,
    question: Questions = None,
    encoding: Encoding = None,
    output: OutputFile = None,
    json: Json = False,
    draw: Draw = False,
    hide: Hide = False,
    page: PageFile = None,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> int:
    """Answer questions about stories: for each question, print the answer, a tab and the probability.

    A story is a text file (--story), or is part of FILES. With --story and without --question, questions are
    read from standard input, one per line; in a terminal, the answer follows each question.

    Words that are not in the vocabulary of the run are reported on standard error, and have no effect on the
    answer. A question of a file or of standard input without any known word is reported on standard error,
    with its line number, and skipped. Then the exit status is 1.

    Examples:

    * `regard ask runs/x --story story.txt --question "Where is the milk?" --draw`

    * `regard ask runs/x --story story.txt`

    * `regard ask runs/x --story story.txt --question "Where is the milk?" --hide --output hops.png`

    * `regard ask runs/x qa1_single-supporting-fact_test.txt --json --output answers.jsonl`

    * `regard ask runs/x own.jsonl --page answers.html`
    """
    if draw and json:
        raise ArgumentError(message("--draw", "cannot be combined with --json"))
    _check_inputs(files, story, question)
    sentences = None if story is None else read_story(story, encoding)
    picture = output if is_picture(output) else None
    output = None if picture else output
    pictures = AnswerPictures(picture, page)
    lines = None if files else given_lines(None, question, encoding=encoding)
    answerer = open_task("answering", run, checkpoint, device, threads)
    if lines is None:
        asked = KnownQuestions(answerer, questions_of_files(files or (), encoding))
    else:
        assert sentences is not None
        asked = KnownQuestions(answerer, _asked(sentences, lines, "--question" if question else ""))
        asked.skip = not question
        _report_unknown(answerer, sentences)
    look = "memory" if json or draw or pictures.enabled or hide else None
    notes, unknown = Notes(place="question"), UnknownWords(place="question")
    at_once = {"at_once": 1} if lines is not None and lines.keyboard else {}
    with writing(output) as write:
        for result in answerer.stream(asked, look=look, hide=hide, **at_once):
            number = asked.numbers.popleft()
            notes.add(number, result.notes)
            if lines is None:
                unknown.add_words(number, "story word", result.unknown_in_story)
            unknown.add_words(number, "question word", answerer.words.unknown(result.question))
            pictures.add(result)
            if draw and output is None:
                printable_console().print(result, "")
            else:
                write(_format(result, json, draw, hide))
            if at_once:  # before the next question is read
                unknown.say()
                unknown = UnknownWords(place="question")
    pictures.save()
    tell(notes)
    unknown.say()
    return asked.report()


def _check_inputs(files: list[str] | None, story: str | None, question: list[str] | None) -> None:
    """Raise ArgumentError unless the stories come either from FILES or from --story."""
    if files and (story is not None or question):
        option = "--story" if story is not None else "--question"
        problem = f"conflicts with {shown(files[0])}, which already contains stories and questions"
        raise ArgumentError(message(option, problem, expected="either FILES, or --story and --question"))
    if not files and story is None:
        hint = 'regard ask RUN --story FILE --question "...", or regard ask RUN FILE'
        raise ArgumentError(message("regard ask", "no story is given", hint=hint))


def _asked(sentences: tuple[str, ...], lines: Lines, option: str) -> Iterator[StoryQuestion]:
    """Yield each line as a question about one story. Blank lines of standard input are skipped.

    sentences: the sentences of the story.
    lines: the questions, one per line.
    option: where the lines come from, for error messages: "--question", or "" for standard input.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = option or f"standard input, line {number}"
            yield StoryQuestion(sentences, line.strip(), None, (), "", place, 0)
        elif option:
            raise ArgumentError(message(option, "the question is empty", expected="a text with words"))


def _report_unknown(answerer: Any, sentences: tuple[str, ...]) -> None:
    """Print the words of the story that are not in the vocabulary, with the numbers of their sentences."""
    unknown = UnknownWords(place="sentence")
    for number, sentence in enumerate(sentences, 1):
        unknown.add_words(number, "story word", answerer.words.unknown(sentence))
    unknown.say()


@dataclass
class KnownQuestions:
    """Iterates over questions. Questions without a known word are reported and skipped.

    answerer: the StoryAnswerer, whose check_question() checks each question.
    questions: the questions.
    skip: whether such questions are skipped. Otherwise, the first one raises ArgumentError.
    numbers: the numbers of the questions that were yielded, from 1. The caller removes them.
    read: the number of questions read so far.
    errors: the number of questions skipped so far.
    """

    answerer: Any
    questions: Iterator[StoryQuestion]
    skip: bool = True
    numbers: deque[int] = field(default_factory=deque)
    read: int = 0
    errors: int = 0

    def __iter__(self) -> Iterator[StoryQuestion]:
        for question in self.questions:
            self.read += 1
            try:
                self.answerer.check_question(question)
            except ArgumentError as error:
                if not self.skip:
                    raise
                self.errors += 1
                if self.errors <= NAMED:
                    say(str(error))
                continue
            self.numbers.append(self.read)
            yield question

    def report(self) -> int:
        """Print how many questions were skipped, if any; return the exit status, 0 or 1."""
        if not self.errors:
            return 0
        say(f"{self.errors:,} of {self.read:,} questions could not be answered and were skipped")
        return 1


def _format(result: Any, as_json: bool, draw: bool, hide: bool) -> str:
    """Return the text that is printed for one answer.

    as_json: return a JSON object.
    draw: return a drawing of the attention.
    hide: add a table with the probability of the answer without each sentence.

    By default, the text is the answer and its probability, with a tab between them.
    """
    if as_json:
        return json_text(result.to_dict())
    if draw:
        file = io.StringIO()
        printable_console(file=file, width=DRAWN_WIDTH).print(result)
        return file.getvalue()
    line = f"{printable(result.answer)}\t{result.probability:.4f}"
    return f"{line}\n{result.effects}" if hide and result.effects is not None else line
