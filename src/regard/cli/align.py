"""regard align: print word alignments, learned from sentence pairs alone, or from the attention of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from regard.aligner.agreement import MEAN, METHODS, THRESHOLD
from regard.cli.align_pairs import align_pairs, check_options
from regard.cli.decoding_options import BATCH_TOKENS, MAX_SOURCE_LENGTH
from regard.cli.open_runs import open_run
from regard.cli.options import OF_RUN, PAIR_LINES, RUN, but, command, finite
from regard.cli.pair_options import pair_stream
from regard.data.line_io import Notes, say, tell, writing
from regard.data.pairs import PairStream, in_batches
from regard.decoding import Translator
from regard.decoding.unknown_words import UnknownWords
from regard.decoding.word_alignment import pharaoh
from regard.errors import ArgumentError, UnknownName, message
from regard.evaluation import SYMMETRISATIONS, read_links
from regard.evaluation.alignment_error_rate import check_links, score_links
from regard.roles import CROSS
from regard.tasks.picture_outputs import ResultFiles, check_output_ending
from regard.tasks.translation.alignment import aligned_at, join_directions, search_alignments
from regard.training.command_options import CommandOption, flag, integer, number

AT_ONCE = 1024
"""Number of sentence pairs that are aligned at once. It is limited because their attention is in memory."""

SYMMETRISE = "grow-diag-final-and"

AGREEMENT = "agreement"
"""The value of --choose that chooses the alignments that agree best with the --backward run."""

LEARNED = "Alignments without a run"
COMPARED, WHERE, BOTH = "Gold alignments", "Attention weights to align with", "Two directions"


@command(
    replace(
        RUN,
        help="Run folder: align by its attention. Without RUN, alignments are learned from the pairs.",
        default=None,
    ),
    *PAIR_LINES,
    "output",
    CommandOption(
        "--model",
        "Aligner file, written by --save-model: continue with what it has learned from other pairs.",
        "FILE",
        Path,
        panel=LEARNED,
    ),
    CommandOption(
        "--save-model",
        "Write the aligner to this file, for --model.",
        "FILE.rgd",
        Path,
        panel=LEARNED,
    ),
    CommandOption(
        "--lexicon",
        "Write a dictionary to this file: source word, target word, both probabilities and count.",
        "FILE",
        Path,
        panel=LEARNED,
    ),
    CommandOption(
        "--tokenizer",
        "Unit to align: word (split at spaces), character (Chinese and Japanese) or morpheme (Korean).",
        "NAME",
        default="word",
        panel=LEARNED,
    ),
    but("draw", "Draw the alignments in the terminal.", panel=LEARNED),
    but("json", "Print a JSON object for each pair: words, links, probabilities, agreement.", panel=LEARNED),
    CommandOption(
        "--gold-alignments",
        "Compare the alignments with the gold alignments in this file. Line N has the links of pair N: "
        "0-2 is a sure link of source word 0 and target word 2, 0p2 or 0?2 is a possible link.",
        "FILE",
        Path,
        panel=COMPARED,
    ),
    integer(
        "--base",
        "Number of the first word in the gold alignments of --gold-alignments or --choose: 0 or 1.",
        0,
        1,
        default=0,
        panel=COMPARED,
    ),
    CommandOption(
        "--site",
        "Attention layers (sites): a role, e.g. cross, or a name, e.g. decoder.5.cross (* matches any "
        "text). Several sites are averaged.",
        "NAME",
        shown_default="the site saved by --choose; else the site trained with --guided; else all sites",
        panel=WHERE,
    ),
    but("head", shown_default="the head saved by --choose; else the mean of all heads", panel=WHERE),
    CommandOption(
        "--shifted/--not-shifted",
        "Which attention weights align a target word: with --not-shifted those of the decoder step that "
        "predicts the word, with --shifted those of the next step, which gets the word as input.",
        kind=bool,
        shown_default="the choice that --choose saved in the run; --not-shifted if nothing is saved",
        panel=WHERE,
    ),
    CommandOption(
        "--backward",
        "Run that translates in the opposite direction. The alignments of both runs are combined.",
        "RUN",
        Path,
        panel=BOTH,
    ),
    CommandOption(
        "--symmetrise",
        f"How to combine the alignments of both directions: {', '.join(METHODS)}. With a run, it "
        f"requires --backward; {MEAN} requires pairs without a run.",
        "NAME",
        given=True,
        shown_default=f"{SYMMETRISE} with runs, {MEAN} without",
        panel=BOTH,
    ),
    CommandOption(
        "--choose",
        "Try every site and head, with and without --shifted, and save the best choice in the run. With "
        "FILE, the best choice is the one with the lowest AER on the gold alignments in this file. With "
        f"{AGREEMENT}, it is the one whose alignments agree best with those of --backward.",
        f"FILE|{AGREEMENT}",
        panel=WHERE,
    ),
    flag("--probabilities", "Also write the weight of each link, e.g. 0-2:0.830."),
    number(
        "--threshold",
        "Write all links with at least this weight.",
        0,
        1,
        shown_default=f"with a run, one link per target word: the largest weight; without, {THRESHOLD}",
        check=finite,
    ),
    "unit",
    but("page", "Also write an HTML page with the sentences and their alignments."),
    MAX_SOURCE_LENGTH,
    BATCH_TOKENS,
    *OF_RUN,
)
def align(context: typer.Context, run: Path | None, **options: Any) -> None:
    """Print word alignments: learned from sentence pairs alone, or from the attention of a run.

    Without RUN, a statistical aligner learns from the pairs which words translate each other. It needs no
    pretrained model. A link is written if its mean probability of both directions is at least --threshold.

    With RUN, each target word is linked to the source word that it attends to most.

    Each sentence pair gives one line in Pharaoh format: 0-2 links source word 0 to target word 2. Runs with a
    character tokenizer align characters, including spaces; runs with a morpheme tokenizer align Korean
    morphemes; --unit word aligns words.

    --gold-alignments prints precision, recall and alignment error rate (AER) to standard error. With this
    option, or with --choose FILE, all runs align words, unless --unit is character or morpheme.

    --choose writes no alignments. It tries the attention weights of every attention layer (site), head and
    decoder step (see --shifted). It prints the choices that align best, and saves the first one in the file
    alignment.json of the run, for later commands.

    Examples:

    * `regard align --source corpus.ko --target corpus.en --save-model ko-en.rgd > corpus.links`

    * `regard align --model ko-en.rgd --source test.ko --target test.en --page test.html > test.links`

    * `regard align runs/x --source test.ko --target test.en > test.links`

    * `regard align runs/x --source test.ko --target test.en --gold-alignments test.links`

    * `regard align runs/x --tsv pairs.tsv --columns ko,en > pairs.links`

    * `regard align runs/x --source a.ko --target a.en --site "decoder.5.cross" --head 3 --page a.html`

    * `regard align runs/x --source dev.ko --target dev.en --choose dev.links`

    * `regard align runs/x --backward runs/y --source dev.ko --target dev.en --choose agreement`

    * `regard align runs/x --backward runs/y --source a.ko --target a.en --symmetrise grow-diag-final-and`
    """
    check_options(context, run)
    if run is None:
        if options["symmetrise"] not in (None, *METHODS):
            raise UnknownName("symmetrisation", options["symmetrise"], METHODS)
        align_pairs(options)
        return
    _check(options)
    check_output_ending(options["output"], page=True)
    pairs = pair_stream(options, "regard align", run)
    page, choose, backward = ResultFiles("line", options["page"]), options["choose"], options["backward"]
    gold = None
    if options["gold_alignments"] is not None:
        gold = read_links(options["gold_alignments"], options["base"])

    def load(folder: Path) -> Any:
        by_words = options["unit"] == "auto" and (gold is not None or choose not in (None, AGREEMENT))
        more = {"tokens_per_batch": options["batch_tokens"], "longest": options["max_source_length"]}
        return open_run(folder, options, look=CROSS, unit="word" if by_words else options["unit"], **more)

    translator, other = load(run), None if backward is None else load(backward)
    if choose is not None:
        known = None if choose == AGREEMENT else read_links(choose, options["base"])
        for line in search_alignments(translator, other, known, choose, pairs):
            typer.echo(line)
        return
    links, sizes = write_links(translator, other, options, pairs, page)
    page.save(f"Alignments by {run.name or run}")
    if gold is not None:
        name = str(options["gold_alignments"])
        check_links(gold, sizes, name)
        say(str(score_links(links, gold)))


def _check(options: Mapping[str, Any]) -> None:
    """Raise ArgumentError if options cannot be combined, or if an option needs --backward."""
    choose, backward, symmetrise = options["choose"], options["backward"], options["symmetrise"]
    if symmetrise is not None and symmetrise not in SYMMETRISATIONS:
        raise UnknownName("symmetrisation", symmetrise, SYMMETRISATIONS)
    if backward is None and (symmetrise is not None or choose == AGREEMENT):
        option = "--choose agreement" if symmetrise is None else "--symmetrise"
        problem, expected = "a second run is required", "--backward RUN, a run of the opposite direction"
        raise ArgumentError(message(option, problem, expected=expected))
    if choose is None:
        return
    values = (options[name] for name in ("site", "head", "shifted", "symmetrise", "threshold"))
    if any(each is not None for each in values) or options["probabilities"]:
        problem = "--choose tries all sites, heads and steps, and writes no alignments"
        hint = "use the other options in a second command, without --choose"
        raise ArgumentError(message("--choose", problem, hint=hint))
    if choose != AGREEMENT and backward is not None:
        problem = "with a file of gold alignments, --choose uses one run only"
        raise ArgumentError(message("--choose", problem, hint="remove --backward"))


def write_links(
    translator: Translator,
    other: Translator | None,
    options: Mapping[str, Any],
    pairs: PairStream,
    page: ResultFiles,
) -> tuple[list[tuple[tuple[int, int], ...]], list[tuple[int, int]]]:
    """Align sentence pairs in batches, and write the links of each pair as one line in Pharaoh format.

    Return the links of each pair, as (source word, target word), and its numbers of source words and of
    target words (or characters).

    other: the run of the opposite direction, for --backward; None without it.
    options: the values of all options of the command.
    pairs: the sentence pairs.
    page: the HTML page of --page, to which the pairs are added.
    """
    notes, unknown = Notes(), UnknownWords()
    every, sizes = list[tuple[tuple[int, int], ...]](), list[tuple[int, int]]()
    where, threshold = [options[name] for name in ("site", "head", "shifted")], options["threshold"]
    with writing(options["output"]) as write:
        for before, after in in_batches(pairs, AT_ONCE):
            reverse = [None] * len(after) if other is None else map(aligned_at, other.score(after, before))
            for ours, theirs in zip(translator.score(before, after), reverse, strict=True):
                line = pairs.numbers.popleft()
                notes.add(line, ours.notes)
                unknown.add(line, ours)
                chosen = aligned_at(ours, *where)
                if theirs is None:
                    links = chosen.align().weighted(threshold)
                else:
                    how = options["symmetrise"] or SYMMETRISE
                    links = join_directions(chosen.align(), theirs.align(), how, threshold)
                write(pharaoh(links, options["probabilities"]))
                page.add(chosen)
                every.append(tuple((source, target) for source, target, _ in links))
                sizes.append((len(ours.source_units), len(ours.target_units)))
    tell(notes, pairs)
    unknown.say()
    return every, sizes
