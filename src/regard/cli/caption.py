"""The command `regard caption`: write captions for images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.json_output import json_text
from regard.cli.output_files import check_apart
from regard.cli.printable_console import printable_console
from regard.cli.run_options import (
    BEAM_SIZE,
    LENGTH_PENALTY,
    BeamSize,
    CheckpointName,
    Device,
    GreedySearch,
    LengthPenalty,
    RunFolder,
    Threads,
    build_search,
    open_task,
    output_option,
)
from regard.data.images.caption_files import coco_image_id, list_images
from regard.data.line_io import say, writing
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.rules import MOST_TOKENS
from regard.errors import ArgumentError, DataError, message, printable, shown
from regard.files.atomic_io import write_whole
from regard.tasks.captioning.caption_pictures import CaptionPictures
from regard.tasks.captioning.image_captioner import set_reading
from regard.tasks.picture_outputs import check_folder, is_picture
from regard.viewing.html_document import SUFFIXES

__all__ = ["caption"]

DRAWN_WIDTH = 100
"""Width in characters of the drawings of --draw if they are written to a file."""

NAMED = 5
"""Maximum number of unreadable images for which the error message is printed; the others are only counted."""

Images = Annotated[
    list[str],
    typer.Argument(metavar="IMAGES", help="Image files, folders of images, or patterns like 'photos/*.jpg'."),
]
OutputFile = Annotated[
    Path | None,
    output_option(
        "Write the captions to this file instead of standard output. For one image, a name ending in "
        ".png, .svg, .pdf or .gif writes a picture (.gif: an animation) of the attention of each word.",
        SUFFIXES,
    ),
]
PageFile = Annotated[
    Path | None,
    typer.Option(
        "--page",
        metavar="FILE.html",
        help="Also write an HTML page with the images, their captions and the attention of each word.",
    ),
]
NBest = Annotated[
    int,
    typer.Option(
        "--n-best",
        metavar="INT",
        help="Number of captions to print per image, best first (n-best).",
        min=1,
        max=MOST_BEAMS,
        rich_help_panel="Decoding",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        metavar="INT",
        help="Maximum number of tokens per caption.",
        min=1,
        max=MOST_TOKENS,
        show_default="the setting data.max_length of the run",
        rich_help_panel="Decoding",
    ),
]
Read = Annotated[
    str | None,
    typer.Option(
        "--read",
        metavar="NAME",
        help="For models with hard attention: attend to the location with the highest score (argmax), to a "
        "random location (sample), or to all locations, weighted (expectation).",
        show_default="argmax",
        rich_help_panel="Decoding",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object per image: image, caption, scores, and the n-best list."
    ),
]
Coco = Annotated[
    Path | None,
    typer.Option("--coco", metavar="FILE", help="Also write the captions to this file, as COCO results."),
]
Draw = Annotated[
    bool, typer.Option("--draw", help="Draw the attention of each word over the image, in the terminal.")
]


def caption(
    run: RunFolder,
    images: Images,
    output: OutputFile = None,
    n_best: NBest = 1,
    json: Json = False,
    coco: Coco = None,
    draw: Draw = False,
    page: PageFile = None,
    beam_size: BeamSize = BEAM_SIZE,
    length_penalty: LengthPenalty = LENGTH_PENALTY,
    greedy: GreedySearch = False,
    max_length: MaxLength = None,
    read: Read = None,
    checkpoint: CheckpointName = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> int:
    """Write captions for images: one line for each image, with the file name, a tab and the caption.

    With --n-best, there are several lines for each image, with the log-probability in a third column. Images
    that cannot be read are skipped and reported on standard error. Then the exit status is 1.

    Examples:

    * `regard caption runs/x photo.jpg --draw`

    * `regard caption runs/x photo.jpg --output photo.png`

    * `regard caption runs/x photos --json --output captions.jsonl --page captions.html`

    * `regard caption runs/x 'val2014/*.jpg' --coco results.json`

    * `regard caption runs/x photo.jpg --n-best 5 --beam-size 10`
    """
    if draw and json:
        raise ArgumentError(message("--draw", "cannot be combined with --json"))
    check_folder(coco)
    search = build_search(beam_size, length_penalty, n_best, greedy, max_length)
    missing = list[DataError]()
    paths = list_images(images, missing)
    for option, written in {"--output": output, "--coco": coco, "--page": page}.items():
        if written is not None:
            check_apart(option, written, paths)  # images in a folder, or images that match a pattern
    picture = output if is_picture(output) else None
    output = None if picture else output
    pictures = CaptionPictures(picture, page, len(paths))
    captioner = open_task("captioning", run, checkpoint, device, threads, search=search)
    set_reading(captioner.model, read, "--read")
    if draw and captioner.model.select is None:
        raise ArgumentError(message("--draw", "this captioner has no attention (model.select is none)"))
    pictures.check_attention(captioner.model.select is not None)
    inputs = Inputs(captioner, paths, missing)
    results = captioner.stream(inputs, look="cross" if draw or json or pictures.enabled else None)
    records = list[dict[str, Any]]()
    with writing(output) as write:
        for result in results:
            pictures.add(result)
            records.append({"image_id": coco_image_id(result.image), "caption": result.text})
            if draw and output is None:
                printable_console().print(result, "")
            else:
                write(_format(result, json, draw, n_best))
    pictures.save()
    if coco is not None:
        write_whole(coco, (json_text(records) + "\n").encode())
        say(f"Wrote {shown(coco)}")
    return inputs.report()


@dataclass
class Inputs:
    """Iterates over the names and pixels of images. Images that cannot be read are reported and skipped.

    captioner: the ImageCaptioner, whose prepare() reads an image.
    paths: the image files.
    missing: one error for each argument that matches no image file. These errors are reported first.
    errors: the number of errors so far.
    """

    captioner: Any
    paths: list[Path]
    missing: list[DataError]
    errors: int = 0

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for error in self.missing:
            self._add(error)
        for path in self.paths:
            try:
                pixels = self.captioner.prepare(path)
            except DataError as error:
                self._add(error)
                continue
            yield shown(path), pixels

    def _add(self, error: DataError) -> None:
        self.errors += 1
        if self.errors <= NAMED:
            say(str(error))

    def report(self) -> int:
        """Print how many images could not be read, if any; return the exit status, 0 or 1."""
        if not self.errors:
            return 0
        total = len(self.paths) + len(self.missing)
        say(f"{self.errors:,} of {total:,} images could not be read and were skipped")
        return 1


def _format(result: Any, as_json: bool, draw: bool, n_best: int) -> str:
    """Return the output of `regard caption` for one image.

    result: the caption of the image.
    as_json: return a JSON object.
    draw: return a drawing of the attention.
    n_best: number of captions; if more than 1, there is a line for each of them.
    """
    if as_json:
        return json_text(result.to_dict())
    if draw:
        file = io.StringIO()
        printable_console(file=file, width=DRAWN_WIDTH).print(result)
        return file.getvalue()
    name, text = printable(result.image), printable(result.text)
    if n_best == 1:
        return f"{name}\t{text}"
    several = (result, *result.others)
    return "\n".join(f"{name}\t{printable(each.text)}\t{each.log_probability:.4f}" for each in several)
