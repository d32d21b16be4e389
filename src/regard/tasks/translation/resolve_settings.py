"""Settling: from the settings a user gives to checked settings, and the data they name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.decoding import Beam
from regard.errors import ArgumentError, UnknownName, message, shown
from regard.evaluation import bleu
from regard.evaluation.bleu import TOKENIZERS
from regard.models import Model, build_model
from regard.runs.run_folder import check_settings, config_of, fingerprints_of
from regard.tasks.translation.load_run import checked_settings
from regard.tasks.translation.plan import fill_data, fit_to_text, with_grammar
from regard.tasks.translation.translation_data import Split, read_split
from regard.tasks.translation.translation_settings import Evaluating, TranslationSettings, ways_named
from regard.training.settings import build, differences, merged, without_length

__all__ = ["ResolvedSettings", "check_evaluation", "resolve_settings"]

PATHS = ("source", "target", "tsv", "jsonl", "valid_source", "valid_target", "valid_tsv", "valid_jsonl")

TOKENS = ("lowercase", "tokenizer", "joint", "source_size", "target_size")
"""The settings of the data that decide what a token is: weights are worth nothing with others."""

FIXED = ("task", "model", *(f"data.{name}" for name in TOKENS))
"""What no run can change once it is begun."""


@dataclass(frozen=True, eq=False)
class ResolvedSettings:
    """The settings of a run and its data, checked.

    incomplete: the settings of a new run, for make_plan() to complete; None for a resumed run.
    """

    settings: TranslationSettings
    split: Split
    incomplete: dict[str, Any] | None


def resolve_settings(
    given: Mapping[str, Any], begun: Path | None = None, *, change: bool = False
) -> ResolvedSettings:
    """Check the settings of a run and read its data.

    begun: the folder of a run that is resumed; change: whether its settings may differ from before.
    """
    given = _absolute(given)
    _check_text(given)
    if begun is not None:
        before = _checked_config(begun)
        checked_settings(begun, FIXED if change else None)
        _same_way(begun, before, given)
        wanted = merged(without_length(before, given), given)
        settings = build(TranslationSettings, wanted, str(begun / "config.toml"))
        check_settings(begun, wanted, FIXED if change else None)
        check_evaluation(settings.evaluation)
        before_data = None if change else fingerprints_of(begun)
        return ResolvedSettings(settings, read_split(settings.data, before_data), None)
    if not given["data"]:
        hint = "--source a.ko --target a.en, --tsv, --jsonl, or --built-in korean"
        raise ArgumentError(message("regard train", "no data are named to train on", hint=hint))
    other = None if given.get("init_from") is None else _checked_config(Path(given["init_from"]))
    if other is not None:
        checked_settings(Path(given["init_from"]))
        given = _like_the_other(given, other)
    given = fill_data(with_grammar(given, other))
    settings = build(TranslationSettings, given, "the settings")
    check_evaluation(settings.evaluation)
    with torch.device("meta"):  # wrong options are found before anything is read
        _check_memory(build_model(settings.model.name, 8, 8, **settings.model.options))
    split = read_split(settings.data)
    given, why = fit_to_text(given, split.train)
    split = replace(split, said=(*split.said, why)) if why else split
    return ResolvedSettings(build(TranslationSettings, given, "the settings"), split, given)


def check_evaluation(how: Evaluating) -> None:
    """Raise now what the first evaluation would raise, such as an unknown tokenizer of BLEU."""
    if how.tokenize not in TOKENIZERS:
        raise UnknownName("value of evaluation.tokenize:", how.tokenize, TOKENIZERS)
    bleu(["a"], ["a"], tokenize=how.tokenize, lowercase=how.lowercase)
    Beam(size=how.beam)


def _checked_config(folder: Path) -> dict[str, Any]:
    """The settings of a run as nested values, of which each section is known to be right by itself."""
    config = config_of(folder)
    build(TranslationSettings, config, str(folder / "config.toml"))
    return config


def _check_text(value: Any, name: str = "") -> None:
    """Refuse text that is not UTF-8, as the name of a file may be: config.toml could not hold it."""
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
    """Refuse a model whose weights alone, in float32, are larger than the memory of this machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return
    needed = 4 * sum(each.numel() for each in model.parameters())
    if needed > memory:
        problem = f"the model needs {needed / 1e9:,.0f} GB for its weights"
        expected = f"less than the {memory / 1e9:,.0f} GB of memory that this machine has"
        raise ArgumentError(message("the settings", problem, expected=expected, hint="make it smaller"))


def _same_way(begun: Path, before: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse data that are named in another way than those a run was begun with: both would be there."""
    was, now = ways_named(before.get("data", {})), ways_named(given["data"])
    if now and now != was:
        problem = f"it was begun with {' and '.join(was)}, and {' and '.join(now)} is given now"
        hint = "leave the data away to go on; another --out begins anew"
        raise ArgumentError(message(f"{begun} cannot be resumed", problem, hint=hint))


def _absolute(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which files are named from the root, so that a run can be resumed from anywhere."""
    data = dict(given.get("data") or {})
    for name in (*PATHS, "alignments"):
        if isinstance(data.get(name), str):
            data[name] = [data[name]]
        if isinstance(data.get(name), list):
            data[name] = [str(Path(path).absolute()) for path in data[name] if isinstance(path, str)]
    whole = {**given, "data": data}
    if isinstance(given.get("init_from"), str):
        whole["init_from"] = str(Path(given["init_from"]).absolute())
    return whole


def _like_the_other(given: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that starts from another's weights: its model, and its tokens."""
    kept = {"model": before.get("model", {}), "data": {name: before["data"].get(name) for name in TOKENS}}
    whole = merged(kept, given)
    found = differences(
        kept, {"model": whole["model"], "data": {name: whole["data"].get(name) for name in TOKENS}}
    )
    if found:
        problem = "its weights fit another model\n  " + "\n  ".join(found)
        hint = "leave the model and its tokens as they are"
        raise ArgumentError(message(f"--init-from {given['init_from']}", problem, hint=hint))
    return whole
