"""Loading a run, whatever its task is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import UnknownName
from regard.tasks.run_folder import CONFIG, config_of
from regard.tasks.translation.loading import load_translator

__all__ = ["LOADERS", "load"]

LOADERS: dict[str, Callable[..., Any]] = {"translation": load_translator}
"""By the task in config.toml, what loads a run."""


def load(folder: str | Path, **options: Any) -> Any:
    """What a run has become, by the task that config.toml names."""
    task = config_of(Path(folder)).get("task", "translation")
    if not isinstance(task, str) or task not in LOADERS:
        raise UnknownName(f"task in {Path(folder) / CONFIG}:", task, LOADERS)
    return LOADERS[task](folder, **options)
