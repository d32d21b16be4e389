"""`regard evaluate` for captioning: compute CIDEr-D and BLEU.

For the built-in corpus, two more scores are computed: the fraction of captions that describe their picture
correctly, and the fraction of words that attend to the object that they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import RenderableType
from rich.text import Text

from regard.data.images import centre_crop
from regard.data.images.caption_files import SUFFIXES, detected_ending
from regard.data.line_io import say
from regard.data.progress_bar import advancing
from regard.decoding.search_options import build_search
from regard.errors import ArgumentError, message, printable, shown
from regard.evaluation.caption_scores import caption_scores, exact_captions, pointing
from regard.roles import CROSS
from regard.runs.run_commands import ChosenRun, RunReport, report_changed_data, score_table
from regard.runs.run_task import RunTask
from regard.tasks.captioning.caption_result import Caption
from regard.tasks.captioning.data import (
    CaptionData,
    read_caption_split,
    read_images,
    read_shapes,
)
from regard.tasks.captioning.image_captioner import set_reading
from regard.tasks.captioning.run import CaptioningRun
from regard.tasks.captioning.settings import ImageData
from regard.tasks.file_options import (
    FAITHFULNESS,
    JSONL,
    PAGE,
    SPLIT,
    TEST_FILE,
    TSV,
    evaluated_files,
)
from regard.tasks.picture_outputs import check_page
from regard.training.command_options import CommandOption
from regard.viewing.image_attention import save_caption_page

__all__ = ["EVALUATE_OPTIONS", "evaluate_captioning"]

PICTURES, MOST_PICTURES = 1000, 1_000_000
MOST_CAPTIONS = 200
"""Maximum number of captions for the option --faithfulness, and for the HTML page of --page."""

IMAGES = CommandOption(
    "--images",
    "Captioning: folder of the images of --test-file, --tsv or --jsonl.",
    "FOLDER",
    shown_default="from the run",
)

EVALUATE_OPTIONS: tuple[CommandOption | str, ...] = (
    TEST_FILE,
    TSV,
    JSONL,
    IMAGES,
    SPLIT,
    CommandOption(
        "--pictures",
        "Captioning: number of pictures of the built-in corpus to evaluate on, with --split.",
        "INT",
        int,
        PICTURES,
        least=1,
        most=MOST_PICTURES,
    ),
    PAGE,
    FAITHFULNESS,
    CommandOption(
        "--read",
        "Captioning with hard attention: attend to the location with the highest score (argmax), to a random "
        "location (sample), or to all locations, weighted (expectation).",
        "NAME",
        shown_default="argmax",
    ),
    "beam_size",
    "length_penalty",
    "greedy",
    "max_length",
)
"""The options of `regard evaluate` for captioning; a str names an option that several commands share."""


def evaluate_captioning(task: type[RunTask], run: ChosenRun | None, options: Mapping[str, Any]) -> RunReport:
    """Caption images with the model of a run, and return the scores of the captions.

    task: the task class.
    run: the run folder and the checkpoint to load; not None.
    options: the values of EVALUATE_OPTIONS. Without --test-file and --split, the images are the validation
        images of the run.
    """
    assert run is not None
    page: Path | None = options["page"]
    check_page(page)
    search = build_search(
        options["beam_size"],
        options["length_penalty"],
        greedy=options["greedy"],
        max_length=options["max_length"],
    )
    captioner: CaptioningRun = run.load(task, search=search)
    set_reading(captioner.model, options["read"], "--read")
    attends = captioner.model.select is not None
    if not attends and (options["faithfulness"] or page is not None):
        option = "--faithfulness" if options["faithfulness"] else "--page"
        problem = 'this captioner has no attention (its setting model.select is "none")'
        raise ArgumentError(message(option, problem))
    data = _data(captioner.settings.data, run, options)
    needs_attention = attends and (data.scenes is not None or options["faithfulness"] or page is not None)
    captions = _captions(captioner, data, CROSS if needs_attention else None)
    if page is not None:
        seen = [each.image_attention(each.image) for each in captions[:MOST_CAPTIONS] if each.words]
        save_caption_page(page, seen)
        say(f"Wrote {shown(page)}")
    values, rows = _scores(captions, data, attends, captioner.map_size)
    printed: list[RenderableType] = [score_table(rows)]
    if options["faithfulness"]:
        erasure = captioner.erase_regions([each for each in captions if each.words][:MOST_CAPTIONS])
        values["faithfulness"] = erasure.to_dict()
        printed.append(Text(f"Faithfulness: {erasure}."))
    return RunReport.of(captioner, data.name, values, *printed)


def _scores(
    captions: Sequence[Caption], data: CaptionData, attends: bool, map_size: tuple[int, int]
) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    """Return the scores of captions as a dict for JSON, and as rows of a table.

    For the built-in corpus, there are two more scores: the fraction of captions that describe their picture
    correctly, and how often a word attends most to the object that it names.

    attends: whether the captioner has attention.
    map_size: the height and width of the feature map, in cells.
    """
    texts = [each.text for each in captions]
    scores, rows = caption_scores(texts, data.captions), [("images", f"{len(captions):,}", "")]
    values: dict[str, Any] = {
        "images": len(captions),
        "map": list(map_size),
        **{name: score.value for name, score in scores.items()},
        "signatures": {name: score.signature for name, score in scores.items()},
    }
    for score in scores.values():
        rows.append((score.name, f"{score.value:.{3 if 'CIDEr' in score.name else 2}f}", score.signature))
    if data.scenes is not None:
        exact = exact_captions(texts, data.scenes)
        values["exact"] = exact
        rows.append(("exact", f"{exact:.3f}", "captions that are true of the picture"))
    if data.scenes is not None and attends:
        accuracy, chance, words = pointing(texts, [each.weights for each in captions], data.scenes)
        values |= {"pointing": accuracy, "pointing_chance": chance, "pointing_words": words}
        about = f"{words:,} content words; chance {chance:.3f}; map of {map_size[0]} x {map_size[1]} cells"
        rows.append(("pointing", f"{accuracy:.3f}", about))
    return values, rows


def _data(data: ImageData, run: ChosenRun, options: Mapping[str, Any]) -> CaptionData:
    """Read the images to evaluate on, with their captions.

    The images are selected by --test-file, --tsv, --jsonl or --split. Without these options, they are the
    validation images of the run.
    """
    (files, kind), split = evaluated_files(options, data.format), options["split"]
    if options["test_file"] and _endings_decide(files, data.train_file or ()):
        kind = None
    folder = [options["images"]] if options["images"] else None
    if folder and not files:
        raise ArgumentError(message("--images", "is used only with --test-file, --tsv or --jsonl"))
    if data.built_in and not files:
        return read_shapes(split or "valid", options["pictures"])
    if not files and split is None:
        read = read_caption_split(data)
        report_changed_data(run.folder, read.fingerprints)
        return replace(read.valid, name=f"{read.valid.name}, validation images")
    chosen = files or data.train_file or ()
    settings = data.model_copy(update={"format": kind})
    named = None if split is None else [split]
    images = read_images(settings, chosen, folder or data.images, named)
    return images if split is None else replace(images, name=f"{images.name}, split {printable(split)}")


def _endings_decide(files: Sequence[str], train_files: Sequence[str]) -> bool:
    """Return whether the format of caption files is detected from their names, as in `regard train`.

    Otherwise, they have the format of the training files: if a name has no known ending, or if all files end
    like the training files. JSON lines in a file named .json, for example, cannot be detected.

    files: the files of --test-file.
    train_files: the caption files of the training set.

    >>> _endings_decide(["a.jsonl"], ["b.tsv"]), _endings_decide(["a.json"], ["b.json"])
    (True, False)
    """
    endings = {detected_ending(Path(each)) for each in files}
    trained = {detected_ending(Path(each)) for each in train_files}
    return endings <= {*SUFFIXES, ".json"} and endings != trained


def _captions(captioner: CaptioningRun, data: CaptionData, look: str | None) -> list[Caption]:
    captions, at_once = list[Caption](), 250
    with advancing("captioning", len(data)) as report:
        for start in range(0, len(data), at_once):
            rows = torch.arange(start, min(start + at_once, len(data)))
            pixels = centre_crop(data.pixels[rows], captioner.image_size)
            names = data.names[start : start + len(rows)]
            captions += captioner.caption_pixels(names, pixels, captioner.search, look)
            report(len(captions))
    return captions
