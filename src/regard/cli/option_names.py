"""Names of options and commands in other toolkits, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

from regard.errors import message

__all__ = [
    "OTHER_NAMES",
    "PEER_COMMANDS",
    "PEER_OPTIONS",
    "listed_name",
    "missing_parameter",
    "no_such_option",
    "peer_answer",
    "similar_options",
]

OTHER_NAMES = {"csv": "tsv", "parquet": "jsonl", "valid-csv": "valid-tsv", "valid-parquet": "valid-jsonl"}
"""Second name of an option -> the name that the help lists. One option reads several formats of files."""

PEER_OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    # Options for data.
    ("--src", "--source-file", "--train-src", "--train-source"): ("--source", "FILES"),
    ("--tgt", "--trg", "--target-file", "--train-tgt", "--train-trg", "--train-target"): ("--target",),
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
    ("--gpu", "--gpus", "--cuda", "--use-cuda", "--use-gpu", "--gpu-ranks", "--gpu-id"): ("--device cuda",),
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

AFTERWARDS = {
    ("train", "--test-file"): "a run is evaluated after training: regard evaluate RUN FILE",
    ("train", "--tmx"): TMX,
    ("check", "--tmx"): TMX,
    ("split", "--tmx"): TMX,
    ("train", "--test"): "a run is evaluated after training: regard evaluate RUN FILE",
}
"""(command, option of another command) -> what to do instead."""

FILE_ARGUMENTS = {"classify": ("--jsonl", "--tsv", "--test-file", "--train-file", "--file")}
"""Command -> options of other commands that this command does not have. For them, the error message
recommends the argument FILES."""

PEER_COMMANDS = {
    "decode": "translate",
    "download": "data",
    "eval": "evaluate",
    "finetune": "train",
    "fit": "train",
    "info": "show",
    "interactive": "translate",
    "plot": "view",
    "predict": "translate",
    "prepare": "data",
    "preprocess": "data",
    "test": "evaluate",
    "validate": "evaluate",
    "visualize": "view",
}
"""Command of another toolkit -> command of Regard to use instead."""

MISSING = {
    ("train", "--output"): "--output runs/x writes a new run to the folder runs/x; "
    "regard train --output runs/x --resume continues a run",
    ("translate", "RUN"): 'regard translate RUN --text "...", where RUN is a folder that regard train wrote',
}
"""Hints for missing arguments and options. (command, name) -> hint."""

SIMILAR = 3
"""Maximum number of similar options that an error lists."""


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


def no_such_option(error: Any) -> str:
    """Return the message for an unknown option; "" for other errors of Typer.

    error: Typer's NoSuchOption, which has the name of the option and the context of the command.
    """
    context = getattr(error, "ctx", None)
    if context is None or not hasattr(error, "possibilities"):
        return ""
    parameters = context.command.get_params(context)
    arguments = [each.metavar or each.name for each in parameters if each.param_type_name == "argument"]
    optional = [each for each in parameters if each.param_type_name == "option"]
    options = [name for each in optional for name in (*each.opts, *each.secondary_opts)]
    call, problem = context.command_path, f"no such option {error.option_name}"
    if advice := AFTERWARDS.get((context.info_name or "", error.option_name)):
        return message(call, problem, hint=advice)
    of_files = error.option_name in FILE_ARGUMENTS.get(context.info_name or "", ())
    if answer := "FILES" if of_files else peer_answer(error.option_name, [*options, *arguments]):
        if answer in arguments:
            return message(call, f"{problem}; use the argument {answer}: {call} {' '.join(arguments)}")
        return message(call, f"{problem}; use {answer}")
    if similar := similar_options(error.option_name, options):
        return message(call, f"{problem}; did you mean {' or '.join(similar)}?")
    return message(call, problem, hint=f"{call} --help lists the options")


def missing_parameter(error: Any) -> str:
    """Return the message for a missing argument or required option; "" for other errors of Typer.

    error: Typer's MissingParameter, which has the parameter and the context of the command.
    """
    context, missing = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or missing is None or type(error).__name__ != "MissingParameter":
        return ""
    call, option = context.command_path, missing.param_type_name == "option"
    name = missing.opts[0] if option else missing.metavar or missing.name
    hint = MISSING.get((context.info_name or "", name)) or f"{call} --help lists the arguments and options"
    problem = f"the {'option' if option else 'argument'} {name} is missing"
    return message(call, problem, hint=hint)
