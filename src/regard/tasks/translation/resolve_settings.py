"""Resolve settings: check what the user set, read the data, and compare both with a resumed run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.decoding import Beam
from regard.errors import ArgumentError, DataError, UnknownName, message, shown
from regard.evaluation import bleu
from regard.evaluation.bleu import TOKENIZERS
from regard.models import Model, build_model
from regard.runs.run_folder import check_settings, config_of, fingerprints_of
from regard.tasks.translation.load_run import checked_settings
from regard.tasks.translation.plan import fill_data, fit_to_text, with_grammar
from regard.tasks.translation.translation_data import Split, read_split
from regard.tasks.translation.translation_settings import Evaluating, TranslationSettings, ways_named
from regard.training.setting_names import current_names, misplaced
from regard.training.settings import build, differences, merged, without_alternatives

__all__ = ["ResolvedSettings", "check_evaluation", "resolve_settings"]

PATHS = ("source", "target", "tsv", "jsonl", "valid_source", "valid_target", "valid_tsv", "valid_jsonl")

TOKENS = ("lowercase", "tokenizer", "joint", "source_vocab_size", "target_vocab_size")
"""The data settings that define the vocabulary: the weights of a run are useless with another one."""

FIXED = ("task", "model", *(f"data.{name}" for name in TOKENS))
"""The settings that cannot change when a run is resumed."""


@dataclass(frozen=True, eq=False)
class ResolvedSettings:
    """The settings of a run and its data, checked.

    incomplete: the settings of a new run, for make_plan() to complete; None for a resumed run.
    """

    settings: TranslationSettings
    split: Split
    incomplete: dict[str, Any] | None

    @property
    def is_new(self) -> bool:
        """Whether the run is new; False if it is resumed."""
        return self.incomplete is not None


def resolve_settings(
    settings: Mapping[str, Any], resumed: Path | None = None, *, change: bool = False
) -> ResolvedSettings:
    """Check the settings of a run and read its data.

    settings: nested as in config.toml. resumed: the folder of the run to resume; None for a new run. change:
    whether its settings and data may differ from before.
    """
    settings = _absolute(current_names(settings))
    _check_text(settings)
    if resumed is not None:
        return _resolve_resumed(settings, resumed, change)
    if not settings["data"]:
        hint = "--source a.ko --target a.en, --tsv, --jsonl, or --built-in korean"
        raise ArgumentError(message("regard train", "no training data are given", hint=hint))
    other = None if settings.get("init_from") is None else _checked_config(Path(settings["init_from"]))
    if other is not None:
        checked_settings(Path(settings["init_from"]))
        settings = _with_model_of(other, settings)
    settings = fill_data(with_grammar(settings, other))
    checked = build(TranslationSettings, settings, "the settings")
    check_evaluation(checked.evaluation)
    if error := misplaced(TranslationSettings, "model", checked.model.options):
        raise error
    with torch.device("meta"):  # report wrong model options before the data are read
        _check_memory(build_model(checked.model.name, 8, 8, **checked.model.options))
    split = read_split(checked.data)
    settings, why = fit_to_text(settings, split.train)
    split = replace(split, notes=(*split.notes, why)) if why else split
    return ResolvedSettings(build(TranslationSettings, settings, "the settings"), split, settings)


def _resolve_resumed(settings: Mapping[str, Any], folder: Path, change: bool) -> ResolvedSettings:
    before = _checked_config(folder)
    checked_settings(folder, FIXED if change else None)
    _check_same_format(folder, before, settings)
    whole = merged(without_alternatives(before, settings), settings)
    checked = build(TranslationSettings, whole, str(folder / "config.toml"))
    check_settings(folder, whole, FIXED if change else None)
    check_evaluation(checked.evaluation)
    _check_data_files(folder, whole)
    fingerprints = None if change else fingerprints_of(folder)
    return ResolvedSettings(checked, read_split(checked.data, fingerprints), None)


def check_evaluation(how: Evaluating) -> None:
    """Raise the errors of the first evaluation early, such as an unknown tokenizer of BLEU."""
    if how.tokenize not in TOKENIZERS:
        raise UnknownName("value of evaluation.tokenize:", how.tokenize, TOKENIZERS)
    bleu(["a"], ["a"], tokenize=how.tokenize, lowercase=how.lowercase)
    Beam(size=how.beam_size)


def _checked_config(folder: Path) -> dict[str, Any]:
    """Return the settings of a run as nested values, after validation."""
    config = config_of(folder)
    build(TranslationSettings, config, str(folder / "config.toml"))
    return config


def _check_text(value: Any, name: str = "") -> None:
    """Raise for text that is not UTF-8, such as a file name: it cannot be written to config.toml."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_text(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            _check_text(inner, name)
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            hint = "rename the file or folder, or give a symbolic link to it"
            raise ArgumentError(message(name, f"{shown(value)} is not valid UTF-8", hint=hint)) from None


def _check_memory(model: Model) -> None:
    """Raise if the weights alone, in float32, are larger than the memory of this machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return
    needed = 4 * sum(each.numel() for each in model.parameters())
    if needed > memory:
        problem = f"the model needs {needed / 1e9:,.0f} GB for its weights"
        expected = f"less than the {memory / 1e9:,.0f} GB of memory of this machine"
        raise ArgumentError(message("the settings", problem, expected=expected, hint="use a smaller model"))


def _check_same_format(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise if the data are given in another format than before: the merged settings would have both."""
    old, new = ways_named(before.get("data", {})), ways_named(settings["data"])
    if new and new != old:
        problem = f"the run was started with {' and '.join(old)}, not with {' and '.join(new)}"
        hint = "to continue it, do not give data options; to start a new run, choose another --output"
        raise ArgumentError(message(f"{folder} cannot be resumed", problem, hint=hint))


def _check_data_files(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise if a data file of a resumed run does not exist, with the command for data that have moved."""
    data = settings["data"]
    for name in (*PATHS, "alignments"):
        for path in data.get(name) or ():
            if not os.path.exists(path):
                names = [other for other in (*PATHS, "alignments") if data.get(other)]
                options = " ".join(f"--{other.replace('_', '-')} NEW" for other in names)
                hint = f"if the data moved: regard train --output {folder} --resume --change {options}"
                problem = f"data.{name} of {folder}: there is no such file"
                raise DataError(message(shown(path), problem, hint=hint))


def _absolute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with absolute paths, so that a run can be resumed from any folder."""
    data = dict(settings.get("data") or {})
    for name in (*PATHS, "alignments"):
        if isinstance(data.get(name), str):
            data[name] = [data[name]]
        if isinstance(data.get(name), list):
            data[name] = [str(Path(path).absolute()) for path in data[name] if isinstance(path, str)]
    whole = {**settings, "data": data}
    if isinstance(settings.get("init_from"), str):
        whole["init_from"] = str(Path(settings["init_from"]).absolute())
    return whole


def _with_model_of(other: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the model and vocabulary of the run whose weights are used (--init-from)."""
    fixed = {"model": other.get("model", {}), "data": {name: other["data"].get(name) for name in TOKENS}}
    whole = merged(fixed, settings)
    changed = differences(
        fixed, {"model": whole["model"], "data": {name: whole["data"].get(name) for name in TOKENS}}
    )
    if changed:
        problem = "its weights do not fit these settings\n  " + "\n  ".join(changed)
        hint = "do not change the model and the tokenizer"
        raise ArgumentError(message(f"--init-from {settings['init_from']}", problem, hint=hint))
    return whole
