"""load(): load a run folder of any task."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from regard.errors import UnknownName

__all__ = ["LOADERS", "load"]

LOADERS = {"translation": ("regard.tasks.translation.load_run", "load_translator")}
"""Task in config.toml -> the module and function that load a run; the module is imported on use."""


def load(folder: str | Path, *, checkpoint: str = "best", device: str = "auto", **options: Any) -> Any:
    """Load a trained run; for a translation run, a translator.

    folder: the run folder, --output of `regard train`. checkpoint: "best", "latest", or the number of a step.
    device: cpu, cuda (or gpu), mps, or auto for the fastest available.
    options: those of regard.decoding.Translator.

    >>> import regard, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         regard.load(folder)
    ...     except regard.DataError as error:
    ...         print(str(error).splitlines()[-1])
    hint: give a run folder, which regard train --output writes
    """
    run_folder = importlib.import_module("regard.runs.run_folder")
    task = run_folder.config_of(Path(folder)).get("task", "translation")
    if not isinstance(task, str) or task not in LOADERS:
        raise UnknownName(f"task in {Path(folder) / run_folder.CONFIG}:", task, LOADERS)
    module, name = LOADERS[task]
    loader = getattr(importlib.import_module(module), name)
    return loader(folder, checkpoint=checkpoint, device=device, **options)
