"""Facts about a run of several seeds, for `regard show`: scores of each seed, their mean and deviation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import DataError, RegardError
from regard.evaluation.confidence import Interval
from regard.runs.run_facts import RunFacts, facts_of
from regard.runs.run_folder import is_run
from regard.runs.run_task import RunTask
from regard.runs.seed_folders import failures_of, seed_folder, seeds_of
from regard.runs.seed_scores import summarised, written_summary

__all__ = ["SeedFacts", "seed_facts_of"]


@dataclass(frozen=True)
class SeedFacts:
    """The facts about a run of several seeds, which `regard show` prints.

    runs: the facts about the run of each seed.
    failed: the error message of each seed whose training has failed.
    notes: which files could not be read, and why.
    """

    folder: Path
    seeds: list[int]
    runs: dict[int, RunFacts] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def scores(self) -> dict[int, dict[str, float]]:
        """The scores of the best checkpoint of each seed, such as {0: {"loss": 3.1, "bleu": 12.5}}.

        Seeds that have failed, or have not been evaluated yet, are left out.
        """
        best = {seed: run.best for seed, run in self.runs.items() if seed not in self.failed}
        return {
            seed: {name: value for name, value in each.items() if name != "step"}
            for seed, each in best.items()
            if each is not None
        }

    @property
    def summary(self) -> dict[str, Interval]:
        """Mean, deviation and confidence interval of each score over the seeds in `scores`."""
        return summarised(self.scores.values())

    @property
    def status(self) -> str:
        """How many seeds have finished training, and how many have failed: "3 of 5 seeds ended, 1 failed"."""
        going = [run.progress for seed, run in self.runs.items() if seed not in self.failed]
        ended = sum(bool(each and each.ended) for each in going)
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{ended} of {len(self.seeds)} seeds ended{failed}"

    def written(self) -> dict[str, Any]:
        """Return the facts about all seeds as a dict that can be written as JSON."""
        return {
            "folder": str(self.folder),
            "seeds": self.seeds,
            **written_summary(self.summary),
            "standing": self.status,
            "failed": {str(seed): text for seed, text in self.failed.items()},
            "notes": self.notes,
            "runs": {str(seed): run.written() for seed, run in self.runs.items()},
        }


def seed_facts_of(task: type[RunTask], folder: Path) -> SeedFacts | None:
    """Read the facts about a run of several seeds. The result for a run of one seed is None."""
    seeds = seeds_of(folder)
    if seeds is None:
        return None
    notes: list[str] = []
    failed: dict[int, str] = {}
    try:
        failed = {seed: text for seed, (_, text) in failures_of(folder).items()}
    except DataError as error:
        notes.append(str(error).splitlines()[0])
    runs: dict[int, RunFacts] = {}
    for seed in seeds:
        place = seed_folder(folder, seed)
        if not is_run(place):
            notes.append(f"seed {seed} has no run folder yet")
            continue
        try:
            runs[seed] = facts_of(task, place)
        except RegardError as error:
            notes.append(str(error).splitlines()[0])
    return SeedFacts(folder, seeds, runs, failed, notes)
