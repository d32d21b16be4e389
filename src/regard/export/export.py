"""export_run(): write a trained run for another program, check the result, and describe it in a README."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.data.tokenizers.tokenizer import SPECIALS, Tokenizer
from regard.errors import ArgumentError, DataError, UnknownName, message, printable, shown
from regard.export.target import Check, Target, side_tokenizers
from regard.files.atomic_io import write
from regard.files.new_folder import check_new, new_folder
from regard.files.requirements import install_command
from regard.lazy_package import ImportedTable
from regard.runs.stored_runs import stored_scores
from regard.training.settings import to_toml

TARGETS: ImportedTable[type[Target]] = ImportedTable(
    {
        "ctranslate2": "regard.export.ctranslate2.CTranslate2",
        "huggingface": "regard.export.huggingface.HuggingFace",
        "onnx": "regard.export.onnx.Onnx",
        "safetensors": "regard.export.safetensors.Safetensors",
    }
)
"""The export targets by name; each is imported on first use."""

CHECKED = 200
"""Number of sentences that the self-check compares."""

SHOWN = 5
"""Maximum number of different outputs that are printed."""


@dataclass(frozen=True)
class Exported:
    """An exported model.

    folder: its folder.
    target: the name of the target.
    check: the result of the self-check.
    lost: sentences about what the exported model does not have.
    size: the size of all files in bytes.
    """

    folder: Path
    target: str
    check: Check
    lost: tuple[str, ...]
    size: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(f"Wrote {shown(self.folder)} ({self.target}, {self.size / 1e6:,.1f} MB)")
        yield Text(f"Self-check: {self.check}")
        for each in self.check.differences[:SHOWN]:
            yield Text(printable(str(each), kept="\n"))
        if hidden := len(self.check.differences) - SHOWN:
            yield Text(f"... and {hidden} more" if hidden > 0 else "")
        for sentence in self.lost:
            yield Text(f"Not exported: {sentence}", "dim")


def find_target(name: str) -> type[Target]:
    """Return the class of a target; raise an error if it is unknown."""
    if name not in TARGETS:
        raise UnknownName("export target", name, TARGETS)
    return TARGETS[name]


def check_packages(target: type[Target]) -> None:
    """Raise an error if a package that a target needs is not installed."""
    if missing := [each for each in target.packages if importlib.util.find_spec(each) is None]:
        are = "is not installed" if len(missing) == 1 else "are not installed"
        problem, hint = f"{' and '.join(missing)} {are}", install_command(target.extra)
        raise ArgumentError(message(f"--to {target.name}", problem, hint=hint))


def export_run(
    run: Any,
    to: str,
    output: str | Path,
    *,
    quantization: str | None = None,
    texts: Sequence[str] | None = None,
) -> Exported:
    """Export a loaded run to a new folder: weights, tokenizers, and a README that says how to use them.

    The exported model is compared with the run before the folder appears. If an error occurs, nothing is
    written.

    run: the result of regard.load().
    to: the name of the target: a key of TARGETS.
    output: the new folder. It must not exist, or be empty.
    quantization: "int8" or "float16", if the target supports it. Default: float32.
    texts: the sentences to compare the exported model with the run on. Default: 200 sentences of the
        validation set or, if its files are not there, random sequences of tokens.
    """
    output = Path(output)
    kind = find_target(to)
    if quantization is not None and quantization not in kind.quantizations:
        known = f"one of {', '.join(kind.quantizations)}" if kind.quantizations else "no --quantization"
        problem = f"{kind.title} does not support it"
        raise ArgumentError(message(f"--quantization {quantization}", problem, expected=known))
    check_new(output)
    target = kind(on_cpu(run), quantization)
    target.check()
    check_packages(kind)  # after check(): a run that is refused needs no packages
    texts, where = (list(texts), "given lines") if texts is not None else _texts(run)
    sizes = {name: weight.nbytes for name, weight in run.model.state_dict().items()}
    with new_folder(output, "the export could not be written", sizes) as folder:
        target.write(folder)
        check = target.verify(folder, texts)
        write(folder / "README.md", [_readme(target, check, where).encode()])
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        size = sum(path.stat().st_size for path in files)
    return Exported(output, to, check, target.lost(), size)


def on_cpu(run: Any) -> Any:
    """Return the run itself if its model is in float32 on the CPU, else a copy with such a model."""
    first = next(run.model.parameters())
    if (
        first.device.type == "cpu"
        and first.dtype == torch.float32
        and not getattr(run.model, "int8_steps", 0)
    ):
        return run
    copied = object.__new__(type(run))
    copied.__dict__.update(run.__dict__)
    copied.model = deepcopy(run.model).cpu().float().eval()
    copied.model.int8_steps = False
    return copied


def _texts(run: Any) -> tuple[list[str], str]:
    """Return texts for the self-check, and what they are."""
    try:
        texts = run.validation_texts(CHECKED)
        if texts:
            return texts, "sentences of the validation set"
    except (DataError, ArgumentError, OSError):  # the files of the data are not there
        pass
    return random_texts(next(iter(side_tokenizers(run).values()))), "random sequences of tokens"


def random_texts(tokenizer: Tokenizer, count: int = CHECKED) -> list[str]:
    """Return texts of 1 to 20 random tokens of a vocabulary. They are the same in each call."""
    generator, texts = random.Random(0), list[str]()
    while len(texts) < count:
        length = generator.randint(1, 20)
        tokens = [generator.randrange(len(SPECIALS), tokenizer.size) for _ in range(length)]
        texts.append(tokenizer.decode(tokens))
    return texts


def _readme(target: Target, check: Check, where: str) -> str:
    """Return the README of an exported model: how to run it, and its model card."""
    run, settings = target.run, target.run.settings
    plain = type(settings).without_folders(settings.model_dump(exclude_none=True))
    data = {name: value for name, value in plain.pop("data", {}).items() if value not in ({}, [], False)}
    scores = stored_scores(run.checkpoint)
    version = importlib.metadata.version("regard")
    sections = {
        "": [
            f"# {settings.model.name} ({settings.task}), exported to {target.title}",
            "Run these lines in this folder. They need no network.",
            f"```python\n{target.usage()}\n```",
        ],
        "## Self-check": [f"{check}: {where}, decoded by the run and by the exported model."],
        "## Not exported": ["\n".join(f"- {each}" for each in target.lost())],
        "## Data": [f"```toml\n{to_toml({'data': data})}```"],
        "## Scores on the validation set": [
            "\n".join(
                ["| metric | value |", "| --- | ---: |", *(f"| {k} | {v:.4f} |" for k, v in scores.items())]
            )
            if scores
            else "This checkpoint was not evaluated."
        ],
        "## Settings": [
            f"Step {run.checkpoint.step:,}, {sum(p.numel() for p in run.model.parameters()):,} parameters, "
            f"{target.quantization or 'float32'}, written by Regard {version}.",
            f"```toml\n{to_toml({name: plain[name] for name in ('model', 'training') if name in plain})}```",
        ],
        "## Licences": [
            "\n".join(f"- {each}" for each in (*target.licences, "Regard: Apache-2.0")),
            "The licence of the weights follows from the licence of the training data, which Regard does not "
            "know.",
        ],
    }
    parts = [part for title, texts in sections.items() for part in filter(None, [title, *texts])]
    return "\n\n".join(parts) + "\n"
