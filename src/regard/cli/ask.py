"""regard ask: answer questions about stories with a memory network."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regard.cli.run_options import CheckpointName, Device, RunFolder, Threads, open_task, output_option
from regard.data.line_io import Lines, Notes, given_lines, say, tell, writing
from regard.data.story_formats import StoryQuestion
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, message, printable, shown
from regard.tasks.answering.answer_pictures import PICTURES, AnswerPictures, is_picture
from regard.tasks.answering.story_files import questions_of_files, read_story

__all__ = ["ask"]

DRAWN_WIDTH = 100
"""The width, in characters, of drawings that are written to a file."""

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
    output: OutputFile = None,
    json: Json = False,
    draw: Draw = False,
    hide: Hide = False,
    page: PageFile = None,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Answer questions about stories: for each question, print the answer, a tab and the probability.

    A story is a text file (--story), or is part of FILES. With --story and without --question, questions are
    read from standard input, one per line; in a terminal, the answer follows each question.

    Words that are not in the vocabulary of the run are reported on standard error, and have no effect on the
    answer.

    Examples:

    * `regard ask runs/x --story story.txt --question "Where is the milk?" --draw`

    * `regard ask runs/x --story story.txt`

    * `regard ask runs/x --story story.txt --question "Where is the milk?" --hide --output hops.png`

    * `regard ask runs/x qa1_single-supporting-fact_test.txt --json --output answers.jsonl`

    * `regard ask runs/x own.jsonl --page answers.html`
    """
    if draw and json:
        raise ArgumentError(message("--draw", "--draw cannot be combined with --json"))
    _check_inputs(files, story, question)
    sentences = None if story is None else read_story(story)
    picture = output if is_picture(output) else None
    output = None if picture else output
    pictures = AnswerPictures(picture, page)
    lines = None if files else given_lines(None, question)
    answerer = open_task("answering", run, checkpoint, device, threads)
    if lines is None:
        asked = questions_of_files(files or ())
    else:
        assert sentences is not None
        asked = _asked(sentences, lines, "--question" if question else "")
    interactive = lines is not None and lines.keyboard
    look = "memory" if json or draw or pictures.enabled or hide else None
    notes, unknown = Notes(place="question"), UnknownWords(place="question")
    with writing(output) as write:
        results = (
            _one_by_one(answerer, asked, look=look, hide=hide)
            if interactive
            else answerer.stream(asked, look=look, hide=hide)
        )
        for number, result in enumerate(results, 1):
            notes.add(number, result.notes)
            if result.unknown:
                unknown.add_words(number, "word", result.unknown, False)
            pictures.add(result)
            if draw and output is None:
                Console(highlight=False).print(result, "")
            else:
                write(_format(result, json, draw, hide))
            if interactive:  # before the next question is read
                unknown.say()
                unknown = UnknownWords(place="question")
    pictures.save()
    tell(notes)
    unknown.say()


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


def _one_by_one(answerer: Any, questions: Iterator[StoryQuestion], **options: Any) -> Iterator[Any]:
    """Yield the answer to each question before the next question is read.

    If a question cannot be answered, the error is printed and the next question is read.
    """
    for question in questions:
        try:
            yield from answerer.stream([question], **options)
        except ArgumentError as error:
            say(str(error))


def _format(result: Any, as_json: bool, draw: bool, hide: bool) -> str:
    """Return the text that is printed for one answer.

    as_json: return a JSON object.
    draw: return a drawing of the attention.
    hide: add a table with the probability of the answer without each sentence.

    By default, the text is the answer and its probability, with a tab between them.
    """
    if as_json:
        return json.dumps(result.to_dict(), ensure_ascii=False)
    if draw:
        file = io.StringIO()
        Console(file=file, width=DRAWN_WIDTH, highlight=False).print(result)
        return file.getvalue()
    line = f"{printable(result.answer)}\t{result.probability:.4f}"
    return f"{line}\n{result.effects}" if hide and result.effects is not None else line
