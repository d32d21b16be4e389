"""The command `regard caption`: write captions for images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.cli.decoding_options import GREEDY, PENALTY, SEARCHING, beam_size, max_length, n_best, search_of
from regard.cli.open_runs import open_task
from regard.cli.options import OF_RUN, REQUIRED, RUN, but, command
from regard.cli.predict import CheckedInputs, drawing_option, result_files, write_results
from regard.cli.printing import json_text
from regard.cli.usage_errors import check_apart
from regard.data.images.caption_files import coco_image_id, list_images
from regard.data.line_io import say
from regard.errors import ArgumentError, DataError, message, printable, shown
from regard.files.atomic_io import write_whole
from regard.tasks.captioning import Caption
from regard.tasks.captioning.image_captioner import set_reading
from regard.tasks.picture_outputs import check_folder
from regard.training.command_options import CommandOption, several
from regard.viewing.html_document import SUFFIXES


@command(
    RUN,
    several(
        "images",
        "Image files, folders of images, or patterns like 'photos/*.jpg'.",
        "IMAGES",
        default=REQUIRED,
    ),
    but(
        "output",
        "Write the captions to this file instead of standard output. For one image, a name ending in "
        ".png, .svg, .pdf or .gif writes a picture (.gif: an animation) of the attention of each word.",
    ),
    n_best("Number of captions to print per image, best first (n-best)."),
    but("json", "Print one JSON object per image: image, caption, scores, and the n-best list."),
    CommandOption("--coco", "Also write the captions to this file, as COCO results.", "FILE", Path),
    but("draw", "Draw the attention of each word over the image, in the terminal."),
    but("page", "Also write an HTML page with the images, their captions and the attention of each word."),
    beam_size(),
    PENALTY,
    GREEDY,
    max_length(
        "--max-length",
        "Maximum number of tokens per caption.",
        shown_default="the setting data.max_length of the run",
    ),
    CommandOption(
        "--read",
        "For models with hard attention: attend to the location with the highest score (argmax), to a "
        "random location (sample), or to all locations, weighted (expectation).",
        "NAME",
        shown_default="argmax",
        panel=SEARCHING,
    ),
    *OF_RUN,
)
def caption(run: Path, images: list[str], **options: Any) -> int:
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
    outputs = {name: options[name] for name in ("output", "coco", "page") if options[name] is not None}
    files = result_files(options, "image", SUFFIXES)
    check_folder(options["coco"])
    search, missing = search_of(options), list[DataError]()
    paths = list_images(images, missing)
    for name, path in outputs.items():
        check_apart(f"--{name}", path, paths)  # images in a folder, or images that match a pattern
    files.expect(len(paths))
    captioner = open_task("captioning", run, options, search=search)
    set_reading(captioner.model, options["read"], "--read")
    drawn = drawing_option(options, files)
    if captioner.model.select is None and drawn:
        problem = "this captioner has no attention (its setting model.select is none)"
        raise ArgumentError(message(drawn, problem))
    inputs = CheckedInputs(paths, lambda path: (shown(path), captioner.prepare(path)), "image")
    for error in missing:
        inputs.read += 1
        inputs.report(error)
    look = "cross" if drawn or options["json"] else None
    results, records = captioner.stream(inputs, look=look), list[dict[str, Any]]()

    def add(result: Caption) -> None:
        records.append({"image_id": coco_image_id(result.image), "caption": result.text})

    def plain(result: Caption, number: int) -> Iterator[str]:
        name, several = printable(result.image), options["n_best"] > 1
        for each in (result, *result.others):
            yield f"{name}\t{printable(each.text)}" + f"\t{each.log_probability:.4f}" * several

    write_results(results, options, plain, files, "Captions", inputs=inputs, each=add)
    if options["coco"] is not None:
        write_whole(options["coco"], (json_text(records) + "\n").encode())
        say(f"Wrote {shown(options['coco'])}")
    return inputs.status("could not be read and were skipped")
