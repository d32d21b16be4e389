"""`regard evaluate` for answering: the error rate of each task, and the faithfulness of the attention."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from regard.data.line_io import say
from regard.data.story_text import Stories, read_stories
from regard.errors import ArgumentError, message, shown
from regard.evaluation.story_answer import StoryAnswer
from regard.runs.run_commands import ChosenRun, RunReport, report_changed_data
from regard.runs.run_task import RunTask
from regard.tasks.answering.data import read_story_split
from regard.tasks.answering.run import AnsweringRun
from regard.tasks.file_options import ENCODING, FAITHFULNESS, JSONL, PAGE, TEST_FILE
from regard.tasks.picture_outputs import check_page
from regard.training.command_options import CommandOption

__all__ = ["EVALUATE_OPTIONS", "evaluate_answering"]

EVALUATE_OPTIONS: tuple[CommandOption | str, ...] = (TEST_FILE, JSONL, ENCODING, PAGE, FAITHFULNESS)
"""The options of `regard evaluate` for answering."""

MOST_QUESTIONS = 1000
"""Maximum number of questions to measure faithfulness on."""

MOST_ENTRIES = 100
"""Maximum number of questions on an HTML page."""


def evaluate_answering(task: type[RunTask], run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
    """Answer questions with the network of a run, and report the error rate of each task.

    The questions come from the files in `options`. Without files, the validation questions of the run are
    used.

    options: the values of the command-line options EVALUATE_OPTIONS.
    """
    assert run is not None
    page: Path | None = options["page"]
    check_page(page)
    answerer: AnsweringRun = run.load(task)
    stories, name = _read(run, answerer, options)
    report = answerer.evaluate(stories.questions)
    if page is not None:
        _write_page(page, answerer, stories, name)
    values, printed = report.to_dict(), list[RenderableType]([report])
    if options["faithfulness"]:
        measured = stories.questions[:MOST_QUESTIONS]
        first = "the first " * (len(stories) > len(measured))
        say(f"measuring faithfulness on {first}{len(measured):,} questions")
        erasure = answerer.erase_sentences(measured)
        values["faithfulness"] = erasure.to_dict()
        printed += [Text(), Text(f"Faithfulness: {erasure}.")]
        if erasure.looked:
            text = (
                f"In {erasure.better:.0%} of the questions, hiding the most attended sentence costs more than"
            )
            printed.append(Text(f"{text} hiding another sentence. See docs/faithfulness.md."))
    return RunReport.of(answerer, name, values, *printed)


def _read(run: ChosenRun, answerer: AnsweringRun, options: Mapping[str, Any]) -> tuple[Stories, str]:
    """Return the questions to evaluate, and a text that says where they come from.

    The questions are read from the files of --test-file or --jsonl. Without these options, the result is the
    validation questions of the run.
    """
    data = answerer.settings.data
    if options["test_file"] and options["jsonl"]:
        problem = "--test-file and --jsonl cannot be combined"
        raise ArgumentError(message("regard evaluate", problem, expected="one of them"))
    if options["jsonl"]:
        stories = read_stories(options["jsonl"], "jsonl", options.get("encoding"))
        return stories, stories.name
    if options["test_file"]:
        stories = read_stories(options["test_file"], data.format, options.get("encoding"))
        return stories, stories.name
    split = read_story_split(data)
    report_changed_data(run.folder, split.fingerprints)
    return split.valid, "the validation questions of the run"


def _write_page(page: Path, answerer: AnsweringRun, stories: Stories, name: str) -> None:
    results = list(answerer.stream(stories.questions[:MOST_ENTRIES]))
    cut = f", the first {len(results)} of {len(stories):,} questions" if len(stories) > len(results) else ""
    StoryAnswer.write_page(page, results, f"Answers by {answerer.folder.name}", f"{name}{cut}")
    say(f"Wrote {shown(page)}")
