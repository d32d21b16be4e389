"""Train one model for each of several random seeds. For the files of such a run, see seed_folders.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path

from rich.console import Console

from regard.files.folder_lock import FolderLock, locked
from regard.runs.prepare_run import PreparedRun, copy_files
from regard.runs.run_folder import made_folder, write_config_and_manifest, write_data
from regard.runs.run_task import RunTask
from regard.runs.seed_folders import failures_of, seed_folder, write_failures
from regard.runs.seed_scores import SeedFacts, scores_table, seed_facts_of, written_summary
from regard.training.budget import count
from regard.training.interrupts import interruptible
from regard.training.logs.log import Log
from regard.training.nonfinite_steps import NonFinite
from regard.training.progress import Progress

__all__ = ["Outcome", "TrainSeed", "train_seeds"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of train_run().

    progress: the counters of the run. For a run of several seeds, those of the last seed that was trained.
    interrupted: the name of the signal that stopped training, or "".
    warning: a message if training.minutes was too short for this model and these data, otherwise "".
    failed: for a run of several seeds: the error message of each seed with a loss, gradient or weight that
        became NaN or infinite.
    """

    folder: Path
    progress: Progress
    interrupted: str = ""
    warning: str = ""
    failed: Mapping[int, str] = field(default_factory=dict)


TrainSeed = Callable[[PreparedRun, Path, FolderLock | None], Outcome]
"""Train one seed in its run folder, which is locked."""


def train_seeds(
    task: type[RunTask],
    run: PreparedRun,
    folder: Path,
    train: TrainSeed,
    *,
    console: Console | None = None,
    change: bool = False,
) -> Outcome:
    """Train the seeds of a run one after another. Each is an ordinary run in a folder of its own.

    A seed whose loss becomes NaN or infinite fails, and the next one is trained. At the end, the mean and the
    deviation of the scores are logged. When training is stopped, the seeds that have not begun are trained
    after the run is resumed.

    change: whether settings of a resumed run may have changed. If True, seeds that have failed are trained
        again.
    """
    write_data(folder, run.fingerprints)
    write_config_and_manifest(task, folder, run.settings.model_dump())
    if change:
        write_failures(folder, {})
    log, last, seeds = Log(folder / "log.jsonl", console=console), None, list(run.settings.seeds)
    log.rewind(0)  # each seed has a log of its own, which is continued
    with interruptible() as interrupt:
        for place, seed in enumerate(seeds):
            if interrupt or seed in failures_of(folder):
                continue
            log.event("seed", f"seed {seed} ({place + 1} of {len(seeds)})", seed=seed)
            try:
                last = _train_seed(task, run, folder, seed, train)
            except NonFinite as error:
                text = str(error).splitlines()[0]
                write_failures(folder, {**failures_of(folder), seed: (error.step, text)})
                log.event("failed", f"seed {seed} has failed: {text}", seed=seed, step=error.step)
            else:
                interrupt.cause = interrupt.cause or last.interrupted
    failed = {seed: text for seed, (_, text) in failures_of(folder).items()}
    facts = seed_facts_of(task, folder)
    if facts is not None and facts.scores:
        _log_scores(log, facts)
    log.event(
        *(("stopped", f"stopped by {interrupt.cause}") if interrupt else ("ended", "all seeds have ended"))
    )
    progress = Progress() if last is None else last.progress
    return Outcome(folder, progress, interrupt.cause, failed=failed)


def _train_seed(task: type[RunTask], run: PreparedRun, folder: Path, seed: int, train: TrainSeed) -> Outcome:
    """Create and lock the run folder of one seed, and train its model; see train_seeds()."""
    own = made_folder(seed_folder(folder, seed))
    with locked(own) as lock:
        copy_files(task, folder, own)
        values = {**run.settings.model_dump(), "seed": seed}
        del values["seeds"]
        settings = task.settings_type.model_validate(values)
        return train(changed(run, settings=settings), own, lock)


def _log_scores(log: Log, facts: SeedFacts) -> None:
    """Log the scores of the best checkpoint of each seed, with their mean and deviation."""
    log.event(
        "scores",
        f"scores of {count(len(facts.scores), 'seed')}",
        shown=scores_table(facts.scores),
        **written_summary(facts.summary),
        seeds={str(seed): scores for seed, scores in facts.scores.items()},
    )
