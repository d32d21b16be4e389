"""regard caption: describe images."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

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
)
from regard.data.images.image_inputs import coco_image_id, list_images
from regard.data.line_io import say, writing
from regard.decoding.beam import MOST_BEAMS
from regard.decoding.rules import MOST_TOKENS
from regard.errors import ArgumentError, DataError, message, printable, shown
from regard.files.atomic_io import write_whole
from regard.tasks.captioning.caption_pictures import CaptionPictures, is_picture

__all__ = ["caption"]

DRAWN_WIDTH = 100
"""The width, in characters, of drawings that are written to a file."""

NAMED = 5
"""Number of unreadable images that are reported one by one."""

Images = Annotated[
    list[str],
    typer.Argument(metavar="IMAGES", help="Image files, folders of images, or patterns e.g. 'photos/*.jpg'."),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write to this file instead of standard output. For one image, it can be a picture of the "
        "attention of each word: .png, .svg, .pdf or .gif (animation).",
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
        help="Number of captions to return per image, best first (n-best).",
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
        show_default="data.max_length of the run",
        rich_help_panel="Decoding",
    ),
]
Read = Annotated[
    str | None,
    typer.Option(
        "--read",
        metavar="NAME",
        help="How hard attention reads the image: argmax, sample or expectation.",
        show_default="the setting of the run",
        rich_help_panel="Decoding",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object per line: image, caption, scores, and the n-best list."
    ),
]
Coco = Annotated[
    Path | None,
    typer.Option("--coco", metavar="FILE", help="Also write the captions as COCO results to this JSON file."),
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
    """Describe images: the name of the file, a tab and its caption for each image.

    With --n-best, each image has several lines, with the log-probability in a third column. Images that
    cannot be read are reported on standard error and left out; the exit status is then 1.

    Examples:

    * `regard caption runs/x photo.jpg --draw`

    * `regard caption runs/x photo.jpg --output photo.png`

    * `regard caption runs/x photos --json --output captions.jsonl --page captions.html`

    * `regard caption runs/x 'val2014/*.jpg' --coco results.json`

    * `regard caption runs/x photo.jpg --n-best 5 --beam-size 10`
    """
    if draw and json:
        raise ArgumentError(message("--draw", "it cannot be combined with --json"))
    if coco is not None and not coco.resolve().parent.is_dir():
        raise DataError(message(shown(coco), "its folder does not exist", hint="create the folder first"))
    search = build_search(beam_size, length_penalty, n_best, greedy, max_length)
    paths = list_images(images)
    picture = output if is_picture(output) else None
    output = None if picture else output
    pictures = CaptionPictures(picture, page, len(paths))
    captioner = open_task("captioning", run, checkpoint, device, threads, search=search, read=read)
    if draw and captioner.model.select is None:
        raise ArgumentError(message("--draw", "this captioner has no attention to draw"))
    pictures.check_attention(captioner.model.select is not None)
    inputs = Inputs(captioner, paths)
    results = captioner.stream(inputs, look="cross" if draw or json or pictures.enabled else None)
    records = list[dict[str, Any]]()
    with writing(output) as write:
        for result in results:
            pictures.add(result)
            records.append({"image_id": coco_image_id(result.image), "caption": result.text})
            if draw and output is None:
                Console(highlight=False).print(result, "")
            else:
                write(_format(result, json, draw, n_best))
    pictures.save()
    if coco is not None:
        write_whole(coco, (_dumps(records) + "\n").encode())
        say(f"Wrote {shown(coco)}")
    return inputs.report()


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass
class Inputs:
    """Iterate over the names and pixels of images. Images that cannot be read are counted and left out."""

    captioner: Any
    paths: list[Path]
    errors: list[DataError] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for path in self.paths:
            try:
                pixels = self.captioner.prepare(path)
            except DataError as error:
                self.errors.append(error)
                if len(self.errors) <= NAMED:
                    say(str(error))
                continue
            yield shown(path), pixels

    def report(self) -> int:
        """Report how many images could not be read; return the exit status."""
        if not self.errors:
            return 0
        say(f"{len(self.errors):,} of {len(self.paths):,} images could not be read and are left out")
        return 1


def _format(result: Any, as_json: bool, draw: bool, n_best: int) -> str:
    """Return a result as one line, or as several lines for the n-best list or a drawing."""
    if as_json:
        return _dumps(result.to_dict())
    if draw:
        file = io.StringIO()
        Console(file=file, width=DRAWN_WIDTH, highlight=False).print(result)
        return file.getvalue()
    name, text = printable(result.image), printable(result.text)
    if n_best == 1:
        return f"{name}\t{text}"
    several = (result, *result.others)
    return "\n".join(f"{name}\t{printable(each.text)}\t{each.log_probability:.4f}" for each in several)
