"""Files of `regard ask`: a picture of the hops of one question, and a page of all questions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regard.data.line_io import say
from regard.errors import ArgumentError, DataError, message, shown
from regard.evaluation.story_answer import StoryAnswer, save_answers

__all__ = ["AnswerPictures", "is_picture"]

PICTURES = (".png", ".svg", ".pdf")
"""The file types of a picture."""

MOST_ENTRIES = 300
"""Maximum number of questions on a page."""


def is_picture(path: Path | None) -> bool:
    """Return whether a file name has the type of a picture.

    >>> is_picture(Path("hops.svg")), is_picture(Path("answers.jsonl"))
    (True, False)
    """
    return path is not None and path.suffix.lower() in PICTURES


@dataclass
class AnswerPictures:
    """Collects answers, and writes them as a picture or a page.

    picture: the picture file to write; None for none. It is of the only question.
    page: the HTML page to write; None for none.
    """

    picture: Path | None = None
    page: Path | None = None
    results: list[StoryAnswer] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        if self.page is not None and self.page.suffix.lower() != ".html":
            problem = f"{shown(self.page.name)} does not end in .html"
            hint = f"{shown(self.page.stem) or 'page'}.html"
            raise ArgumentError(message("--page", problem, hint=hint))
        for path in (self.picture, self.page):
            if path is not None and not path.resolve().parent.is_dir():
                hint = "create the folder first"
                raise DataError(message(shown(path), "its folder does not exist", hint=hint))

    @property
    def enabled(self) -> bool:
        """Whether a file is written, which needs the recorded attention."""
        return self.picture is not None or self.page is not None

    def add(self, result: StoryAnswer) -> None:
        """Add an answer; raise ArgumentError if it is the second one of a picture."""
        self.count += 1
        if self.picture is not None and self.count > 1:
            problem = "a picture shows one question, but there are several"
            raise ArgumentError(message("--output", problem, hint="write a page: --page answers.html"))
        if self.enabled and len(self.results) < MOST_ENTRIES:
            self.results.append(result)

    def save(self) -> None:
        """Write the files, and report their names."""
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
