"""Running: from settings to a trained run folder, begun, resumed, or started from another run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from regard.data import load_tokenizer
from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.models import MODELS, Model, build_model
from regard.tasks.run_folder import (
    check_data,
    check_settings,
    config_of,
    is_run,
    made_folder,
    write_config,
    write_data,
)
from regard.tasks.translation.corpus import TOKENIZERS, Corpus, Split, read_split
from regard.tasks.translation.defaults import filled
from regard.tasks.translation.devices import choose_device
from regard.tasks.translation.settings import TranslationSettings
from regard.tasks.translation.task import TranslationTask
from regard.training.checkpoint import Checkpoints
from regard.training.distributed import Processes, joined
from regard.training.interrupting import interruptible
from regard.training.log import Log
from regard.training.loop import Trainer
from regard.training.progress import Progress
from regard.training.settings import build, merged

__all__ = ["Machine", "Outcome", "train_translation"]

PATHS = ("source", "target", "tsv", "jsonl", "valid_source", "valid_target", "valid_tsv", "valid_jsonl")


@dataclass(frozen=True)
class Machine:
    """Where a run is trained: cpu, cuda, mps, or auto for the best there is; threads as many as given."""

    device: str = "auto"
    threads: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a training ended: where the run stands, and by what it was interrupted, if it was."""

    folder: Path
    progress: Progress
    interrupted: str = ""


def train_translation(
    given: Mapping[str, Any],
    folder: str | Path,
    *,
    resume: bool = False,
    change: bool = False,
    init_from: str | Path | None = None,
    machine: Machine | None = None,
    console: Console | None = None,
) -> Outcome:
    """Train a translator into a run folder.

    given: settings, nested as in config.toml; what is not said is filled in to suit the data. resume: go on
    where the run in this folder stands, or begin it. change: go on even though settings or data are not what
    they were. init_from: another run, whose model, tokenizers and weights this one starts with. Ctrl-C and
    SIGTERM save, and say so in the outcome.
    """
    machine = machine or Machine()
    folder, other = Path(folder), None if init_from is None else Path(init_from)
    device = choose_device(machine.device)
    with joined(device) as processes:
        begun = processes.share(is_run(folder))
        if begun and not resume:
            hint = "--resume goes on with it; another --out begins anew"
            raise ArgumentError(message(str(folder), "there is a run in this folder already", hint=hint))
        settings, split = settled(given, folder if begun else None, other, change)
        if begun and not change:
            check_data(folder, split.fingerprints)
        corpus = _in_turn(processes, split, settings, folder, None if begun else other, fresh=not begun)
        _set_threads(machine, folder, device)
        return _trained(settings, corpus, folder, device, processes, other, console)


def settled(
    given: Mapping[str, Any], begun: Path | None, other: Path | None, change: bool
) -> tuple[TranslationSettings, Split]:
    """The settings of the run, filled in, and its data."""
    given = _absolute(given)
    place = "the settings"
    if begun is not None:
        wanted = merged(config_of(begun), given)
        if not change:
            check_settings(begun, wanted)
        settings = build(TranslationSettings, wanted, str(begun / "config.toml"))
        return settings, read_split(settings.data)
    if other is not None:
        before = config_of(other)
        kept = {key: before["data"].get(key) for key in ("lowercase", "tokenizer", "joint")}
        given = merged({"model": before["model"], "data": kept}, given)
        if given["model"] != before["model"]:
            problem = "the model is not that of the run it would start from"
            raise ArgumentError(message(f"--init-from {other}", problem, hint="leave the model as it is"))
    first = build(TranslationSettings, given, place)
    split = read_split(first.data)
    full = filled(given, len(split.train)) if other is None else given
    settings = build(TranslationSettings, full, place)
    if settings.model.name not in MODELS:
        raise UnknownName("model", settings.model.name, MODELS)
    return settings, split


def _absolute(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which files are named from the root, so that a run can be resumed from anywhere."""
    data = dict(given.get("data", {}))
    for name in (*PATHS, "alignments"):
        if data.get(name) is not None:
            data[name] = [str(Path(path).absolute()) for path in data[name]]
    return {**given, "data": data} if data else dict(given)


def _in_turn(
    processes: Processes,
    split: Split,
    settings: TranslationSettings,
    folder: Path,
    other: Path | None,
    fresh: bool,
) -> Corpus:
    """The corpus, made by the first process and found made by the others; the settings are written last."""
    corpus = None
    if processes.first:
        for name in TOKENIZERS if fresh else ():
            (folder / name).unlink(missing_ok=True)
            if other is not None:
                load_tokenizer(other / name).save(made_folder(folder) / name)
        corpus = Corpus.made(split, settings.data, made_folder(folder))
        write_data(folder, split.fingerprints)
        write_config(folder, settings.model_dump())
    processes.wait()
    return corpus or Corpus.made(split, settings.data, folder)


def _set_threads(machine: Machine, folder: Path, device: str) -> None:
    """As many threads as asked for, or as the run had: other sums are rounded in another order."""
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    elif device == "cpu":
        try:
            before = Checkpoints(folder).latest()
        except DataError:
            before = None
        if before is not None:
            torch.set_num_threads(int(before.state["threads"]))


def build_from(settings: TranslationSettings, corpus: Corpus) -> Model:
    """The model of the settings, its first weights drawn from the seed."""
    torch.manual_seed(settings.seed)
    return build_model(settings.model.name, corpus.source.size, corpus.target.size, **settings.model.options)


def _trained(
    settings: TranslationSettings,
    corpus: Corpus,
    folder: Path,
    device: str,
    processes: Processes,
    other: Path | None,
    console: Console | None,
) -> Outcome:
    model = build_from(settings, corpus)
    task = TranslationTask(model, corpus, settings, processes)
    board = folder / "tensorboard" if settings.training.tensorboard else None
    said = console if processes.first else Console(quiet=True)
    path = folder / "log.jsonl" if processes.first else None
    log = Log(path, console=said, board=board, record=settings.training.log_every)
    place = torch.device(device, processes.local) if device == "cuda" else torch.device(device)
    trainer = Trainer(
        task, settings.training, folder, seed=settings.seed, device=place, processes=processes, log=log
    )
    with interruptible() as asked, log:
        found = trainer.resume()
        if found is not None:
            log.event("resumed", f"resumed at step {found.step:,}", step=found.step)
        elif other is not None:
            _start_from(model, other)
            log.event("begun", f"starting from the weights of {other.name}")
        progress = trainer.run(asked)
        log.event("ended" if progress.ended else "stopped", progress.ended or f"stopped by {asked.cause}")
    return Outcome(folder, progress, asked.cause if not progress.ended else "")


def _start_from(model: Model, other: Path) -> None:
    checkpoints = Checkpoints(other)
    found = checkpoints.best() or checkpoints.latest()
    if found is None:
        raise DataError(message(str(other), "this run has no checkpoint to start from"))
    model.load_state_dict(found.tensors("weights"))
