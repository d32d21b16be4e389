"""regard ask: answer questions about stories with a memory network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.cli.open_runs import open_task
from regard.cli.options import OF_RUN, RUN, but, command
from regard.cli.predict import CheckedInputs, result_files, write_results
from regard.data.line_io import Lines, given_lines
from regard.data.story_text import StoryQuestion
from regard.decoding.unknown_words import UnknownWords
from regard.errors import ArgumentError, message, printable, shown
from regard.evaluation.story_answerer import StoryAnswer
from regard.tasks.answering.task import questions_of_files, read_story
from regard.training.command_options import CommandOption, flag, several


@command(
    RUN,
    several(
        "files",
        "Files of stories with questions, in the format of bAbI or, if named .jsonl, as JSON lines with "
        "the fields story and question.",
        "FILES",
    ),
    CommandOption("--story", "Text file with a story, one sentence per line.", "FILE"),
    CommandOption(
        "--question",
        "A question about the story. May be repeated. Without it, questions are read from standard "
        "input, one per line.",
        "TEXT",
        list[str],
    ),
    "encoding",
    but(
        "output",
        "Write to this file instead of standard output. For one question, it can be a picture of the "
        "attention of every hop: .png, .svg or .pdf.",
    ),
    but(
        "json",
        "Print one JSON object per question: answer, probability of each answer, and the attention "
        "weights of every hop.",
    ),
    but("draw", "Draw the attention weights of every hop on the sentences of the story."),
    flag("--hide", "Also compute the probability of the answer without each sentence of the story."),
    but("page", "Also write an HTML page with the answers and the attention of every hop."),
    *OF_RUN,
)
def ask(
    run: Path, files: list[str] | None, story: str | None, question: list[str] | None, **options: Any
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
    written = result_files(options, "question", (".png", ".svg", ".pdf"))
    if files and (story is not None or question):
        option = "--story" if story is not None else "--question"
        problem = f"conflicts with {shown(files[0])}, which already contains stories and questions"
        raise ArgumentError(message(option, problem, expected="either FILES, or --story and --question"))
    if not files and story is None:
        hint = 'regard ask RUN --story FILE --question "...", or regard ask RUN FILE'
        raise ArgumentError(message("regard ask", "no story is given", hint=hint))
    sentences = None if story is None else read_story(story, options["encoding"])
    lines = None if files else given_lines(None, question, encoding=options["encoding"])
    answerer = open_task("answering", run, options)
    if lines is None:
        questions = questions_of_files(files or (), options["encoding"])
    else:
        questions = _asked(sentences or (), lines, "--question" if question else "")
        unknown = UnknownWords(place="sentence")
        for number, sentence in enumerate(sentences or (), 1):
            unknown.add_words(number, "story word", answerer.words.unknown(sentence))
        unknown.say()

    def checked(question: StoryQuestion) -> StoryQuestion:
        answerer.check_question(question)
        return question

    inputs = CheckedInputs(questions, checked, "question", skip=not question)
    look = options["json"] or options["draw"] or written.enabled or options["hide"]
    typed = {"at_once": 1} if lines is not None and lines.keyboard else {}
    results = answerer.stream(inputs, look="memory" if look else None, hide=options["hide"], **typed)
    if lines is not None:  # the unknown words of the story are reported above
        results = (replace(each, unknown_in_story=()) for each in results)

    def plain(result: StoryAnswer, number: int) -> Iterator[str]:
        yield f"{printable(result.answer)}\t{result.probability:.4f}"
        if result.effects is not None:
            yield str(result.effects)

    title, readers = "Answers about stories", [] if lines is None else [lines]
    write_results(results, options, plain, written, title, inputs=inputs, readers=readers)
    return inputs.status("could not be answered and were skipped")


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
