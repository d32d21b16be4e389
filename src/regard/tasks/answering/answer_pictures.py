"""The files that `regard ask` writes: a picture of the hops of one question, or a page of all questions.

A hop is one attention of the memory network to the sentences of the story.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regard.data.line_io import say
from regard.errors import ArgumentError, message, shown
from regard.evaluation.story_answer import StoryAnswer, save_answers
from regard.tasks.picture_outputs import check_folder, check_page

__all__ = ["AnswerPictures", "is_picture"]

PICTURES = (".png", ".svg", ".pdf")
"""The endings of file names of pictures."""

MOST_ENTRIES = 300
"""Maximum number of questions on a page."""


def is_picture(path: Path | None) -> bool:
    """Return whether a file name ends like a picture (.png, .svg or .pdf). The result for None is False.

    >>> is_picture(Path("hops.svg")), is_picture(Path("answers.jsonl"))
    (True, False)
    """
    return path is not None and path.suffix.lower() in PICTURES


@dataclass
class AnswerPictures:
    """Collects answers to questions, and writes them as a picture, as an HTML page, or both.

    picture: the picture file to write. None: no picture. A picture can show only one question.
    page: the HTML page to write. None: no page.
    results: the answers to show in the picture or on the page, at most MOST_ENTRIES.
    count: number of answers that were added.
    """

    picture: Path | None = None
    page: Path | None = None
    results: list[StoryAnswer] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        check_page(self.page)
        check_folder(self.picture)

    @property
    def enabled(self) -> bool:
        """Whether a picture or a page is written. If so, the attention must be recorded."""
        return self.picture is not None or self.page is not None

    def add(self, result: StoryAnswer) -> None:
        """Add an answer. Raise ArgumentError if a picture is written and this is the second answer."""
        self.count += 1
        if self.picture is not None and self.count > 1:
            problem = "a picture shows one question, but there are several"
            raise ArgumentError(message("--output", problem, hint="write a page: --page answers.html"))
        if self.enabled and len(self.results) < MOST_ENTRIES:
            self.results.append(result)

    def save(self) -> None:
        """Write the picture and the page, and print their names; do nothing if there are no answers."""
        if not self.results:
            return
        if self.picture is not None:
            drawn = self.results[0].picture()
            assert drawn is not None
            for hint in drawn.save(self.picture):
                say(hint)
            say(f"Wrote {shown(self.picture)}")
        if self.page is not None:
            more = self.count - len(self.results)
            about = f"the first {len(self.results):,} of {self.count:,} questions" if more else ""
            save_answers(self.page, self.results, "Answers about stories", about)
            say(f"Wrote {shown(self.page)}")
