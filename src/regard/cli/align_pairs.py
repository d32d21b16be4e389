"""regard align without a run: learn word alignments from the sentence pairs themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.aligner import AlignedPair, Aligner
from regard.aligner.agreement import MEAN, THRESHOLD
from regard.aligner.units import UNITS, split_at_spaces, warn_if_swapped, warnings_about
from regard.cli.options import given_parameters
from regard.cli.pair_options import pair_stream
from regard.cli.predict import result_files, write_results
from regard.data.line_io import say, writing
from regard.errors import ArgumentError, UnknownName, message, shown
from regard.evaluation import Links, read_links
from regard.evaluation.alignment_error_rate import check_links, score_links

__all__ = ["OF_RUN_ONLY", "WITHOUT_RUN", "align_pairs", "check_options"]

OF_RUN_ONLY = (
    *("site", "head", "shifted", "backward", "choose", "unit", "max_source_length", "batch_tokens"),
    *("checkpoint", "device"),
)
"""The options of regard align that require a run."""

WITHOUT_RUN = ("model", "save_model", "lexicon", "tokenizer", "draw", "json")
"""The options of regard align that require pairs without a run."""


def check_options(context: Any, run: Path | None) -> None:
    """Raise ArgumentError if an option that is set needs a run and there is none, or the other way round."""
    names = OF_RUN_ONLY if run is None else WITHOUT_RUN
    for option in given_parameters(context, names).values():
        if run is None:
            problem, hint = "this option requires a run", "name a run folder: regard align RUN"
        else:
            problem = "this option is for alignments without a run"
            hint = "remove RUN: then, alignments are learned from the pairs themselves"
        raise ArgumentError(message(option, problem, hint=hint))


def align_pairs(options: dict[str, Any]) -> None:
    """Align sentence pairs without a run, and write their links.

    options: the values of all options of regard align.
    """
    units = options["tokenizer"]
    if units not in UNITS:
        raise UnknownName("tokenizer", units, UNITS)
    how, threshold = options["symmetrise"] or MEAN, options["threshold"]
    if how != MEAN and threshold is not None:
        expected = f"--threshold with --symmetrise {MEAN}"
        raise ArgumentError(message("--threshold", f"it is not used with {how}", expected=expected))
    threshold = threshold or THRESHOLD
    pairs = pair_stream(options, "regard align", None)
    files = result_files(options, "line")
    gold = None
    if options["gold_alignments"] is not None:
        gold = read_links(options["gold_alignments"], options["base"])
    aligner = Aligner() if options["model"] is None else Aligner.load(options["model"])
    if options["threads"] is not None:
        import torch

        torch.set_num_threads(options["threads"])
    split = UNITS[units]
    links, sizes = list[Links](), list[tuple[int, int]]()

    def plain(pair: AlignedPair, number: int) -> Iterator[str]:
        yield pair.written(how, threshold, options["probabilities"])

    def collect(pair: AlignedPair) -> None:
        if gold is not None:
            links.append(Links(frozenset((s, t) for s, t, _ in pair.links(how, threshold))))
            sizes.append((len(pair.source_words), len(pair.target_words)))

    checked = warnings_about(pairs, options["model"] is None and split is split_at_spaces, say)
    if options["model"] is not None:
        known = frozenset(aligner.source.forms), frozenset(aligner.target.forms)
        checked = warn_if_swapped(checked, known, split, say)
    results = aligner.align(checked, split, split)
    write_results(results, options, plain, files, "Word alignments", readers=[pairs], each=collect)
    if options["lexicon"] is not None:
        with writing(options["lexicon"]) as write:
            for source, target, there, back, count in aligner.lexicon():
                write(f"{source}\t{target}\t{there:.4f}\t{back:.4f}\t{count:.2f}")
        say(f"Wrote {shown(options['lexicon'])}")
    if options["save_model"] is not None:
        aligner.save(options["save_model"])
        say(f"Wrote {shown(options['save_model'])}: {aligner!r}")
    if gold is not None:
        check_links(gold, sizes, str(options["gold_alignments"]))
        say(str(score_links(links, gold)))
