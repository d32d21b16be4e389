"""regard translate: translate text line by line."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from regard.cli.decoding_options import (
    BATCH_TOKENS,
    GREEDY,
    MAX_LENGTH,
    MAX_SOURCE_LENGTH,
    PENALTY,
    SAMPLING,
    SEARCHING,
    beam_size,
    n_best,
    search_of,
)
from regard.cli.open_runs import encoding_of, open_run, task_in_regard
from regard.cli.options import MACHINE, RUN, but, command
from regard.cli.predict import at_once, ranked_lines, result_files, write_results
from regard.data.line_io import given_lines, say, writing
from regard.decoding import Translation
from regard.decoding.search_options import describe_search
from regard.errors import ArgumentError, message
from regard.roles import CROSS
from regard.tasks.translation.settings import ENGINE
from regard.training.command_options import CommandOption, flag, several

AT_ONCE = 4096
"""Default number of input lines that are translated together. They are sorted by length for less padding."""


@command(
    RUN,
    several(
        "files",
        "Files with one sentence per line; - is standard input. Without FILES and --text, standard "
        "input is read.",
        "FILES",
    ),
    several("--text", "A sentence to translate.", "TEXT"),
    "encoding",
    "output",
    flag("--scores", "Print the log-probability of each translation before it, separated by a tab."),
    but(
        "json",
        "Print a JSON object for each line: source, text, tokens, log-probabilities, word alignment, "
        "notes, and the other translations of --n-best.",
    ),
    but("draw", "Draw the attention of each translation in the terminal."),
    but("page", "Also write an HTML page with the sentences and their alignments."),
    CommandOption(
        "--alignments",
        "Also write the word alignments to this file, one line per sentence: 0-2 links source word 0 "
        "to target word 2 (Pharaoh format).",
        "FILE",
        Path,
    ),
    flag("--probabilities", "With --alignments: also write the weight of each link, e.g. 0-2:0.830."),
    "unit",
    at_once(AT_ONCE, "translated"),
    beam_size(),
    PENALTY,
    n_best(
        "Number of translations to return per line, best first (n-best). Without --beam-size, the beam size "
        "is 5 or the value of --n-best, whichever is larger. With a smaller --beam-size, the beam is not "
        "widened: the list is filled with translations that ended in earlier steps."
    ),
    GREEDY,
    *SAMPLING,
    MAX_LENGTH,
    MAX_SOURCE_LENGTH,
    CommandOption(
        "--overlong",
        "How to translate lines longer than --max-source-length: split (sentence by sentence) or truncate "
        "(only the beginning).",
        "NAME",
        default="split",
        panel=SEARCHING,
    ),
    BATCH_TOKENS,
    "checkpoint",
    "device",
    CommandOption(
        "--precision",
        "Precision of the computation: float32, bfloat16, float16, int8 (CPU only), or auto (float16 on "
        "NVIDIA GPUs from Ampere on, otherwise float32). Half precision is faster on a GPU, int8 on a CPU, "
        "but rounding can change translations.",
        "NAME",
        default="auto",
        panel=MACHINE,
    ),
    ENGINE,
    "threads",
)
def translate(run: Path, files: list[str] | None, text: list[str] | None, **options: Any) -> None:
    """Translate text line by line: each line of input gives one line of output.

    Files are UTF-8 or --encoding, plain or gzip. A few invalid bytes are replaced; a text that is probably in
    another encoding is an error that names it. Warnings on standard error name invalid bytes, lines that are
    too long, translations that reached the maximum length, and unknown words.

    With --n-best N, each source line gives N output lines. An output line has five fields, separated by tabs:
    number of the source line (the first is 1), rank, score with length penalty, log-probability, text.
    Exception: a source line that is split because it is too long gives only one translation.

    Examples:

    * `regard translate runs/x --text "나는 고양이로소이다" --draw`

    * `regard translate runs/x < news.ko > news.en`

    * `regard translate runs/x news.ko --output news.en --alignments news.links --page news.html`

    * `regard translate runs/x news.ko --beam-size 10 --n-best 10 > news.10-best`

    * `regard translate runs/x news.ko --sample --temperature 0.7 --seed 3`

    * `regard translate runs/x news.ko --n-best 5 --json --output news.jsonl`
    """
    written = result_files(options, "line", undrawn=("--n-best", "--scores"))
    if options["json"] and options["scores"]:
        problem, hint = "cannot be combined with --scores", "the JSON objects contain the score"
        raise ArgumentError(message("--json", problem, hint=hint))
    search, alignments = search_of(options), options["alignments"]
    if options["probabilities"] and alignments is None:
        raise ArgumentError(message("--probabilities", "this option requires --alignments FILE"))
    task_in_regard(run, "translation")  # raises DataError if it is not a run folder
    options["encoding"] = encoding_of(run, files, options["encoding"])
    lines = given_lines(files, text, encoding=options["encoding"])
    if files:
        from regard.tasks.file_checks import check_text_files, report_tables

        check_text_files(files, options["encoding"])
        hint = "write the sentences to a file of their own, e.g. with cut -f1"
        report_tables(files, hint, options["encoding"])
    look = options["draw"] or options["json"] or written.enabled or alignments is not None
    translator = open_run(
        run,
        options,
        search=search,
        tokens_per_batch=options["batch_tokens"],
        longest=options["max_source_length"],
        overlong=options["overlong"],
        look=CROSS if look else None,
        unit=options["unit"],
        precision=options["precision"],
        engine=options["engine"],
    )
    if translator.quality:
        say(translator.quality)
    results = translator.stream(lines, options["at_once"] or (1 if lines.keyboard else AT_ONCE))
    with ExitStack() as stack:
        link = None if alignments is None else stack.enter_context(writing(alignments))

        def write_links(translation: Translation) -> None:
            if link is not None:
                if translation.alignment is None:
                    problem = "the model has no attention to its source, so there are no alignments"
                    hint = "use a model with attention: bahdanau, luong, lstmn or transformer"
                    raise ArgumentError(message("--alignments", problem, hint=hint))
                link(translation.alignment.written(probabilities=options["probabilities"]))

        def plain(translation: Translation, number: int) -> Iterable[str]:
            if options["n_best"] > 1:
                every = (translation, *translation.others)
                return ranked_lines(number, ((each.ranking, each.score, each.text) for each in every))
            return [f"{translation.score:.4f}\t" * options["scores"] + translation.text]

        title, about = f"Translations by {run.name or run}", describe_search(search)
        write_results(results, options, plain, written, title, about, readers=[lines], each=write_links)
