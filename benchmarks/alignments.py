"""Benchmark of word alignment: runs of one direction, of both directions combined, and eflomal.

python -m benchmarks.alignments --set korean --runs runs/ko-en:runs/en-ko
python -m benchmarks.alignments --set deen --runs runs/de-en:runs/en-de --tokenise \\
    --source test.de.gz --target test.en.gz --gold de-en.wa.gz \\
    --corpus Tatoeba --note "Europarl, of which the training text has nothing."

Each call measures one set and adds it to today's table. The layer, head and step that alignments are read
from are selected on some pairs, by gold links and by agreement, and evaluated on the other pairs. Run folders
are not changed. In the table, a run is named by its folder, and also by its model if the folder name does not
contain it. eflomal is measured if it is installed; it gets the training pairs of the first run plus the pairs
to align.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, environment
from benchmarks.words import Words
from regard.data import korean_english
from regard.data.read_text import read_lines
from regard.decoding import Choice, choices
from regard.evaluation import AlignmentScore, Links, read_links, score_links, symmetrise
from regard.evaluation.alignment_error_rate import check_links
from regard.tasks.translation import TranslationRun, load_translator
from regard.tasks.translation.alignment import choose_by_agreement, choose_by_links
from regard.tasks.translation.data import read_split

__all__ = ["Direction", "Pairs", "Row", "diagonal", "main", "measured", "table"]

SYMMETRISED = ("intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
EFLOMAL_RUNS = 3
ABOUT = """\
Alignment error rate (Och and Ney 2003; lower is better) of trained runs on reference translations. The site,
head and step that alignments are read from are selected on other pairs than those evaluated: by gold links,
or, without links, by the agreement of both directions. eflomal, a statistical aligner, gets the training
pairs of the first run plus the pairs to align; it is the median of three runs. The diagonal baseline links
each target word to the source word at the same relative position. Runs called guided were trained with the
gold links of their training pairs, which the other aligners did not get.
"""


@dataclass(frozen=True)
class Pairs:
    """Sentences of both sides, and their gold links."""

    sources: list[str]
    targets: list[str]
    gold: list[Links]

    def __getitem__(self, part: slice) -> Pairs:
        return Pairs(self.sources[part], self.targets[part], self.gold[part])

    def turned(self) -> Pairs:
        """Return the pairs of the other direction: sources and targets swapped."""
        return Pairs(self.targets, self.sources, [each.turned() for each in self.gold])


@dataclass(frozen=True)
class Row:
    """One row of the table: the aligner, where its alignment was read, and its scores in per cent."""

    aligner: str
    read: str
    error_rate: float
    precision: float
    recall: float
    links: int

    @classmethod
    def of(cls, aligner: str, read: object, score: AlignmentScore) -> Row:
        """Return a row with rounded scores."""
        rates = [round(100 * each, 2) for each in (score.error_rate, score.precision, score.recall)]
        return cls(aligner, str(read), rates[0], rates[1], rates[2], score.proposed)


def built_in(chosen_by: int, judged_by: int) -> tuple[Pairs, Pairs]:
    """Return pairs of the built-in corpus for selection and for evaluation."""
    found = []
    for split, count in (("valid", chosen_by), ("test", judged_by)):
        some = list(korean_english(split, count))
        gold = [Links(each.sure, each.possible) for each in some]
        found.append(Pairs([each.source for each in some], [each.target for each in some], gold))
    return found[0], found[1]


def from_files(source: str, target: str, gold: str, base: int, chosen_by: int) -> tuple[Pairs, Pairs]:
    """Read pairs from files: the first `chosen_by` for selection, the others for evaluation."""
    whole = Pairs(list(read_lines(source)), list(read_lines(target)), read_links(gold, base))
    lengths = [(len(a.split()), len(b.split())) for a, b in zip(whole.sources, whole.targets, strict=True)]
    check_links(whole.gold, lengths, gold)
    return whole[:chosen_by], whole[chosen_by:]


def named(run: TranslationRun) -> str:
    """Return the name of a run in the table, independent of the path of its folder."""
    folder, model = run.folder.name, run.settings.model.name
    return folder if model in folder else f"{model} {folder}"


class Direction:
    """One run with its attention on the evaluation pairs, and the places (Choice) to read alignments from."""

    def __init__(self, run: TranslationRun, few: Pairs, many: Pairs):
        self.name, self.run, self.gold = named(run), run, many.gold
        self.scored = run.score(many.sources, many.targets)
        first = choices(self.scored[0].attention)[0]  # all sites together, or the only one
        usual = first if run.alignment == Choice() else run.alignment
        ranked = [choice for choice, _ in choose_by_links(run, few.sources, few.targets, few.gold)]
        self.reasons: dict[Choice, list[str]] = {}
        self.add(usual, "by default")
        self.best = ranked[0]
        self.add(self.best, "by links")
        other = next(each for each in ranked if each.shifted != ranked[0].shifted)
        self.add(other, "by links, the best of the other step")

    def add(self, choice: Choice, reason: str) -> None:
        """Add a place to read alignments from, and why."""
        self.reasons.setdefault(choice, []).append(reason)

    def links(self, choice: Choice) -> list[Links]:
        """Return the links of the evaluation pairs, read at this place."""
        read = (each.align(choice.site, choice.head, choice.shifted) for each in self.scored)
        return [Links(frozenset(each.links)) for each in read]

    def rows(self) -> list[Row]:
        """Return one row for each place."""
        return [
            Row.of(self.name, f"{choice} ({', '.join(why)})", score_links(self.links(choice), self.gold))
            for choice, why in self.reasons.items()
        ]


def measured(forward: TranslationRun, backward: TranslationRun | None, few: Pairs, many: Pairs) -> list[Row]:
    """Return the rows of a run, and those of both directions if there is a backward run."""
    ours = Direction(forward, few, many)
    if backward is None:
        return ours.rows()
    theirs = Direction(backward, few.turned(), many.turned())
    here, there, agreed = choose_by_agreement(forward, backward, few.sources, few.targets)[0]
    for side, choice in ((ours, here), (theirs, there)):
        side.add(choice, f"by agreement, F1 {100 * agreed:.1f}")
    rows = []
    for reason, one, other in (("by agreement", here, there), ("by links", ours.best, theirs.best)):
        found = list(zip(ours.links(one), (each.turned() for each in theirs.links(other)), strict=True))
        for how in SYMMETRISED if reason == "by agreement" else SYMMETRISED[-1:]:
            joined = [symmetrise(a, b, how) for a, b in found]
            both = f"{ours.name} and {theirs.name}"
            rows.append(Row.of(both, f"{how} ({reason})", score_links(joined, many.gold)))
    return [*ours.rows(), *theirs.rows(), *rows]


def diagonal(many: Pairs) -> Row:
    """Return the diagonal baseline: links between words at the same relative position."""
    links = []
    for source, target in zip(many.sources, many.targets, strict=True):
        there, here = len(source.split()), len(target.split())
        links.append(Links(frozenset((int((word + 0.5) * there / here), word) for word in range(here))))
    return Row.of("the diagonal", "nothing is read", score_links(links, many.gold))


def eflomal_rows(trained: Sequence[tuple[str, str]], many: Pairs, words: Words) -> list[Row]:
    """Return the rows of eflomal, trained on the training pairs and the pairs to align.

    eflomal samples at random, so each row is the median of EFLOMAL_RUNS runs.
    """
    try:
        from eflomal import Aligner  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("eflomal is not installed and is left out; to include it: pip install eflomal")
        return []
    sides = [
        [" ".join(each) for each in (*(words.of(pair[side]) for pair in trained), *map(words.given, lines))]
        for side, lines in enumerate((many.sources, many.targets))
    ]
    found: dict[str, list[AlignmentScore]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("forward", "backward")]
        for _ in range(EFLOMAL_RUNS):
            Aligner().align(*sides, *paths)
            there, back = (read_links(path)[-len(many.gold) :] for path in paths)
            both = {"one direction": there, "the other": back}
            for how in SYMMETRISED:
                both[how] = [symmetrise(a, b, how) for a, b in zip(there, back, strict=True)]
            for how, links in both.items():
                found.setdefault(how, []).append(score_links(links, many.gold))
    return [
        Row.of("eflomal", how, sorted(scores, key=lambda score: score.error_rate)[EFLOMAL_RUNS // 2])
        for how, scores in found.items()
    ]


def table(sets: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the Markdown page with all sets."""
    yield from ABOUT.splitlines()
    for name, each in sets.items():
        yield f"\n## {name}\n"
        counts = [f"{each[use]:,}" for use in ("judged", "chosen", "trained")]
        corpus = f" of {each['corpus']}" if each["corpus"] else ""
        corpus += f" (version {each['grammar']} of its grammar)" if "grammar" in each else ""
        yield "{} evaluation pairs, {} other pairs for selection; {} training pairs{}.".format(
            *counts, corpus
        )
        written = "lowercased" if each["lowercase"] else "cased"
        shares = "; ".join(
            "of the {}, {:.1f} % of all words and {:.1f} % of the distinct words".format(
                side, *shares.values()
            )
            for side, shares in each["unknown"].items()
        )
        yield f"Words that do not occur in the training pairs, {written}: {shares}."
        yield f"{each['note']}\n" if each["note"] else ""
        yield "| aligner | read | error rate | precision | recall | links |"
        yield "| --- | --- | ---: | ---: | ---: | ---: |"
        for row in each["rows"]:
            rates = " | ".join(f"{row[rate]:.1f}" for rate in ("error_rate", "precision", "recall"))
            yield f"| {row['aligner']} | {row['read']} | {rates} | {row['links']:,} |"
        yield f"\nMeasured on: {', '.join(f'{key} {value}' for key, value in each['environment'].items())}."


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alignments", description=main.__doc__)
    parser.add_argument(
        "--set", required=True, help="name of the set in the table; korean is the built-in corpus"
    )
    parser.add_argument(
        "--runs", nargs="+", required=True, help="RUN, or RUN:BACKWARD with the run of the other direction"
    )
    parser.add_argument("--source"), parser.add_argument("--target"), parser.add_argument("--gold")
    parser.add_argument("--base", type=int, default=0, help="number of the first word in --gold, 0 or 1")
    parser.add_argument(
        "--choose", type=int, default=None, help="number of pairs for selection (default: a fifth)"
    )
    parser.add_argument(
        "--sentences", type=int, default=500, help="evaluation pairs of the built-in corpus (default: 500)"
    )
    parser.add_argument(
        "--tokenise", action="store_true", help="separate punctuation from words in the training text"
    )
    parser.add_argument("--corpus", default="", help="name of the training corpus, for the table")
    parser.add_argument("--note", default="", help="remark about the set, for the table")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-write", action="store_true", help="print the table without writing files")
    return parser.parse_args()


def main() -> None:
    """Measure the alignments of runs on one set, and add it to today's table in benchmarks/results."""
    arguments = parsed()
    if arguments.set == "korean":
        few, many = built_in(arguments.choose or 200, arguments.sentences)
    else:
        count = arguments.choose or len(list(read_lines(arguments.gold))) // 5
        few, many = from_files(arguments.source, arguments.target, arguments.gold, arguments.base, count)
    rows: list[Row] = []
    runs = [each.partition(":")[::2] for each in arguments.runs]
    loaded = [
        [load_translator(each, device=arguments.device, precision="float32") for each in some if each]
        for some in runs
    ]
    for some in loaded:
        found = measured(some[0], some[1] if len(some) > 1 else None, few, many)
        print(*found, sep="\n", flush=True)
        rows += found
    data = loaded[0][0].settings.data
    trained = [(pair.source, pair.target) for pair in read_split(data).train]
    words = Words(arguments.tokenise, data.lowercase)
    rows += [*eflomal_rows(trained, many, words), diagonal(many)]
    unknown = {
        "source": asdict(words.unknown(many.sources, (pair[0] for pair in trained))),
        "target": asdict(words.unknown(many.targets, (pair[1] for pair in trained))),
    }
    write(
        arguments.set,
        {
            "judged": len(many.gold),
            "chosen": len(few.gold),
            "trained": len(trained),
            "corpus": arguments.corpus,
            "note": arguments.note,
            "lowercase": data.lowercase,
            "unknown": unknown,
            "rows": [asdict(row) for row in rows],
            "environment": environment(),
        },
        printed_only=arguments.no_write,
    )


def write(name: str, found: dict[str, Any], printed_only: bool) -> None:
    """Add a set to today's table."""
    stem = RESULTS / f"{datetime.date.today():%Y-%m-%d}-alignments"
    path = stem.with_suffix(".json")
    sets = json.loads(path.read_text()) if path.exists() else {}
    sets[name] = found
    text = "\n".join(table({name: found} if printed_only else sets)) + "\n"
    print("\n" + text)
    if not printed_only:
        path.write_text(json.dumps(sets, indent=2, ensure_ascii=False) + "\n")
        stem.with_suffix(".md").write_text(text)
        print(f"Wrote {stem.name}.json and .md")


if __name__ == "__main__":
    main()
