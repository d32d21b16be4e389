"""Picture: the result of a view, for the terminal, for notebooks, and for PNG, SVG, PDF and GIF files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType

from regard.errors import ArgumentError
from regard.files.atomic_io import write_whole
from regard.viewing.html_document import SUFFIXES, check_ending, image_uri, save_html
from regard.viewing.pictures.canvas import Canvas, label, same_size
from regard.viewing.pictures.svg_writer import svg_of
from regard.viewing.terminal import Shown


class Picture(Shown):
    """A picture or an animation, to print in the terminal, display in a notebook, or save as a file.

    frames: the canvases that are written to files, one for each frame.
    terminal: an object for the terminal that rich can print. It shows the same content.
    seconds: how long each frame of an animation is shown.
    animation: a function that returns the animation to write to GIF files. Default: the frames.

    >>> from regard.viewing import matrix
    >>> picture = matrix([[0.9, 0.1], [0.0, 1.0]], ["a", "cat"], ["나는", "고양이"])
    >>> picture.svg().startswith("<svg")
    True
    """

    def __init__(
        self,
        frames: Sequence[Canvas],
        terminal: RenderableType,
        seconds: float = 1.0,
        animation: Callable[[], Picture] | None = None,
    ):
        self.frames = same_size(list(frames)) if len(frames) > 1 else list(frames)
        self.terminal, self.seconds, self._animation = terminal, seconds, animation

    @property
    def moves(self) -> bool:
        """Whether this is an animation: more than one frame."""
        return len(self.frames) > 1

    def save(self, path: str | Path) -> tuple[str, ...]:
        """Write a .png, .svg, .pdf or .gif file, atomically.

        An animation is written as one .gif file, or as one file per frame: x-01.png, x-02.png, ...

        Returns hints about characters that no installed font has. The hints are also written below the
        picture. For a .svg file, there are no hints, because the program that displays the file has its own
        fonts.
        """
        path = check_ending(path, SUFFIXES)
        suffix = path.suffix.lower()
        if suffix == ".gif" or not self.moves:
            write_whole(path, self._makers()[suffix]())
        else:
            digits = len(str(len(self.frames)))
            for number, canvas in enumerate(self.frames, 1):
                one = Picture([canvas], self.terminal)
                write_whole(path.with_stem(f"{path.stem}-{number:0{digits}}"), one._makers()[suffix]())
        return () if suffix == ".svg" else self.hints

    def svg(self, title: str = "") -> str:
        """Return the picture, or the last frame of an animation, as SVG text.

        title: the title for screen readers. Default: the title of the picture.
        """
        return svg_of(self.frames[-1], title)

    def png(self) -> bytes:
        """Return the picture, or the last frame of an animation, as the bytes of a PNG file."""
        from regard.viewing.pictures.matplotlib_writer import png_of

        return png_of(self.frames[-1])

    def pdf(self) -> bytes:
        """Return the picture, or the last frame of an animation, as the bytes of a PDF file."""
        from regard.viewing.pictures.matplotlib_writer import pdf_of

        return pdf_of(self.frames[-1])

    def gif(self) -> bytes:
        """Return the picture, or all frames of an animation, as the bytes of a GIF file."""
        from regard.viewing.pictures.matplotlib_writer import gif_of

        if self._animation is not None:
            return self._animation().gif()
        return gif_of(self.frames, self.seconds)

    @property
    def hints(self) -> tuple[str, ...]:
        """Hints about the characters that PNG, PDF and GIF files cannot show: no installed font has them."""
        from regard.viewing.pictures.matplotlib_writer import hints

        return hints(self.frames)

    def __repr__(self) -> str:
        first = self.frames[-1]
        many = f"{len(self.frames)} frames" if self.moves else ""
        return f"<Picture {first.title!r}: {'; '.join(filter(None, (many, first.about)))}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.terminal

    def _makers(self) -> dict[str, Callable[[], bytes]]:
        return {".png": self.png, ".svg": lambda: self.svg().encode(), ".pdf": self.pdf, ".gif": self.gif}

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_png_(self) -> bytes | None:
        return _or_none(self.png)

    def _repr_html_(self) -> str:
        moving = _or_none(self.gif) if self.moves else None
        kind, drawn = ("svg+xml", self.svg().encode()) if moving is None else ("gif", moving)
        return f'<img alt="{escape(self.frames[-1].title)}" src="{image_uri(kind, drawn)}">'


def finished(
    canvas: Canvas,
    terminal: RenderableType,
    title: str,
    about: str = "",
    detail: str = "",
    *,
    name: str = "",
    content: str = "",
) -> Picture:
    """Return a picture of one canvas, with its title and two lines about it above the marks.

    name: the title for screen readers if there is no title.
    content: a description of the picture for screen readers.
    """
    canvas.head(label(title, 90), label(about, 110), detail)
    canvas.title, canvas.about = label(title, 90) or name, content
    return Picture([canvas], terminal)


def stacked(parts: Sequence[Picture], between: float = 36.0) -> Picture:
    """Return a picture of several pictures, one below the other. Animations are not supported.

    between: the distance between two of them, in points.
    """
    (first, *_), (canvas, *others) = parts, [part.frames[0] for part in parts]
    for other in others:
        canvas.put(other, canvas.bounds[0] - other.bounds[0], canvas.bounds[3] + between - other.bounds[1])
    first.terminal = Group(*(part.terminal for part in parts))
    return first


class Illustrated:
    """Base class of recorded attention that is drawn as a picture: print it, show it, or save it."""

    def picture(self) -> Picture:
        """Return the picture, which is an animation if it is saved as .gif."""
        raise TypeError(f"{type(self).__name__} does not implement picture()")

    def page(self) -> str:
        """Return an HTML page."""
        raise TypeError(f"{type(self).__name__} does not implement page()")

    def save(self, path: str | Path) -> tuple[str, ...]:
        """Write a .png, .svg, .pdf, .gif (animation) or .html file, atomically.

        Returns hints about characters that no installed font has. Usually the result is empty.
        """
        path = check_ending(path, (*SUFFIXES, ".html"))
        if path.suffix.lower() == ".html":
            save_html(path, self.page)
            return ()
        return self.picture().save(path)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.picture().terminal


def _or_none(make: Callable[[], bytes]) -> bytes | None:
    """Return the image that make() creates, or None if matplotlib or Pillow is not installed.

    If the result is None, a notebook shows the SVG picture instead.
    """
    try:
        return make()
    except ArgumentError:
        return None
