"""Errors of the command line's grammar, and what to write instead: names of other toolkits, similar names.

check_outputs() refuses to write an output file over an input file, before anything is read.
setting_option() translates the Python arguments that error messages recommend to options.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import stat
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.cli.printing import json_text
from regard.errors import ArgumentError, Setting, message, printable, shell_word, shown

OTHER_NAMES = {"csv": "tsv", "parquet": "jsonl", "valid-csv": "valid-tsv", "valid-parquet": "valid-jsonl"}
"""Second name of an option -> the name that the help lists. One option reads several formats of files."""

PEER_OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    # Options for data.
    ("--src", "--source-file", "--train-src", "--train-source", "--src-train"): ("--source", "FILES"),
    ("--tgt", "--trg", "--target-file", "--train-tgt", "--train-trg", "--train-target", "--tgt-train"): (
        "--target",
    ),
    ("--ref", "--refs", "--reference", "--references"): ("--target",),
    ("--hyp", "--hypothesis", "--hypotheses"): ("--translations",),
    ("--input", "--input-file", "--input-path"): ("FILES", "--source", "SENTENCE"),
    ("--train-file", "--train-data", "--trainpref", "--data", "--dataset"): ("--source", "--tsv"),
    ("--valid-src", "--validation-source", "--dev-src", "--dev-source"): ("--valid-source",),
    ("--valid-tgt", "--valid-trg", "--validation-target", "--dev-tgt", "--dev-target"): ("--valid-target",),
    ("--csv", "--tab"): ("--tsv",),
    ("--json", "--json-lines"): ("--jsonl",),
    ("--sentence", "--string", "--line", "--prompt", "--text", "--interactive"): ("--text", "--prompt"),
    ("--num-sentences", "--num-samples", "--number"): ("--count", "--sentences", "--pairs"),
    # Options for output.
    ("--save-dir", "--output-dir", "--out-dir", "--model-dir", "--save-model", "--save-path"): ("--output",),
    ("--output-file", "--output-path", "--results-path", "--dest", "--destdir", "--folder"): ("--output",),
    ("-o",): ("--output",),
    ("--overwrite-output-dir", "--force"): ("--overwrite",),
    ("--with-align", "--report-align", "--print-alignment"): ("--alignments FILE",),
    ("--attn-debug", "--plot", "--show-attention", "--save-attention"): ("--draw", "--output FILE.png"),
    # Options for the model and the run.
    ("--arch", "--architecture", "--model-name", "--model-type"): ("--model", "RUN"),
    ("--model",): ("--models", "RUN"),
    ("--run", "--path", "--model-path", "--model-name-or-path", "--load"): ("RUN",),
    ("--checkpoint-path", "--checkpoint-dir", "--ckpt", "--ckpt-path"): ("RUN", "--init-from"),
    ("--finetune-from-model", "--train-from", "--pretrained", "--load-model"): ("--init-from", "RUN"),
    ("--continue", "--resume-from-checkpoint", "--restore-file", "--reload"): ("--resume",),
    ("--config", "--config-file", "--cfg", "--yaml"): ("--recipe", "RUN"),
    ("--hidden-size", "--hidden-dim", "--d-model", "--embed-dim", "--embedding-dim", "--rnn-size"): (
        "--width",
        "--set model.width=INT",
    ),
    ("--vocab-size", "--src-vocab-size", "--tgt-vocab-size", "--nwordssrc", "--bpe-size"): (
        "--vocab-size",
        "--set data.source_vocab_size=INT and --set data.target_vocab_size=INT",
    ),
    (
        "--share-vocab",
        "--share-vocabulary",
        "--joint-vocab",
        "--joined-dictionary",
        "--share-all-embeddings",
    ): ("--set data.joint=true",),
    ("--layers", "--num-layers", "--encoder-layers", "--decoder-layers"): ("--set model.layers=INT",),
    ("--heads", "--num-heads", "--attention-heads"): ("--set model.heads=INT",),
    # Options for training.
    ("--lr", "--rate"): ("--learning-rate", "--set training.learning_rate=FLOAT"),
    ("--bs", "--bsz", "--batch-size", "--max-sentences", "--train-batch-size"): (
        "--batch-size",
        "--batch-tokens",
    ),
    ("--per-device-train-batch-size",): ("--batch-size", "--batch-tokens"),
    ("--max-tokens", "--tokens-per-batch"): (
        "--max-new-tokens",
        "--batch-tokens",
        "--set training.batch_tokens=INT",
    ),
    ("--max-epoch", "--max-epochs", "--num-epochs", "--num-train-epochs", "--n-epochs"): ("--epochs",),
    ("--max-update", "--max-updates", "--max-steps", "--train-steps", "--num-steps"): ("--steps",),
    ("--max-minutes", "--max-time", "--time"): ("--minutes",),
    ("--smoothing", "--label-smoothing-factor"): (
        "--label-smoothing",
        "--set training.label_smoothing=FLOAT",
    ),
    ("--warmup", "--warmup-steps", "--warmup-updates", "--num-warmup-steps"): (
        "--warmup-steps",
        "--set training.warmup_steps=INT",
    ),
    ("--weight-decay", "--wd"): ("--set training.weight_decay=FLOAT",),
    ("--clip-norm", "--max-grad-norm", "--grad-clip"): ("--set training.max_grad_norm=FLOAT",),
    ("--update-freq", "--accum-count", "--gradient-accumulation-steps"): (
        "--set training.accumulation_steps=INT",
    ),
    ("--eval-steps", "--eval-every", "--evaluate-every", "--valid-steps", "--validate-interval-updates"): (
        "--set training.evaluate_every=INT",
    ),
    ("--save-steps", "--save-every", "--save-interval", "--save-interval-updates"): (
        "--set training.save_every=INT",
    ),
    ("--logging-steps", "--log-interval", "--log-every", "--report-every"): ("--set training.log_every=INT",),
    ("--report-to", "--wandb-project", "--tensorboard-logdir"): ("--logger", "--tensorboard"),
    ("--optimizer", "--optim"): ("--set training.optimizer=NAME",),
    ("--ema", "--ema-decay"): ("--set training.ema=FLOAT",),
    ("--early-stopping", "--early-stopping-patience"): ("--patience", "--set training.patience=INT"),
    ("--fp16", "--bf16", "--amp", "--half", "--mixed-precision"): ("--precision bfloat16",),
    ("--fp32", "--no-amp"): ("--precision float32",),
    ("--random-seed", "--manual-seed"): ("--seed",),
    # Options for the device.
    ("--gpu", "--gpus", "--cuda", "--use-cuda", "--use-gpu", "--gpu-id"): ("--device cuda",),
    ("--cpu", "--no-cuda", "--use-cpu", "--no-gpu"): ("--device cpu",),
    ("--num-threads", "--cpu-threads", "--n-threads", "--workers", "--num-workers"): ("--threads",),
    # Options for decoding.
    ("--beam-size", "--beam", "--num-beams", "--beam-width", "--beams"): (
        "--beam-size",
        "--set evaluation.beam_size=INT",
    ),
    ("--nbest", "--num-return-sequences", "--num-hypotheses"): ("--n-best",),
    ("--lenpen", "--alpha", "--beam-alpha"): ("--length-penalty",),
    ("--do-sample", "--sampling", "--random-sampling"): ("--sample",),
    ("--topk", "--sampling-topk", "--random-sampling-topk"): ("--top-k",),
    ("--topp", "--sampling-topp", "--random-sampling-topp", "--nucleus"): ("--top-p",),
    ("--random-sampling-temp", "--sampling-temperature"): ("--temperature",),
    (
        "--length",
        "--max-len",
        "--max-len-b",
        "--max-length",
        "--max-new-tokens",
        "--max-target-length",
        "--max-output-length",
        "--n-predict",
        "--num-tokens",
    ): (
        "--max-length",
        "--max-new-tokens",
    ),
    ("--max-input-length", "--max-src-len", "--src-seq-length", "--max-source-positions"): (
        "--max-source-length",
        "--set data.max_length=INT",
    ),
}
"""Options of Hugging Face, fairseq, OpenNMT, JoeyNMT and Sockeye -> what to use instead in Regard.

If a user types an option on the left, the error message recommends the first name on the right that the
command has. A name in capitals, such as RUN, is a positional argument.
"""

TMX = "convert the TMX file to a TSV file, one pair in each line with a tab between the sides, and use --tsv"

ADVICE = {
    ("train", option): advice
    for advice, options in {
        "a run is evaluated after training: regard evaluate RUN FILE": ("--test-file", "--test"),
        "one GPU is --device cuda; for several: torchrun --nproc-per-node 2 -m regard train ...": (
            *("--world-size", "--distributed-world-size", "--gpu-ranks", "--num-gpus", "--n-gpu"),
            *("--nproc-per-node", "--num-processes", "--local-rank"),
        ),
    }.items()
    for option in options
} | {(command, "--tmx"): TMX for command in ("train", "check", "split")}
"""(command, option of another command or toolkit) -> what to do instead."""

FILE_ARGUMENTS = {"classify": ("--jsonl", "--tsv", "--test-file", "--train-file", "--file")}
"""Command -> options of other commands that this command does not have. For them, the error message
recommends the argument FILES."""

PEER_COMMANDS = {
    "convert": "export",
    "ct2-transformers-converter": "export",
    "decode": "translate",
    "download": "data",
    "eval": "evaluate",
    "fairseq-generate": "translate",
    "fairseq-interactive": "translate",
    "fairseq-score": "evaluate",
    "fairseq-train": "train",
    "finetune": "train",
    "fit": "train",
    "info": "show",
    "interactive": "translate",
    "onmt-train": "train",
    "onmt-translate": "translate",
    "plot": "view",
    "predict": "translate",
    "prepare": "data",
    "preprocess": "data",
    "test": "evaluate",
    "validate": "evaluate",
    "visualize": "view",
}
"""Command of another toolkit, with hyphens -> command of Regard to use instead."""

WITHOUT_COMMAND = dict.fromkeys(
    (
        *("build-vocab", "onmt-build-vocab", "learn-bpe", "apply-bpe", "subword-nmt", "spm-train"),
        *("fairseq-preprocess", "onmt-preprocess", "binarize", "tokenize"),
    ),
    "regard train builds the tokenizers and vocabularies itself: "
    "regard train --source FILE --target FILE --output RUN",
)
"""Command of another toolkit, with hyphens -> how to do it without such a command."""

MISSING = {
    ("train", "--output"): "--output runs/x writes a new run to the folder runs/x; "
    "regard train --output runs/x --resume continues a run",
    ("translate", "RUN"): 'regard translate RUN --text "...", where RUN is a folder that regard train wrote',
}
"""Hints for missing arguments and options. (command, name) -> hint."""

NUMBERS = {
    "less_than_equal": "at most {le}",
    "greater_than_equal": "at least {ge}",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
}
"""Type of an error of pydantic -> the numbers that an option accepts."""

SIMILAR = 3
"""Maximum number of similar options that an error lists."""

LONG_NAME = re.compile(r"-[A-Za-z][\w-]+")
"""A name of several letters after one hyphen, as the options of OpenNMT-py have it."""

FORMATS = {".tsv": "--tsv", ".csv": "--csv", ".jsonl": "--jsonl", ".json": "--jsonl", ".parquet": "--parquet"}
"""Ending of the name of a file -> the option for such files."""

SETTINGS = (".toml", ".yaml", ".yml")
"""Endings of the names of files of settings, in Regard (TOML) and in other toolkits (YAML)."""

ENCODING_COMMANDS = frozenset(
    {
        *("align", "ask", "classify", "compare", "data", "evaluate"),
        *("generate", "score", "train", "translate", "view"),
    }
)
"""The commands with the option --encoding."""

SECTIONS = {
    "build_model": "model",
    "data": "data",
    "evaluation": "evaluation",
    "model": "model",
    "training": "training",
}
"""Setting.owner -> the section of config.toml with the setting, which --set changes."""

OUTPUTS = ("--output", "--page", "--alignments", "--coco")
"""The options that name a file to write."""


def listed_name(name: str) -> str:
    """Return the name in the help of an option with two names. Other names are returned unchanged.

    name: the name without leading hyphens.

    >>> listed_name("csv"), listed_name("output")
    ('tsv', 'output')
    """
    return OTHER_NAMES.get(name, name)


def peer_answer(name: str, known: Collection[str]) -> str:
    """Return the option of Regard that replaces an option of another toolkit, such as fairseq; "" if unknown.

    name: the option of the other toolkit; underscores are read as hyphens.
    known: the options and arguments of the command.

    >>> peer_answer("--lr", ["--output", "--learning-rate"]), peer_answer("--beam_size", ["--beam-size"])
    ('--learning-rate', '--beam-size')
    """
    name = name.replace("_", "-")
    answers = next((answers for peers, answers in PEER_OPTIONS.items() if name in peers), ())
    return next((answer for answer in (name, *answers) if answer.split()[0] in known), "")


def similar_options(name: str, options: Iterable[str]) -> list[str]:
    """Return the options that are similar to an unknown option, at most SIMILAR, the best first.

    An option is similar in three cases: it begins with the unknown name; the unknown name begins with the
    option and a hyphen, such as --seed-value for --seed; or the two names differ by a few letters.

    >>> similar_options("--epoch", ["--epochs", "--steps"])
    ['--epochs']
    """
    options, word = list(options), name.lstrip("-").replace("_", "-")
    names = {option.lstrip("-"): option for option in options}
    related = [each for each in names if word.startswith(f"{each}-") or (word[1:] and each.startswith(word))]
    similar = difflib.get_close_matches(
        word, names, n=SIMILAR
    )  # compared without the leading --, which all names share
    return list(dict.fromkeys(names[each] for each in (*related, *similar)))[:SIMILAR]


def unknown_option(context: Any, typed: str) -> str:
    """Return the message for an unknown option of a command, with the option to use instead.

    context: the context of the command.
    typed: the option on the command line. A long name may have one hyphen, as in OpenNMT-py: -save_model.
    """
    parameters = context.command.get_params(context)
    arguments = [each.metavar or each.name for each in parameters if each.param_type_name == "argument"]
    optional = [each for each in parameters if each.param_type_name == "option"]
    options = [name for each in optional for name in (*each.opts, *each.secondary_opts)]
    call, problem = context.command_path, f"no such option {typed}"
    name = f"-{typed}" if len(typed) > 2 and not typed.startswith("--") else typed
    if advice := ADVICE.get((context.info_name or "", name.replace("_", "-"))):
        return message(call, problem, hint=advice)
    of_files = name in FILE_ARGUMENTS.get(context.info_name or "", ())
    if answer := "FILES" if of_files else peer_answer(name, [*options, *arguments]):
        if answer in arguments:
            return message(call, f"{problem}; use the argument {answer}: {call} {' '.join(arguments)}")
        return message(call, f"{problem}; use {answer}")
    if similar := similar_options(name, options):
        return message(call, f"{problem}; did you mean {' or '.join(similar)}?")
    return message(call, problem, hint=f"{call} --help lists the options")


def check_values(context: Any, arguments: Sequence[str]) -> None:
    """Raise ArgumentError if an option has no value, if a flag such as --resume has one, or if a long option
    has one hyphen, such as -model. (Typer would report an unknown option -m.)

    An option has no value if it is the last word, or if the next word is another option of the command: in
    `--source --target b.en`, --target is not the file of --source. --prompt=--target has the value --target.

    context: the context of the command.
    arguments: the words after the name of the command.
    """
    parameters = context.command.get_params(context)
    options = {name: each for each in parameters for name in (*each.opts, *each.secondary_opts)}
    normalize = context.token_normalize_func or str

    def option_of(word: str) -> Any:
        return options.get(word) or options.get(f"--{normalize(word[2:])}" if word.startswith("--") else word)

    words = iter(range(len(arguments)))
    for index in words:
        if (word := arguments[index]) == "--":
            return
        name, equals, value = word.partition("=")
        option = option_of(name) if name.startswith("-") else None
        if option is None and LONG_NAME.match(name):
            raise ArgumentError(unknown_option(context, name))
        if option is None or option.param_type_name != "option":
            continue
        if option.is_flag:
            if equals:
                raise _error(context, f"the option {name} takes no value", f"{name}, without ={value}")
        elif not equals:
            after = next(words, None)
            following = "" if after is None else arguments[after]
            if after is None or (following.startswith("--") and option_of(following) is not None):
                expected = f"{option.opts[0]} {option.metavar or 'VALUE'}"
                raise _error(context, f"the option {option.opts[0]} has no value", expected)


def check_order(context: Any, arguments: Sequence[str]) -> None:
    """Raise ArgumentError if the arguments RUN and FILES are swapped; the hint is the correct command.

    context: the context of the command, with the values of all parameters.
    arguments: the words after the name of the command.
    """
    run = context.params.get("run")
    if run is None or not os.path.isfile(run):
        return
    from regard.runs.run_folder import is_run  # imports pydantic

    folder = next((each for each in context.params.get("files") or () if is_run(Path(each))), None)
    if folder is None:
        return
    swapped = {str(run): folder, folder: str(run)}
    words = [swapped.get(os.path.normpath(each), swapped.get(each, each)) for each in arguments]
    hint = f"the run folder is first: {context.command_path} {' '.join(map(shell_word, words))}"
    raise ArgumentError(message(shown(str(run)), "this is a file, not a run folder", hint=hint))


def _error(context: Any, problem: str, expected: str) -> ArgumentError:
    hint = f"{context.command_path} --help lists the options"
    return ArgumentError(message(context.command_path, problem, expected=expected, hint=hint))


def file_option(name: str) -> str:
    """Return the option for files of sentence pairs with this ending; "" if there is none.

    >>> file_option("a.TSV.gz"), file_option("a.txt")
    ('--tsv', '')
    """
    option = FORMATS.get(Path(name.removesuffix(".gz")).suffix.lower(), "")
    return option and f"--{listed_name(option[2:])}"


def unexpected_arguments(context: Any, words: Sequence[str]) -> ArgumentError:
    """Return the error for words that are neither options nor arguments of the command.

    If the command has options for files, such as --source, the hint writes the command with them.
    """
    options = {name for each in context.command.get_params(context) for name in each.opts}
    call, first = context.command_path, printable(words[0])
    if not {"--source", "--target", "--tsv"} <= options:
        problem = f"unexpected argument{'s' * (len(words) > 1)} {printable(' '.join(words))}"
        hint = f"{call} --help lists the arguments and options"
        if {"--prompt", "--prompt-file"} <= options:
            option = "--prompt-file" if os.path.isfile(words[0]) else "--prompt"
            hint = f"{option} {shell_word(words[0])}"
        if {"--last", "--steps"} <= options:
            hint = f"{call} averages checkpoints of one run: --last INT, or --steps INT,INT,..."
        return ArgumentError(message(call, problem, hint=hint))
    for name in ("columns", "fields"):
        value = context.params.get(name)
        if value and len(words) == 1 and not Path(words[0]).suffix:
            names = shell_word(f"{value.rstrip(',')},{words[0]}")
            hint = f"separate the names by a comma, without a space: --{name} {names}"
            return ArgumentError(message(f"{call} {first}", "unexpected argument", hint=hint))
    suffix = Path(words[0].removesuffix(".gz")).suffix.lower()
    if "--recipe" in options and suffix in SETTINGS:
        hint = f"--recipe {shell_word(words[0])}"
        if suffix != ".toml":
            hint = "YAML is not read: write the settings to a TOML file, --recipe FILE.toml, or use options"
        problem = "a file of settings must follow an option"
        return ArgumentError(message(f"{call} {first}", problem, hint=hint))
    if suffix == ".tmx":
        return ArgumentError(message(f"{call} {first}", "TMX files cannot be read", hint=TMX))
    named = FORMATS.get(suffix)
    hint = f"{named} {shell_word(words[0])}" if named else "--source FILE --target FILE, or --tsv FILE"
    if len(words) == 2 and not named:
        hint = f"--source {shell_word(words[0])} --target {shell_word(words[1])}"
    problem = "a file name must follow an option that says what the file contains"
    return ArgumentError(message(f"{call} {first}", problem, hint=hint))


def check_outputs(context: Any) -> None:
    """Raise ArgumentError if an output file of a command is one of its input files, or another output file.

    Two names are the same file if they lead to the same file on the disk, also through links.

    context: the context of the command, with the values of all parameters.
    """
    outputs = dict[str, Path]()
    inputs = list[tuple[str, str]]()
    for parameter in context.command.params:
        value, option = context.params.get(str(parameter.name)), parameter.opts[0]
        if option in OUTPUTS and str(parameter.metavar).startswith("FILE"):
            if value is not None and str(value) != "-":
                outputs[option] = Path(value)
        elif parameter.metavar != "TEXT":
            values = value if isinstance(value, list | tuple) else [value]
            inputs += [(option, str(path)) for path in values if isinstance(path, str | Path)]
    written = dict[str, str]()
    for option, output in outputs.items():
        for other, path in inputs:
            source = f"{other} {shown(path)}" if other.startswith("-") else shown(path)
            check_apart(option, output, [path], source)
        if _is_standard_input(output):
            raise _overwritten(option, output, "standard input")
        if output.exists() and not output.is_file():  # a device such as /dev/null, or a pipe
            continue
        first = written.setdefault(os.path.realpath(output), option)
        if first != option:
            problem = f"{first} names the same file"
            raise ArgumentError(message(f"{option} {shown(output)}", problem, expected="two different files"))


def check_apart(option: str, output: Path, inputs: Iterable[str | Path], source: str = "") -> None:
    """Raise ArgumentError if an output file is one of the input files.

    option: the option with the output file, for the error message.
    source: the input file, for the error message; by default its name.
    """
    for path in inputs:
        # writing() writes to output.part first
        for written in (output, output.with_name(f"{output.name}.part") if output.name else output):
            if _same_file(written, path):
                raise _overwritten(option, output, source or shown(path))


def _overwritten(option: str, output: Path, source: str) -> ArgumentError:
    problem = f"the output would overwrite an input file: {source}"
    return ArgumentError(message(f"{option} {shown(output)}", problem, hint="choose another output file"))


def _same_file(output: Path, path: str | Path) -> bool:
    try:
        return os.path.isfile(path) and os.path.samefile(output, path)
    except (OSError, ValueError):  # there is no such file, or the text cannot be a file name
        return False


def _is_standard_input(output: Path) -> bool:
    """Return whether standard input is read from the file `output`, as in `regard ... < FILE`."""
    try:
        opened, found = os.fstat(sys.stdin.fileno()), os.stat(output)
    except (AttributeError, OSError, ValueError):  # no standard input, or no such file
        return False
    return stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, found)


def usage_error(error: Any) -> str:
    """Return the message for an error of Typer; "" if Typer has printed the help instead.

    error: the error. It has the context of the command, and the parameter or the unknown option.
    """
    kind, context, parameter = (
        type(error).__name__,
        getattr(error, "ctx", None),
        getattr(error, "param", None),
    )
    if kind == "NoArgsIsHelpError":
        return ""
    if kind == "NoSuchOption" and context is not None:
        return unknown_option(context, error.option_name)
    call = getattr(context, "command_path", "regard")
    help_hint = f"{call} --help lists the arguments and options"
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if kind == "MissingParameter" and parameter is not None:
        option = parameter.param_type_name == "option"
        name = parameter.opts[0] if option else parameter.metavar or parameter.name
        hint = MISSING.get((getattr(context, "info_name", None) or "", name)) or help_hint
        return message(call, f"the {'option' if option else 'argument'} {name} is missing", hint=hint)
    if parameter is not None and details and (expected := NUMBERS.get(details[0]["type"])):
        expected = expected.format(**details[0].get("ctx", {}))
        return message(f"{parameter.opts[0]} {details[0]['input']}", "invalid value", expected=expected)
    return message(call, error.format_message(), hint=help_hint)


def setting_option(setting: Setting, arguments: Sequence[str] | None = None) -> str:
    """Return the command-line option for a Python argument, or the whole command.

    The command is returned for values of --columns, --encoding and --fields.

    setting: the Python argument, which an error message recommends.
    arguments: the arguments of the command line. Default: those of this process.

    >>> setting_option(Setting("Choices", "invalid", "replace"))
    '--choose invalid=replace'
    >>> setting_option(Setting("read_pairs", "columns"))
    '--columns'
    >>> setting_option(Setting("build_model", "feeding", False))
    '--set model.feeding=false'
    >>> setting_option(Setting("training", "batch_size")), setting_option(Setting("training", "ema"))
    ('--batch-size', '--set training.ema=...')
    >>> setting_option(Setting("read_pairs", "encoding", "cp949"), ["train", "--source", "a.ko"])
    'regard train --source a.ko --encoding cp949'
    >>> setting_option(Setting("read_labelled", "format", "jsonl"))
    '--jsonl'
    >>> setting_option(Setting("read_captions", "missing", "skip"))
    '--set data.missing=skip of regard train'
    """
    if setting.name in ("columns", "encoding", "fields") and isinstance(setting.value, str) and setting.value:
        given = list(sys.argv[1:] if arguments is None else arguments)
        if setting.name == "encoding" and given[:1] and given[0] not in ENCODING_COMMANDS:
            return f"iconv -f {setting.value.upper()} -t UTF-8, to convert the file"
        option = f"--{setting.name}"
        return shlex.join(["regard", *_without(option, given), option, setting.value])
    if setting.name == "device":
        return f"--device {setting.value}"
    if setting.owner == "Choices":
        return f"--choose {setting.name}={setting.value}"
    if (setting.owner, setting.name) == ("read_labelled", "format"):
        return f"--{setting.value}"
    if (setting.owner, setting.name) == ("read_labelled", "ignore"):
        return "--set 'data.ignore=[\"\"]' of regard train"
    if (setting.owner, setting.name) == ("read_captions", "folder"):
        return "--images"
    if setting.owner in ("read_captions", "decode_files"):
        return f"--set data.{setting.name}={setting.value} of regard train"
    if isinstance(setting.value, Mapping):
        parts = (Setting(setting.owner, f"{setting.name}.{key}", each) for key, each in setting.value.items())
        return " ".join(map(setting_option, parts))
    if setting.owner in SECTIONS:
        name = f"{SECTIONS[setting.owner]}.{setting.name}"
        from regard.cli.train_settings import train_options  # imports pydantic and the settings of all tasks

        known = [key for key, each in train_options().items() if name in each.settings]
        if setting.value == "" and known:
            return f"--{known[0].replace('_', '-')}"
        value = setting.value if isinstance(setting.value, str) else json_text(setting.value)
        return f"--set {name}={value or '...'}"
    return f"--{setting.value}-{setting.name}" if setting.owner == "fetch" else f"--{setting.name}"


def _without(option: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line without an option and its value."""
    rest, skipped = [], False
    for each in arguments:
        if not skipped and each != option and not each.startswith(f"{option}="):
            rest.append(each)
        skipped = each == option and not skipped
    return rest
