"""regard evaluate: evaluate a run of any task; for translation also a file of translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from regard.cli.decoding_options import task_options
from regard.cli.open_runs import encoding_of, set_threads, task_of_run
from regard.cli.options import (
    JSON,
    OF_RUN,
    RUN,
    command,
    given_parameters,
    options_of,
)
from regard.cli.printing import print_json, printable_console
from regard.cli.usage_errors import file_option
from regard.data.column_names import two_columns, two_names
from regard.data.line_io import say
from regard.data.pairs import PairStream
from regard.data.read_text import check_start
from regard.data.table_formats import file_start
from regard.errors import ArgumentError, DataError, message, shell_word, shown
from regard.runs.run_commands import ChosenRun, RunReport
from regard.runs.run_facts import SeedsReport, evaluate_seeds
from regard.runs.run_folder import config_of, is_run, seeds_of
from regard.runs.run_task import RunTask, task_name
from regard.tasks.file_checks import columns_of_header, same_texts
from regard.tasks.task_table import DEFAULT, find_task
from regard.training.command_options import option_parameters, several

OF_RUNS = (
    "beam_size",
    "length_penalty",
    "greedy",
    "max_source_length",
    "batch_tokens",
    "precision",
    "checkpoint",
    "task",
)
"""Parameters that load or run a model. They have no effect on a file of translations."""


@command(
    replace(RUN, default=None),
    several(
        "files",
        "Files to evaluate on. Translation: a .tsv, .csv, .jsonl, .json or .parquet file with pairs, "
        "or a source file and a file of references. Other tasks: files in the format of --test-file.",
        "FILES",
    ),
    *task_options("evaluate_options"),
    JSON,
    "task",
    *OF_RUN,
)
def evaluate(context: typer.Context, run: Path | None, files: list[str] | None, **options: Any) -> None:
    """Evaluate a trained run on files, or without files on its validation data (translation needs files).

    Translation: BLEU, chrF, TER and exact match, which is the percentage of translations that equal a
    reference. For a run, the perplexity of the references is printed as well, and the alignment error rate
    (AER) if gold alignments are known.

    Language models: perplexity per token and per word, bits per character, and the number of unknown tokens.

    Classification: accuracy, macro F1, the scores of each class and the confusion matrix.

    Captioning: CIDEr-D, BLEU-1 to BLEU-4 without brevity penalty, and BLEU of sacreBLEU. The built-in corpus
    has two more scores: the fraction of captions that are true, and how often the attention of a word points
    to the object that the word names.

    Answering: the error rate of each task, their mean, the accuracy over all questions, and the number of
    tasks with more than 5 % errors. --test-file and --jsonl name files of stories and questions.

    Algorithms: bits per sequence and wrong bits, at the training lengths and at longer lengths.

    A task of your own: the scores of its method evaluate() on the validation data.

    A run with several seeds (train --seeds): the scores of each seed, their mean and standard deviation.

    Examples:

    * `regard evaluate runs/x --source test.ko --target test.en`

    * `regard evaluate runs/x --source test.de --target test.en --lowercase --moses en --json`

    * `regard evaluate runs/x --split test --sentences 100 --faithfulness`

    * `regard evaluate runs/x test.tsv --columns ko,en`

    * `regard evaluate --translations output.en --target test.en`

    * `regard evaluate runs/language test.txt --stride 32`

    * `regard evaluate runs/classifier --test-file test.tsv --faithfulness`

    * `regard evaluate runs/captioner --test-file captions.tsv --images images --split test`

    * `regard evaluate runs/babi --test-file qa1_test.txt --faithfulness --page answers.html`

    * `regard evaluate runs/copy --lengths 20,60,120`

    * `regard evaluate runs/own --task my_package.my_task:MyTask`
    """
    if run is None:
        kind, hint = find_task(DEFAULT), "name the run: regard evaluate RUN"
    else:
        kind, hint = task_of_run(run, options["task"]), ""
        if options["test_file"] and "test_file" not in option_parameters(kind.evaluate_options):
            hint = f"name the files without an option: regard evaluate {shell_word(run)} FILES"
    values = options_of(context, kind, "evaluate_options", options, hint)
    of_runs = given_parameters(context, OF_RUNS) if run is None and options["translations"] else {}
    for option in of_runs.values():
        problem = "this option is for run folders, and cannot be used with --translations"
        raise ArgumentError(message(option, problem, hint=f"leave {option} out"))
    set_threads(options)
    chosen = None if run is None else ChosenRun(run, options["checkpoint"], options["device"])
    values = _with_files(kind, files or [], values)
    if run is not None:
        _check_data_of_run(run, values)
        if "encoding" in values:
            values["encoding"] = encoding_of(run, _files_of(values, TEST_FILES), values["encoding"])
        _report_training_files(run, values)
    seeds = None if chosen is None else seeds_of(chosen.folder)
    report: RunReport | SeedsReport
    if chosen is None or seeds is None:
        report = kind.evaluate_run(chosen, values)  # type: ignore[arg-type]  # only translation has no run
    else:
        report = evaluate_seeds(kind, chosen, seeds, values)
    if options["json"]:
        print_json(report.to_dict())
    else:
        printable_console().print(report)


def _with_files(task: type[RunTask], files: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, where files that are named without an option are the value of an option.

    task: the class of the task of the run.
    options: the values of the options of this task.
    """
    if not files:
        return options
    if runs := [file for file in files if is_run(Path(file))]:
        problem = f"{shown(runs[0])} is a run folder, and only one run can be evaluated"
        hint = f"to compare runs: regard compare RUN {' '.join(map(shell_word, runs))}"
        raise ArgumentError(message("regard evaluate", problem, hint=hint))
    known = [name for name in ("test_file", "tsv", "jsonl", "source", "target") if name in options]
    ways = {file_option(file).removeprefix("--") for file in files}
    has_columns = bool(options.get("columns") or options.get("fields"))
    used = [f"--{name.replace('_', '-')}" for name in known if options[name]]
    call = f"regard evaluate RUN {' '.join(map(shown, files))}"
    if used:
        expected = f"FILES or {used[0]}, but not both"
        raise ArgumentError(message(call, f"{used[0]} is used too", expected=expected))
    if len(ways) == 1 and ways <= {*known} and (has_columns or "test_file" not in known):
        return options | {ways.pop(): list(files)}
    if "test_file" in known:
        return options | {"test_file": list(files)}
    if "source" in known and len(files) == 2:
        return options | {"source": files[0], "target": [files[1]]}
    for file in files:
        check_start(shown(file), file_start(file), None)  # raises DataError, e.g. for Excel
    problem = f"a run of the task {task_name(task)} is not evaluated on such files"
    pairs = "a .tsv, .csv, .jsonl, .json or .parquet file, or a source file and a file of references"
    expected = pairs if known else "no FILES"
    raise ArgumentError(message(call, problem, expected=expected))


def _check_data_of_run(run: Path, options: dict[str, Any]) -> None:
    """Raise DataError if a run would be evaluated on its validation data, but these files do not exist.

    A folder that regard average wrote has only the names of the data files, without their folders.
    """
    sources = ("test_file", "tsv", "jsonl", "split", "lengths", "translations")
    if "test_file" not in options or any(options.get(name) for name in sources):
        return
    data = config_of(run).get("data", {})
    files = data.get("valid_file") or data.get("train_file") or []
    missing = [file for file in files if isinstance(file, str) and not Path(file).exists()]
    if missing:
        problem = "there is no such file, and it has the validation data of the run"
        hint = f"name files to evaluate on: regard evaluate {shell_word(run)} FILES"
        raise DataError(message(shown(missing[0]), problem, hint=hint))


FIRST, TRAINED, SHARE = 100, 10_000, 0.9
"""A test set is training data if SHARE of its FIRST pairs are among the first TRAINED training pairs."""

TEST_FILES = ("source", "target", "tsv", "jsonl", "test_file")
"""The options that name files to evaluate on."""


def _files_of(values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the file names in the values of some options or settings, each a name or a list of names."""
    several = [values.get(name) or [] for name in names]
    return [str(file) for each in several for file in ([each] if isinstance(each, str) else each)]


def _report_training_files(run: Path, options: dict[str, Any]) -> None:
    """Print a note for each file to evaluate on that is also a file of training data of the run."""
    if options.get("split"):  # a part of the file
        return
    data = config_of(run).get("data", {})
    encodings = options.get("encoding"), data.get("encoding")
    trained = _files_of(data, ("source", "tsv", "jsonl", "train_file"))
    files = _files_of(options, ("source", "tsv", "jsonl", "test_file"))
    same = [file for file in files if any(same_texts(file, each, encodings) for each in trained)]
    if not same and "target" in options:
        same = files if _has_training_pairs(data, options) else []
    for file in same:
        say(f"note: {shown(file)} is training data of this run: scores on new text will be lower")


def _has_training_pairs(data: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether most of the first pairs to evaluate on are among the first training pairs of a run.

    data: the section [data] of the config.toml of the run.
    """
    columns, fields = options.get("columns"), options.get("fields")
    if columns is None and options.get("tsv"):
        columns = columns_of_header(options["tsv"], data.get("columns"), options.get("encoding"))
    sides = {"source": _files_of(options, ("source",)), "target": _files_of(options, ("target",))[:1]}
    named = {"columns": two_columns(columns or "1,2")}
    named |= {"fields": two_names("--fields", fields or "source,target")}
    pairs = _first_pairs({**options, **sides, **named}, FIRST)
    trained = {*_first_pairs(data, TRAINED)} if pairs else set()
    return bool(pairs) and sum(pair in trained for pair in pairs) >= SHARE * len(pairs)


def _first_pairs(data: Mapping[str, Any], count: int) -> list[tuple[str, str]]:
    """Return the first sentence pairs of files, without spaces at both ends; [] if they cannot be read.

    data: files, columns, fields and encoding, as in the section [data] of a config.toml.
    """
    files = [_files_of(data, (name,)) for name in ("source", "target", "tsv", "jsonl")]
    if not all(Path(file).is_file() for each in files for file in each):
        return []  # for example standard input, which can be read only once
    source, target, tsv, jsonl = files
    columns, fields = data.get("columns") or (1, 2), data.get("fields") or ("source", "target")
    try:
        if source and target:
            pairs = PairStream.lines(source, target, data.get("encoding"))
        elif tsv or jsonl:
            pairs = PairStream.rows(tsv, jsonl, tuple(columns), tuple(fields), data.get("encoding"))
        else:
            return []
        return [(one.strip(), other.strip()) for one, other in islice(pairs, count)]
    except (DataError, ArgumentError):
        return []
