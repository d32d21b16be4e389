"""load(): from a run folder to what it can do. What that needs is imported when it is called."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__all__ = ["load"]


def load(folder: str | Path, *, checkpoint: str = "best", device: str = "auto", **options: Any) -> Any:
    """Load what a run has become: for a translation run, a translator.

    folder: the --out of `regard train`. checkpoint: "best", "latest", or the number of a step. device: cpu,
    cuda, mps, or auto for the best there is. options: those of regard.decoding.Translator, such as search.

    >>> import regard, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         regard.load(folder)
    ...     except regard.DataError as error:
    ...         print(str(error).splitlines()[-1])
    hint: give a folder that regard train --out made
    """
    tasks = importlib.import_module("regard.tasks.loading")
    return tasks.load(folder, checkpoint=checkpoint, device=device, **options)
