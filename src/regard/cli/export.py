"""regard export: write a trained run for CTranslate2, Hugging Face, ONNX or safetensors."""

from __future__ import annotations

import itertools
from pathlib import Path

from regard.cli.open_runs import set_threads, task_in_regard
from regard.cli.options import REQUIRED, RUN, but, command
from regard.cli.printing import printable_console
from regard.data.line_io import say
from regard.data.read_text import read_lines
from regard.export import TARGETS, export_run
from regard.export.export import CHECKED, find_target
from regard.files.new_folder import check_new
from regard.tasks.task_table import load
from regard.training.command_options import CommandOption


@command(
    RUN,
    CommandOption("--to", f"Target: {', '.join(TARGETS)}.", "NAME", default=REQUIRED),
    but("output", "Folder to write.", metavar="FOLDER", default=REQUIRED),
    CommandOption(
        "--quantization",
        "Store the weights as float16 or int8, where the target supports it.",
        "NAME",
        shown_default="float32",
    ),
    CommandOption(
        "--check-file",
        f"Text file: compare the run and the exported model on its first {CHECKED} lines.",
        "FILE",
        shown_default=f"{CHECKED} sentences of the validation set",
    ),
    "checkpoint",
    "threads",
)
def export(
    run: Path,
    to: str,
    output: Path,
    quantization: str | None,
    check_file: str | None,
    checkpoint: str,
    threads: int | None,
) -> None:
    """Write a trained model in the format of another program, with its tokenizers and a README.

    After writing, sentences are decoded by the run and by the exported model, and the number of equal outputs
    is printed. A model that the target cannot compute exactly is refused, with the reason and the nearest
    setting.

    Examples:

    * `regard export runs/x --to ctranslate2 --output x-ctranslate2 --quantization int8`

    * `regard export runs/x --to huggingface --output x-huggingface`

    * `regard export runs/x --to safetensors --output x-weights`
    """
    find_target(to)
    check_new(output)
    task_in_regard(run, "translation, language or classification")
    set_threads({"threads": threads, "device": "cpu"})
    loaded = load(run, checkpoint=checkpoint, device="cpu")
    for note in loaded.notes:
        say(note)
    texts = None if check_file is None else list(itertools.islice(read_lines(check_file), CHECKED))
    exported = export_run(loaded, to, output, quantization=quantization, texts=texts)
    printable_console(soft_wrap=True).print(exported)
